"""How many buffers aircc makes of one memref, so that one is filled while another is worked on.

After mlir-air's AIRDependencyScheduleOpt.cpp (e972f294): `air-fuse-alloc-dealloc` moves an allocation into
the innermost loop that holds all its uses, `air-label-scf-for-to-ping-pong` chooses loops, and
`air-ping-pong-transform` unrolls each of those twice. An odd number of trips leaves one over, which gets a
third buffer of its own. Only loops with a number of trips that is known are unrolled evenly; for others two
buffers are counted.

A loop stays as it is where one of its buffers is read before it is written (a call of a C++ function may
read), or is filled more than once a trip, and where a loop inside it is chosen already.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from xdsl.dialects import affine, memref, scf
from xdsl.ir import Block, Operation, SSAValue

from aerie.air_dialect.effects import READ, WRITE, memory_effects
from aerie.air_dialect.index_constants import constant_int
from aerie.air_dialect.ops import ChannelGetOp, DmaMemcpyNdOp, HerdOp, HierarchyOp
from aerie.air_dialect.values import is_defined_in, root_value
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.transfers import extents, space_of

SPACES = {"L1": 2, "L2": 1}
"""The values of `--omit-ping-pong-transform` that leave one memory out; `all` leaves out both."""


def trip_count(loop: scf.ForOp) -> int | None:
    """The number of iterations of a loop; None if it is not constant."""
    low, high, step = (constant_int(value) for value in (loop.lb, loop.ub, loop.step))
    if low is None or high is None or not step:
        distance = _distance(loop)
        return None if distance is None or not step else max(0, -(-distance // step))
    return max(0, -(-(high - low) // step))


def _distance(loop: scf.ForOp) -> int | None:
    """Upper minus lower bound if both move with the same ids, as for a core's share of rows; else None."""
    ids = [id_ for op in parent_ops(loop) if isinstance(op, HierarchyOp) for id_ in op.ids]
    ends = [[constant_int(value, dict.fromkeys(ids, at)) for value in (loop.lb, loop.ub)] for at in (0, 1)]
    distances = {None if low is None or high is None else high - low for low, high in ends}
    return distances.pop() if len(distances) == 1 else None


class BufferCopies:
    """The buffers of one array configuration that aircc multiplies."""

    def __init__(self, root: Operation, omitted: str) -> None:
        """root: the segment, launch or herd. omitted: the value of `--omit-ping-pong-transform`, or empty."""
        self._omitted = omitted
        self._accesses: dict[SSAValue, list[tuple[Operation, bool]]] = {}
        for op in root.walk():
            for position, effect in memory_effects(op):
                if effect & (READ | WRITE):
                    is_fill = effect == WRITE
                    self._accesses.setdefault(root_value(op.operands[position]), []).append((op, is_fill))
        self._homes = {buffer: home for buffer in self._accesses if (home := self._home(buffer)) is not None}
        self._chosen: dict[scf.ForOp, bool] = {}
        self._copies: dict[SSAValue, int] = {}

    def copies_of(self, buffer: SSAValue) -> int:
        """How many buffers an allocation becomes, 1 for any other value."""
        if buffer not in self._copies:
            self._copies[buffer] = self._count(buffer)
        return self._copies[buffer]

    def _count(self, buffer: SSAValue) -> int:
        home = self._homes.get(buffer)
        if home is None or self._omitted == "all":
            return 1
        level = _level(buffer)
        copies = math.prod(map(self._factor, _loops_around(home, level)))
        return copies if copies > 1 or not isinstance(level, HerdOp) else self._around_herd(level)

    def _around_herd(self, herd: HerdOp) -> int:
        """Copies of a core's buffers for the loop of the segment around its herd.

        aircc moves that loop into the herd, where it is the innermost one if no loop of the herd around a
        transfer runs more than once.
        """
        loop = next((op for op in parent_ops(herd) if isinstance(op, scf.ForOp | HierarchyOp)), None)
        own = [buffer for buffer in self._homes if _level(buffer) is herd and self._fills_of(buffer)]
        if not isinstance(loop, scf.ForOp) or self._omitted == "L1" or not own:
            return 1
        if any(not self._accesses[buffer][0][1] or len(self._fills_of(buffer)) > 1 for buffer in own):
            return 1
        fills = [fill for buffer in own for fill in self._fills_of(buffer)]
        return _copies_for(trip_count(loop)) if all(_runs_once(fill, loop, own[0]) for fill in fills) else 1

    def _fills_of(self, buffer: SSAValue) -> list[Operation]:
        return [op for op, _ in self._accesses[buffer] if _fills(op, buffer)]

    def _factor(self, loop: scf.ForOp) -> int:
        return _copies_for(trip_count(loop)) if self._is_chosen(loop) else 1

    def _home(self, buffer: SSAValue) -> Block | None:
        """The innermost block of its own level that holds all accesses; None for what is no allocation."""
        level = _level(buffer)
        if not isinstance(buffer.owner, memref.AllocOp) or level is None:
            return None
        chains = [_blocks(op, level) for op, _ in self._accesses[buffer]]
        common = [block for block in chains[0] if all(block in chain for chain in chains)]
        return next((block for block in common if _holds_allocations(block)), None)

    def _is_chosen(self, loop: scf.ForOp) -> bool:
        if loop not in self._chosen:
            self._chosen[loop] = self._is_labelled(loop) or (
                self._is_candidate(loop)
                and not any("unroll" in op.attributes or self._is_candidate(op) for op in _loops_inside(loop))
            )
        return self._chosen[loop]

    def _is_labelled(self, loop: scf.ForOp) -> bool:
        """Whether the text comes from between the two passes: chosen, and its buffers still inside."""
        own = self._own(loop)
        return "unroll" in loop.attributes and any(is_defined_in(loop, buffer) for buffer in own)

    def _is_candidate(self, loop: scf.ForOp) -> bool:
        inside = [loop, *_loops_inside(loop)]
        if "unroll" in loop.attributes or any("air.disable_ping_pong" in op.attributes for op in inside):
            return False
        own = self._own(loop)
        left_out = SPACES.get(self._omitted)
        if not own or any(space_of(buffer.type) == left_out for buffer in own):
            return False
        if any(self._is_unsafe(each) for each in inside):
            return False
        return all(self._is_filled_once(buffer, loop) for buffer in own)

    def _own(self, loop: scf.ForOp) -> list[SSAValue]:
        return [buffer for buffer, home in self._homes.items() if home is loop.body.block]

    def _is_unsafe(self, loop: scf.ForOp) -> bool:
        """Whether a trip of the loop may read a buffer of its own before it has written it, or hands a buffer
        that a herd was given to a function."""
        if any(not self._accesses[buffer][0][1] for buffer in self._own(loop)):
            return True
        herd = next((op for op in parent_ops(loop) if isinstance(op, HerdOp)), None)
        handed = set() if herd is None else set(herd.body.block.args)
        calls = (op for op in loop.walk() if op.name == "func.call")
        return any(value in handed and space_of(value.type) == 2 for op in calls for value in op.operands)

    def _is_filled_once(self, buffer: SSAValue, loop: scf.ForOp) -> bool:
        fills = self._fills_of(buffer)
        apart = [op for op in fills if not any(isinstance(parent, affine.IfOp) for parent in parent_ops(op))]
        return len(apart) <= (len(fills) == 1) and all(_runs_once(op, loop, buffer) for op in fills)


def _copies_for(count: int | None) -> int:
    """Buffers of a loop that is unrolled twice: a trip that is left over has a third."""
    if count == 1:
        return 1
    return 3 if count is not None and count % 2 else 2


def _fills(op: Operation, buffer: SSAValue) -> bool:
    if isinstance(op, DmaMemcpyNdOp):
        return root_value(op.dst) is buffer
    return isinstance(op, ChannelGetOp)


def _runs_once(op: Operation, loop: scf.ForOp, buffer: SSAValue) -> bool:
    """Whether a transfer runs once per trip of a loop around it, on one core where it fills L2."""
    for parent in parent_ops(op):
        if parent is loop:
            return True
        if isinstance(parent, scf.ForOp) and trip_count(parent) != 1:
            return False
        if isinstance(parent, HerdOp) and space_of(buffer.type) == 1 and math.prod(extents(parent)) > 1:
            return False
    return True


def _level(value: SSAValue) -> HierarchyOp | None:
    """The segment or herd in which a value was made."""
    if not isinstance(value.owner, Operation):
        return None
    return next((op for op in parent_ops(value.owner) if isinstance(op, HierarchyOp)), None)


def _blocks(op: Operation, level: HierarchyOp) -> list[Block]:
    """The blocks around an operation, innermost first, as far as they belong to the level itself."""
    blocks: list[Block] = []
    block = op.parent
    while block is not None:
        blocks.append(block)
        parent = block.parent_op()
        if parent is None or parent is level:
            break
        if isinstance(parent, HierarchyOp):
            blocks.clear()
        block = parent.parent
    return blocks


def _holds_allocations(block: Block) -> bool:
    """Whether an allocation is moved there: into loops and hierarchies, not into branches."""
    return isinstance(block.parent_op(), scf.ForOp | HierarchyOp)


def _loops_around(block: Block, level: HierarchyOp | None) -> Iterator[scf.ForOp]:
    op = block.parent_op()
    while op is not None and op is not level:
        if isinstance(op, scf.ForOp):
            yield op
        op = op.parent_op()


def _loops_inside(loop: scf.ForOp) -> Iterator[scf.ForOp]:
    """The loops in a loop's body, not those in hierarchies there."""
    pending = [loop.body.block]
    while pending:
        for op in pending.pop().ops:
            if isinstance(op, scf.ForOp):
                yield op
            if not isinstance(op, HierarchyOp):
                pending += [block for region in op.regions for block in region.blocks]
