"""Replays a graph of events: who may start when, given that cores and channels do one thing at a time.

An event starts when all events before it are done and what it occupies is free. DDR serves one
request at a time, at its full rate, and the channels in turn, while each channel goes on at its own.

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
    """The events of a launch as columns of numbers. marks: events whose end `Replay.marks` tells."""

    def __init__(
        self, events: Sequence[Event], resources: Sequence[Resource], marks: Sequence[Sequence[Event]] = ()
    ) -> None:
        self.resources = tuple(resources)
        numbers = {id(event): i for i, event in enumerate(events)}
        places = {id(resource): i for i, resource in enumerate(resources)}
        self._marks = [[numbers[id(event)] for event in mark] for mark in marks]
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
        self.waiting = [event.waiting for event in events]
        self.followers = [tuple(numbers[id(each)] for each in event.followers) for event in events]

    def __len__(self) -> int:
        return len(self.waiting)

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
        return _Schedule(self, durations.tolist(), ddr.tolist()).run()

    def occupied(self) -> list[tuple[int, ...]]:
        """By event, the numbers of the resources that it occupies."""
        return [self._occupied[group] for group in self._group]

    def flows(self) -> list[int]:
        """By event, the shim channel that asks DDR for it, or -1."""
        shims = [next((i for i in group if self.resources[i].kind == "shim"), -1) for group in self._occupied]
        return [shims[group] for group in self._group]

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
        marks = tuple(max((order.end[event] for event in mark), default=0.0) for mark in self._marks)
        path = self._path(order, overhead, kinds)
        return Replay(cycles, path, order.done, tuple(busy), tuple(nbytes), marks)

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


class _Schedule:
    """One replay: a queue of what happens next, by time.

    An entry is the number of an event that may start. An event of DDR ends when DDR has served it too, which
    takes the channels in turn (self-clocked fair queueing): of all that wait, first what would end first if
    each channel had its share.
    """

    def __init__(self, graph: Graph, durations: list[float], ddr: list[float]) -> None:
        count = len(graph)
        self._durations, self._ddr, self._followers = durations, ddr, graph.followers
        self._occupied, self._flow = graph.occupied(), graph.flows()
        self._shares = [max(1.0, resource.share) for resource in graph.resources]
        self._waiting, self._ready = list(graph.waiting), [0.0] * count
        self._start, self._end, self._by_ddr = [0.0] * count, [0.0] * count, [False] * count
        self._cause = [-1] * count
        self._free, self._user = [0.0] * len(graph.resources), [-1] * len(graph.resources)
        self._blocked: list[list[int] | None] = [None] * len(graph.resources)
        """Of a resource whose event waits for DDR, the events that wait for the resource."""
        self._queue = [(0.0, number, number) for number in range(count) if not self._waiting[number]]
        self._number, self._last, self._done = count, -1, 0
        self._requests: list[tuple[float, int, int]] = []
        self._tags = [0.0] * (len(graph.resources) + 1)
        self._serving, self._served_tag = -1, 0.0

    def run(self) -> _Order:
        queue, count = self._queue, len(self._waiting)
        while queue:
            now, _, event = heapq.heappop(queue)
            if event < 0:
                self._serving = -1
                self._serve(now)
                self._finish(-1 - event, now)
            elif event >= count:
                self._request(event - count, now)
            else:
                self._begin(event, now, count)
        return _Order(self._start, self._end, self._cause, self._by_ddr, self._last, self._done)

    def _at(self, time: float, what: int) -> None:
        self._number += 1
        heapq.heappush(self._queue, (time, self._number, what))

    def _begin(self, event: int, begin: float, count: int) -> None:
        """Start an event as soon as what it occupies is free."""
        for resource in self._occupied[event]:
            blocked = self._blocked[resource]
            if blocked is not None:
                blocked.append(event)
                return
            if self._free[resource] > begin:
                begin, self._cause[event] = self._free[resource], self._user[resource]
        self._start[event] = begin
        if not self._ddr[event]:
            self._finish(event, 0.0)
            return
        for resource in self._occupied[event]:
            self._blocked[resource] = []
        self._at(begin, count + event)

    def _request(self, event: int, now: float) -> None:
        flow = self._flow[event]
        share = self._shares[flow] if flow >= 0 else 1.0
        tag = max(self._served_tag, self._tags[flow]) + self._ddr[event] / share
        self._tags[flow] = tag
        heapq.heappush(self._requests, (tag, self._number, event))
        if self._serving < 0:
            self._serve(now)

    def _serve(self, now: float) -> None:
        """Let DDR begin with the next request."""
        if self._requests:
            self._served_tag, _, self._serving = heapq.heappop(self._requests)
            self._at(now + self._ddr[self._serving], -1 - self._serving)

    def _finish(self, event: int, served: float) -> None:
        """End an event, and let those go on that wait for it. served: when DDR has done its part."""
        finish = self._start[event] + self._durations[event]
        if served > finish:
            finish, self._by_ddr[event] = served, True
        self._end[event] = finish
        for resource in self._occupied[event]:
            self._free[resource], self._user[resource] = finish, event
            for other in self._blocked[resource] or ():
                self._at(self._ready[other], other)
            self._blocked[resource] = None
        self._done += 1
        if self._last < 0 or finish > self._end[self._last]:
            self._last = event
        for follower in self._followers[event]:
            if finish >= self._ready[follower]:
                self._ready[follower], self._cause[follower] = finish, event
            self._waiting[follower] -= 1
            if not self._waiting[follower]:
                self._at(self._ready[follower], follower)


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
    cycles in which it works and what passes through it. marks: when the last event of each of the graph's
    marks ended."""

    cycles: float
    path: dict[str, float]
    done: int
    busy: tuple[float, ...]
    nbytes: tuple[int, ...]
    marks: tuple[float, ...]
