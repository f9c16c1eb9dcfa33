"""The events of a launch: its transfers and the work of its cores, in a graph of who waits for whom.

As mlir-air lowers a program, nobody walks its text at run time: each DMA channel has its own chain of
descriptors, each core its own loop, and locks on buffers are all that orders them. So the text is walked
once, in its order, and each transfer waits only for

- the transfer before it on its channel, and what its channels and streams still do (replay.py),
- the data: the transfers that filled the buffer it reads,
- room: a buffer in a loop is double (ping-pong), so it waits for readers of the data two before.

A transfer that cores share, since its offsets do not depend on their ids, is one broadcast. A transfer
between L3 and L2 is spread over the memtiles of the cores that it serves (air-split-l2-memref).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

from xdsl.dialects import affine, scf
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.index_constants import constant_int, leaves
from aerie.air_dialect.ops import (
    ChannelOp,
    ChannelPutOp,
    ChannelTransferOp,
    DmaMemcpyNdOp,
    HerdOp,
    HierarchyOp,
    LaunchOp,
)
from aerie.device.conditions import condition_holds
from aerie.device.transfers import TransferSide, transfer_sides
from aerie.virtual_npu.timing.bodies import ITERATION, LOOPS, Bodies, Step, TimingError, walked_trips
from aerie.virtual_npu.timing.buffer_order import CoreOrder, MemtileBuffer
from aerie.virtual_npu.timing.core_costs import buffer_bytes
from aerie.virtual_npu.timing.costs import NOTHING, Cost, cost
from aerie.virtual_npu.timing.ports import L1, L2, L3, Core, Ports, Scope, contiguous_bytes, herd_around
from aerie.virtual_npu.timing.replay import Event, Resource

MAX_EVENTS = 600_000
"""Of one point of a launch: more would take minutes and gigabytes."""
MIN_ITERATIONS = 64
"""Of a loop that is not walked to its end."""
MAX_ITERATIONS = 5_000_000
"""Of the loops that are walked and the cores, in one point of a launch."""
DESCRIPTOR, SHIM_TASK, ISSUE = cost(bd_cycles=1), cost(shim_task_cycles=1), cost(issue_cycles=1)
_Chain = tuple[str, tuple[int, ...]]
"""One queue of a channel: its name and index."""
_Turn = tuple[str, tuple[int, ...], int]


class LaunchEvents:
    """The events of some points of a launch, one point after the other."""

    def __init__(self, launch: LaunchOp, bodies: Bodies, events_enough: int, waits: bool = False) -> None:
        self.launch, self.bodies, self._events_enough = launch, bodies, events_enough
        self._waits = waits
        self._barrier: Event | None = None
        self.scale = 1.0
        """How many times as many iterations as were walked the loop of the cores has."""
        self._weight = 1.0
        """For how many iterations the one that is being walked stands."""
        self.halfway: list[Event] = []
        self.walked: list[Event] = []
        """What the cores have done when half of the iterations that are walked are over, and all."""
        self._shortened: dict[Operation, int] = {}
        self.events: list[Event] = []
        self.macs = self.ddr_bytes = 0.0
        self._first = self._iterations = 0
        self._cores: dict[Core, CoreOrder] = {}
        self._herds: dict[HerdOp, str] = {}
        self._memtile_buffers: defaultdict[SSAValue, MemtileBuffer] = defaultdict(MemtileBuffer)
        self._chain: dict[object, Event] = {}
        self._begun: set[object] = set()
        self._to_l3: list[Event] = []
        self._shared: dict[object, Event] = {}
        self._turns: defaultdict[object, int] = defaultdict(int)
        self._pairs: dict[_Turn, tuple[Event, set[str]]] = {}
        self._ids: dict[Operation, tuple[int, ...]] = {}
        self.ports = Ports(launch, bodies.module, self._used_ids)
        self._channels = {op.sym_name: op for op in bodies.module.walk() if isinstance(op, ChannelOp)}

    # ---- walking ----

    def walk_point(self, ids: Sequence[int]) -> None:
        """Add the events of one point. Raises TimingError for what cannot be followed."""
        self._first, self._iterations = len(self.events), 0
        self._begun.clear()
        if self._waits and self._to_l3:
            self._wait()
        known: dict[SSAValue, int] = dict(zip(self.launch.ids, ids, strict=True))
        self._walk(self.bodies.steps(self.launch.body.block), Scope(known))
        for state in self._cores.values():
            state.flush()
        self._check_pairs()

    def _walk(self, steps: Sequence[Step], scope: Scope) -> None:
        for step in steps:
            op = step.op
            if op is None:
                if scope.core is not None:
                    scope.core.work(step.work.cost)
                    self.macs += step.work.macs * self._weight
            elif isinstance(op, DmaMemcpyNdOp):
                self._dma(op, scope)
            elif isinstance(op, ChannelTransferOp):
                self._channel(op, scope)
            elif isinstance(op, HierarchyOp):
                self._hierarchy(op, scope)
            elif isinstance(op, scf.IfOp | affine.IfOp):
                self._branch(op, step, scope)
            elif op.name in LOOPS:
                self._loop(op, step, scope)
            else:
                for body in step.bodies:
                    self._walk(body, scope)

    def _loop(self, op: Operation, step: Step, scope: Scope) -> None:
        variables = walked_trips(op, self.bodies, scope.known)
        inside = Scope(scope.known, scope.core, scope.core_name, scope.herd, in_loop=True)
        points = _points([trips for _, trips in variables])
        enough = self._shortened.get(op)
        self._weight = self.scale if enough else self._weight
        for number, values in enumerate(islice(points, enough)):
            if enough and 2 * number == enough:
                self._mark(self.halfway, scope)
            for (variable, _), value in zip(variables, values, strict=True):
                scope.known[variable] = value
            self._count_iteration()
            self._walk(step.bodies[0], inside)
            if scope.core is not None:
                scope.core.work(ITERATION.cost)
        if enough:
            self._mark(self.walked, scope)
            self._weight = 1.0

    @staticmethod
    def _mark(marks: list[Event], scope: Scope) -> None:
        if scope.core is not None and scope.core.last is not None:
            marks.append(scope.core.last)

    def _branch(self, op: scf.IfOp | affine.IfOp, step: Step, scope: Scope) -> None:
        """An arm; the first where data decides, which holds the transfers if only one does."""
        holds = condition_holds(op, scope.known)
        arm = 0 if holds is None or holds else 1
        if arm < len(step.bodies):
            self._walk(step.bodies[arm], scope)

    def _hierarchy(self, op: HierarchyOp, scope: Scope) -> None:
        sizes = [constant_int(size, scope.known) or 1 for size in op.sizes]
        steps = self.bodies.steps(op.body.block)
        if isinstance(op, HerdOp):
            self._shorten(op, steps, math.prod(sizes), scope)
        for ids in _points([range(size) for size in sizes]):
            self._count_iteration()
            known = dict(scope.known)
            known.update(zip(op.ids, ids, strict=True))
            if not isinstance(op, HerdOp):
                self._walk(steps, Scope(known))
                continue
            name = (op.sym_name or self._herds.setdefault(op, f"herd {len(self._herds)}"), ids)
            state = self._core(name)
            self._walk(steps, Scope(known, state, name, op))
            state.work(ITERATION.cost)

    def _shorten(self, herd: HerdOp, steps: Sequence[Step], cores: int, scope: Scope) -> None:
        """Walk a part of the iterations where all that the launch does is one long loop on its cores."""
        loops = [step for step in steps if step.op is not None and step.op.name in LOOPS]
        if len(loops) != 1 or scope.in_loop or not self._is_all(herd):
            return
        (loop,) = loops
        assert loop.op is not None
        variables = [trips for _, trips in walked_trips(loop.op, self.bodies, scope.known)]
        trips = math.prod(map(len, variables))
        enough = max(MIN_ITERATIONS, self._events_enough // (cores * (1 + len(loop.bodies[0]))))
        if trips > enough:
            enough -= enough % 2
            self._shortened[loop.op], self.scale = enough, trips / enough

    def _is_all(self, herd: HerdOp) -> bool:
        """Whether every transfer of the launch is in this herd."""
        moves = [op for op in self.launch.walk() if isinstance(op, DmaMemcpyNdOp | ChannelTransferOp)]
        return all(herd_around(op) is herd for op in moves)

    def _count_iteration(self) -> None:
        """Raises TimingError for a program that would be walked for minutes."""
        self._iterations += 1
        if self._iterations > MAX_ITERATIONS:
            raise TimingError(
                f"one point of launch {launch_name(self.launch)} has more than {MAX_ITERATIONS} iterations "
                "of loops with transfers, which the timing model does not follow: move more data in each"
            )

    def _core(self, name: Core) -> CoreOrder:
        if name not in self._cores:
            resource = self.ports.resource(("core", name), lambda: f"{name[0]}{list(name[1])}", "core")
            self._cores[name] = CoreOrder(resource, self._add)
        return self._cores[name]

    # ---- transfers ----

    def _dma(self, op: DmaMemcpyNdOp, scope: Scope) -> None:
        sides = self.ports.sides_of(op)
        if len(sides) < 2:
            return
        source, target = sides
        key = self._sharing_key(op, source, scope)
        event = self._shared.get(key)
        if event is None:
            event = self._shared[key] = self._transfer(op, key, source, target, scope)
        elif target.space == L1:
            self._add_receiver(event, op, scope)
        self._touch(event, source, scope)
        self._touch(event, target, scope)

    def _sharing_key(self, op: DmaMemcpyNdOp, source: TransferSide, scope: Scope) -> tuple[object, ...]:
        """Equal for cores that get the same data at the same turn."""
        if scope.herd is None:
            return (op, self._turn((op, None)))
        used = self._used_ids(op, scope.herd) if source.space != L1 else range(len(scope.herd.ids))
        ids = tuple(scope.known[scope.herd.ids[i]] for i in used)
        return (op, ids, self._turn((op, scope.core_name)))

    def _turn(self, key: object) -> int:
        self._turns[key] += 1
        return self._turns[key]

    def _used_ids(self, op: Operation, herd: HerdOp) -> tuple[int, ...]:
        """Which coordinates of a core the far end of its transfer depends on."""
        if op not in self._ids:
            far = [side for side in transfer_sides(op) if side.space != L1]
            found = {leaf for side in far for offset in side.offsets for leaf in leaves(offset)}
            self._ids[op] = tuple(i for i, id_ in enumerate(herd.ids) if id_ in found)
        return self._ids[op]

    def _transfer(
        self,
        op: Operation,
        key: tuple[object, ...],
        source: TransferSide,
        target: TransferSide,
        scope: Scope,
    ) -> Event:
        nbytes = _bytes(source) or _bytes(target)
        chain = key[:-1]
        resources = [self.ports.end(op, side, chain, scope) for side in (source, target)]
        event = self._new_transfer(resources, nbytes, ("chain", chain))
        for side in (source, target):
            if side.space == L3:
                self._use_ddr(event, side, chain, scope)
        return event

    def _new_transfer(self, resources: list[Resource], nbytes: int, chain: object) -> Event:
        event = self._add(resources, DESCRIPTOR, nbytes)
        event.after(self._chain.get(chain))
        self._chain[chain] = event
        return event

    def _use_ddr(self, event: Event, side: TransferSide, chain: object, scope: Scope) -> None:
        """A transfer to or from L3. Those of a loop are one task of the shim tile, which walks the loop
        (air-opt-shim-dma-bds)."""
        if not scope.in_loop or chain not in self._begun:
            event.cost = SHIM_TASK
            event.after(self._issue())
            self._begun.add(chain)
        runs = max(1, event.nbytes // max(1, contiguous_bytes(side)))
        self._to_l3.append(event)
        event.ddr_bytes += event.nbytes
        event.ddr_runs += runs
        self.ddr_bytes += event.nbytes * self._weight

    def _issue(self) -> Event:
        """The controller's write of one task: its descriptor, its address, the queue of its channel."""
        issue = self._add([self.ports.resource("controller", lambda: "controller", "dispatch")], ISSUE)
        issue.after(self._barrier)
        return issue

    def _wait(self) -> None:
        """Let the next point begin when all transfers to and from L3 are done."""
        self._barrier = self._add([], NOTHING)
        for event in self._to_l3:
            self._barrier.after(event)
        self._to_l3.clear()

    def _add_receiver(self, event: Event, op: Operation, scope: Scope) -> None:
        port = self.ports.core_port(op, False, scope)
        if port not in event.resources:
            event.resources.append(port)

    def _touch(self, event: Event, side: TransferSide, scope: Scope) -> None:
        """What the buffer at one end lets the transfer wait for."""
        root = self.ports.root(side.memref)
        if side.space == L2:
            self._memtile_buffers[root].order(event, side.reads, scope.in_loop)
        elif side.space == L1 and scope.core is not None:
            (scope.core.send if side.reads else scope.core.receive)(event, root, scope.in_loop)

    # ---- channels ----

    def _channel(self, op: ChannelTransferOp, scope: Scope) -> None:
        sides = self.ports.sides_of(op)
        channel = self._channels.get(op.chan_name)
        if not sides or channel is None:
            return
        (side,) = sides
        given = tuple(constant_int(index, scope.known) or 0 for index in op.indices)
        index = tuple(i if size > 1 else 0 for i, size in zip(given, channel.size, strict=False)) or (0,)
        end = "put" if isinstance(op, ChannelPutOp) else "get"
        chain = (channel.sym_name, index)
        key = (*chain, self._turn((chain, end, given)))
        event = self._pair(key, end, chain, _bytes(side))
        resource = self._channel_end(op, side, channel, chain, scope)
        if resource not in event.resources:
            event.resources.append(resource)
        if side.space == L3:
            self._use_ddr(event, side, chain, scope)
        self._touch(event, side, scope)

    def _pair(self, key: _Turn, end: str, chain: _Chain, nbytes: int) -> Event:
        if key not in self._pairs:
            self._pairs[key] = (self._new_transfer([], nbytes, ("chain", chain)), set())
        event, ends = self._pairs[key]
        ends.add(end)
        return event

    def _channel_end(
        self, op: Operation, side: TransferSide, channel: ChannelOp, chain: _Chain, scope: Scope
    ) -> Resource:
        if "cascade" in channel.channel_type:
            name = f"@{chain[0]}{list(chain[1])}"
            return self.ports.resource(("cascade", chain), lambda: name, "cascade", "cascade_bytes")
        return self.ports.end(op, side, chain, scope)

    def _check_pairs(self) -> None:
        """Raises TimingError if a channel has a put without its get, or a get without its put."""
        for key, (_, ends) in self._pairs.items():
            if len(ends) < 2:
                name, index, turn = key
                raise TimingError(
                    f"channel @{name}{list(index)} has a {min(ends)} number {turn} without its other end, so "
                    "the program would hang: `aerie vnpu run` shows where"
                )
        self._pairs.clear()

    # ---- what they share ----

    def _add(self, resources: list[Resource], cost: Cost, nbytes: int = 0) -> Event:
        if len(self.events) - self._first >= MAX_EVENTS:
            raise TimingError(
                f"one point of launch {launch_name(self.launch)} has more than {MAX_EVENTS} transfers and "
                "pieces of work, which the timing model does not replay: move more data in one transfer, or "
                "divide the launch into more points"
            )
        event = Event(resources, cost, nbytes)
        self.events.append(event)
        return event


def _points(ranges: Sequence[range]) -> Iterator[tuple[int, ...]]:
    """The points of a grid, the last index fastest; unlike itertools.product it keeps no range in memory."""
    if not ranges:
        yield ()
        return
    for first in ranges[0]:
        for rest in _points(ranges[1:]):
            yield (first, *rest)


def launch_name(launch: LaunchOp) -> str:
    """The name of a launch: its own, or that of its first segment, herd or function."""
    if launch.sym_name:
        return launch.sym_name
    named = [op.sym_name for op in launch.walk() if isinstance(op, HierarchyOp) and op.sym_name]
    return named[0].removesuffix("_segment") if named else "launch"


def _bytes(side: TransferSide) -> int:
    if None in side.sizes:
        return buffer_bytes(side.type)
    return math.prod(size for size in side.sizes if size is not None) * side.bits // 8
