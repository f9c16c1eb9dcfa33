"""Replays a graph of events: who may start when, given that cores and channels do one thing at a time.

An event starts when all events before it are done and what it occupies is free. DDR is one queue that all
channels share: it serves requests in the order in which they start, at its full rate, while each channel goes
on at its own.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from aerie.virtual_npu.timing.parameters import Parameters


class Resource:
    """A core, a DMA channel or a stream: it serves one event at a time.

    kind: a word of `prediction.LIMITS`. rate: bytes in a cycle, 0 for a core.
    """

    __slots__ = ("busy", "free_at", "kind", "last", "name", "nbytes", "rate")

    def __init__(self, name: str, kind: str, rate: float) -> None:
        self.name, self.kind, self.rate = name, kind, rate
        self.free_at = self.busy = 0.0
        self.nbytes = 0
        self.last: Event | None = None


class Event:
    """One piece of work of a core, or one transfer.

    cycles: what it takes beside its bytes. ddr_bytes: what DDR moves for it, 0 for a transfer on the chip.
    cause: the event whose end let this one start. kind: what its duration was limited by.
    """

    __slots__ = (
        "cause",
        "cycles",
        "ddr_bytes",
        "end",
        "followers",
        "kind",
        "nbytes",
        "ready",
        "resources",
        "start",
        "waiting",
    )

    def __init__(
        self, resources: list[Resource], cycles: float, nbytes: int = 0, ddr_bytes: float = 0.0
    ) -> None:
        self.resources, self.cycles, self.nbytes, self.ddr_bytes = resources, cycles, nbytes, ddr_bytes
        self.followers: list[Event] = []
        self.waiting = 0
        self.ready = self.start = self.end = 0.0
        self.cause: Event | None = None
        self.kind = "dependency"

    def after(self, other: Event | None) -> None:
        """Let this event wait for another."""
        if other is not None and other is not self:
            other.followers.append(self)
            self.waiting += 1


@dataclass(frozen=True)
class Replay:
    """The outcome. cycles: the end of the last event. path: cycles of the longest chain by kind. done: how
    many events took place; fewer than there are if some wait for each other."""

    cycles: float
    path: dict[str, float]
    done: int


def replay(events: Sequence[Event], parameters: Parameters) -> Replay:
    """Give every event its start and its end, in cycles."""
    ddr_rate = parameters.ddr_gb_s / parameters.clock_ghz
    ddr_free, done = 0.0, 0
    last: Event | None = None
    queue = [(0.0, number, event) for number, event in enumerate(events) if not event.waiting]
    heapq.heapify(queue)
    number = len(events)
    while queue:
        _, _, event = heapq.heappop(queue)
        ddr_free = _run(event, ddr_free, ddr_rate)
        done += 1
        if last is None or event.end > last.end:
            last = event
        for follower in event.followers:
            if event.end >= follower.ready:
                follower.ready, follower.cause = event.end, event
            follower.waiting -= 1
            if not follower.waiting:
                number += 1
                heapq.heappush(queue, (follower.ready, number, follower))
    return Replay(last.end if last else 0.0, _path(last), done)


def _run(event: Event, ddr_free: float, ddr_rate: float) -> float:
    """Place one event; returns when DDR is free after it."""
    start, rate, kind = event.ready, 0.0, "dependency"
    for resource in event.resources:
        if resource.free_at > start:
            start, event.cause = resource.free_at, resource.last
        if not rate or resource.rate < rate:
            rate, kind = resource.rate, resource.kind
    end = start + event.cycles + (event.nbytes / rate if rate else 0.0)
    if event.ddr_bytes:
        ddr_free = max(ddr_free, start) + event.ddr_bytes / ddr_rate
        if ddr_free > end:
            end, kind = ddr_free, "DDR"
    event.start, event.end, event.kind = start, end, kind
    for resource in event.resources:
        resource.free_at, resource.last = end, event
        resource.busy += end - start
        resource.nbytes += event.nbytes
    return ddr_free


def _path(last: Event | None) -> dict[str, float]:
    """The longest chain, backwards from the last event: the cycles in which each kind holds it up."""
    path: dict[str, float] = defaultdict(float)
    event = last
    while event is not None:
        overhead = event.cycles if event.nbytes and event.kind != "DDR" else 0.0
        path["dependency"] += overhead
        path[event.kind] += event.end - event.start - overhead
        before = event.cause
        path["dependency"] += event.start - (before.end if before else 0.0)
        event = before
    return dict(path)
