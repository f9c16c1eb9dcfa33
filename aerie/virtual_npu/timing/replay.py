"""Replays a graph of events: who may start when, given that cores and channels do one thing at a time.

An event starts when all events before it are done and what it occupies is free. DDR is one queue that all
channels share: it serves requests in the order in which they start, at its full rate, while each channel goes
on at its own.

A graph has counts and no cycles, so that it is made once and replayed with other parameters.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from aerie.virtual_npu.timing.costs import NOTHING, Cost, prices
from aerie.virtual_npu.timing.parameters import Parameters

Numbers: TypeAlias = "NDArray[np.float64]"


class Resource:
    """A core, a DMA channel or a stream: it serves one event at a time.

    kind: a word of `prediction.LIMITS`. rate: the parameter that says how many bytes it moves in a cycle, ''
    for a core. share: what its rate is multiplied by.
    """

    __slots__ = ("kind", "name", "rate", "share")

    def __init__(self, name: str, kind: str, rate: str = "", share: float = 1.0) -> None:
        self.name, self.kind, self.rate, self.share = name, kind, rate, share

    def bytes_per_cycle(self, parameters: Parameters) -> float:
        """Bytes in a cycle; 0 for a core."""
        return float(getattr(parameters, self.rate)) * self.share if self.rate else 0.0


class Event:
    """One piece of work of a core, or one transfer.

    cost: what it takes beside its bytes. ddr_bytes, ddr_runs: what DDR moves for it, and in how many
    contiguous runs; 0 for a transfer on the chip.
    """

    __slots__ = ("cost", "ddr_bytes", "ddr_runs", "followers", "nbytes", "resources", "waiting")

    def __init__(self, resources: list[Resource], cost: Cost = NOTHING, nbytes: int = 0) -> None:
        self.resources, self.cost, self.nbytes = resources, cost, nbytes
        self.ddr_bytes = self.ddr_runs = self.waiting = 0
        self.followers: list[Event] = []

    def after(self, other: Event | None) -> None:
        """Let this event wait for another."""
        if other is not None and other is not self:
            other.followers.append(self)
            self.waiting += 1


class Graph:
    """The events of a launch as columns of numbers."""

    def __init__(self, events: Sequence[Event], resources: Sequence[Resource]) -> None:
        self.resources = tuple(resources)
        numbers = {id(event): i for i, event in enumerate(events)}
        places = {id(resource): i for i, resource in enumerate(resources)}
        costs: dict[Cost, int] = {}
        occupied: dict[tuple[int, ...], int] = {}
        self._cost = np.array([costs.setdefault(event.cost, len(costs)) for event in events], np.int64)
        used = [tuple(places[id(resource)] for resource in event.resources) for event in events]
        self._group = np.array([occupied.setdefault(each, len(occupied)) for each in used], np.int64)
        self._costs = np.array([*costs], np.float64)
        self._occupied = list(occupied)
        self._nbytes = np.array([event.nbytes for event in events], np.float64)
        self._ddr_bytes = np.array([event.ddr_bytes for event in events], np.float64)
        self._ddr_runs = np.array([event.ddr_runs for event in events], np.float64)
        self._waiting = [event.waiting for event in events]
        self._followers = [tuple(numbers[id(each)] for each in event.followers) for event in events]

    def __len__(self) -> int:
        return len(self._waiting)

    def replay(self, parameters: Parameters) -> Replay:
        """When each event starts and ends, with these parameters."""
        rates = [resource.bytes_per_cycle(parameters) for resource in self.resources]
        slowest = [min(group, key=lambda i: rates[i], default=-1) for group in self._occupied]
        group_rate = np.array([rates[i] if i >= 0 else 0.0 for i in slowest])[self._group]
        overhead = (self._costs @ prices(parameters))[self._cost]
        moving = np.divide(self._nbytes, group_rate, out=np.zeros(len(self)), where=group_rate > 0)
        burst, ddr_rate = parameters.ddr_burst_bytes, parameters.ddr_gb_s / parameters.clock_ghz
        ddr = (self._ddr_bytes + self._ddr_runs * burst) / ddr_rate
        order = self._order(overhead + moving, ddr)
        kinds = [self.resources[i].kind if i >= 0 else "dependency" for i in slowest]
        return self._outcome(order, overhead, kinds)

    def _order(self, durations: Numbers, ddr: Numbers) -> _Order:
        """Let the events take place; what waits for itself does not."""
        count, durations_, ddr_ = len(self), durations.tolist(), ddr.tolist()
        group, occupied, followers = self._group.tolist(), self._occupied, self._followers
        waiting, ready, cause = list(self._waiting), [0.0] * count, [-1] * count
        start, end, by_ddr = [0.0] * count, [0.0] * count, [False] * count
        free, user = [0.0] * len(self.resources), [-1] * len(self.resources)
        queue = [(0.0, number, number) for number in range(count) if not waiting[number]]
        number, last, done, ddr_free = count, -1, 0, 0.0
        while queue:
            begin, _, event = heapq.heappop(queue)
            for resource in occupied[group[event]]:
                if free[resource] > begin:
                    begin, cause[event] = free[resource], user[resource]
            finish = begin + durations_[event]
            if ddr_[event]:
                ddr_free = max(ddr_free, begin) + ddr_[event]
                if ddr_free > finish:
                    finish, by_ddr[event] = ddr_free, True
            start[event], end[event] = begin, finish
            for resource in occupied[group[event]]:
                free[resource], user[resource] = finish, event
            done += 1
            if last < 0 or finish > end[last]:
                last = event
            for follower in followers[event]:
                if finish >= ready[follower]:
                    ready[follower], cause[follower] = finish, event
                waiting[follower] -= 1
                if not waiting[follower]:
                    number += 1
                    heapq.heappush(queue, (ready[follower], number, follower))
        return _Order(start, end, cause, by_ddr, last, done)

    def _outcome(self, order: _Order, overhead: Numbers, kinds: Sequence[str]) -> Replay:
        took = np.array(order.end) - np.array(order.start)
        busy, nbytes = [0.0] * len(self.resources), [0] * len(self.resources)
        counts = len(self._occupied)
        of_group = zip(
            self._occupied,
            np.bincount(self._group, took, counts),
            np.bincount(self._group, self._nbytes, counts),
            strict=True,
        )
        for group, time, moved in of_group:
            for i in group:
                busy[i] += float(time)
                nbytes[i] += int(moved)
        cycles = order.end[order.last] if order.done else 0.0
        return Replay(cycles, self._path(order, overhead, kinds), order.done, tuple(busy), tuple(nbytes))

    def _path(self, order: _Order, overhead: Numbers, kinds: Sequence[str]) -> dict[str, float]:
        """The longest chain, backwards from the last event: the cycles in which each kind holds it up."""
        path: dict[str, float] = defaultdict(float)
        event = order.last
        while event >= 0:
            kind = "DDR" if order.by_ddr[event] else kinds[self._group[event]]
            latency = float(overhead[event]) if self._nbytes[event] and kind != "DDR" else 0.0
            path["dependency"] += latency
            path[kind] += order.end[event] - order.start[event] - latency
            before = order.cause[event]
            path["dependency"] += order.start[event] - (order.end[before] if before >= 0 else 0.0)
            event = before
        return dict(path)


@dataclass(frozen=True)
class _Order:
    """By event: start and end in cycles, what let it start (-1: nothing), and whether DDR held it up."""

    start: list[float]
    end: list[float]
    cause: list[int]
    by_ddr: list[bool]
    last: int
    done: int


@dataclass(frozen=True)
class Replay:
    """The outcome. cycles: the end of the last event. path: cycles of the longest chain by kind. done: how
    many events took place; fewer than there are if some wait for each other. busy, nbytes: by resource, the
    cycles in which it works and what passes through it."""

    cycles: float
    path: dict[str, float]
    done: int
    busy: tuple[float, ...]
    nbytes: tuple[int, ...]
