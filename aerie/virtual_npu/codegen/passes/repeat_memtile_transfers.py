"""Repeats a memtile's transfers as often as its stream sends data.

aircc makes of a segment's gets and puts of a buffer in L2 a ring of descriptors, which starts again for as
long as data comes (without `--omit-while-true-loop`). So a segment that gets a block and puts it on, once in
its text, serves a launch and cores that send and take many. Where numbers alone say how often, and both ends
of a buffer agree, its operations get a loop around them here. Nor does the ring end with a loop in the text
of the segment: one that does the same each time gets the trips that both ends need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

from xdsl.dialects import affine, scf
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue

from aerie.air_dialect.index_constants import NUMBERS, constant_int
from aerie.air_dialect.index_expressions import IndexAnalysis, iteration_range
from aerie.air_dialect.ops import (
    AsyncTokenType,
    ChannelPutOp,
    ChannelTransferOp,
    HerdOp,
    HierarchyOp,
    LaunchOp,
    MemorySpace,
    SegmentOp,
    WaitAllOp,
)
from aerie.air_dialect.values import root_value, walk
from aerie.air_dialect.verification import transfer_elements
from aerie.air_dialect.verifiers import parent_ops
from aerie.virtual_npu.codegen.sharing import HerdCore, cores_of, is_in

_ONCE = ("air.execute", "scf.execute_region")


def repeat_memtile_transfers(module: ModuleOp) -> None:
    """Change a module in place."""
    for launch in [op for op in walk(module) if isinstance(op, LaunchOp)]:
        for segment in [op for op in walk(launch) if isinstance(op, SegmentOp)]:
            if not any(isinstance(op, SegmentOp) for op in parent_ops(segment)):
                for group in _groups(segment):
                    times = _times(launch, group)
                    if times > 1 and times.denominator == 1:
                        _repeat(group, int(times))
                    elif times > 1:
                        _prolong(group, times)


def _groups(segment: SegmentOp) -> list[list[Operation]]:
    """For each buffer in L2, the operations of a segment's block that pass it on, in their order."""
    groups: dict[SSAValue, dict[Operation, None]] = {}
    for op in segment.body.block.ops:
        if isinstance(op, HierarchyOp):
            continue
        for inner in walk(op):
            if isinstance(inner, ChannelTransferOp) and is_in(inner.memref, MemorySpace.L2):
                groups.setdefault(root_value(inner.memref), {})[op] = None
    group_lists = [list(group) for group in groups.values()]
    shared = [
        op for i, group in enumerate(group_lists) for op in group if any(op in g for g in group_lists[:i])
    ]
    return [group for group in group_lists if not any(op in shared for op in group)]


# ---- how often ----


def _times(launch: LaunchOp, group: Sequence[Operation]) -> Fraction:
    """How often a group runs, by what the other ends of all its channels send and take; 1 where they do not
    agree, or more than numbers decide."""
    inside = [op for top in group for op in walk(top) if isinstance(op, ChannelTransferOp)]
    ratios = set[Fraction]()
    for name in dict.fromkeys(op.chan_name for op in inside):
        for is_put in {isinstance(op, ChannelPutOp) for op in inside if op.chan_name == name}:
            mine = [op for op in inside if op.chan_name == name and isinstance(op, ChannelPutOp) is is_put]
            ratios.add(_ratio(launch, mine))
    gets = {isinstance(op, ChannelPutOp) for op in inside}
    return ratios.pop() if len(ratios) == 1 and gets == {True, False} else Fraction(1)


def _ratio(launch: LaunchOp, mine: Sequence[ChannelTransferOp]) -> Fraction:
    """How many times as many elements the other end moves; 0 where that is not known."""
    channel, name = mine[0].channel(), mine[0].chan_name
    function = launch.parent_op()
    if channel is None or function is None or channel.broadcast_shape is not None:
        return Fraction(0)
    everywhere = [op for op in walk(function) if isinstance(op, ChannelTransferOp) and op.chan_name == name]
    if any(launch not in parent_ops(op) for op in everywhere):
        return Fraction(0)
    members = {_member(op, NUMBERS) for op in mine}
    if prod(channel.size) > 1 and len(members) == 1 and None not in members:
        (member,) = members
        through_it = [op for op in everywhere if _member(op, NUMBERS) in (member, None)]
        if ratio := _ratio_of(launch, through_it, mine, member):
            return ratio
    return _ratio_of(launch, everywhere, mine, None)


def _ratio_of(
    launch: LaunchOp,
    transfers: Sequence[ChannelTransferOp],
    mine: Sequence[ChannelTransferOp],
    member: tuple[int, ...] | None,
) -> Fraction:
    """`_ratio` among these puts and gets; member: as `_moved` takes it."""
    same_side = [op for op in transfers if type(op) is type(mine[0])]
    others = [op for op in transfers if op not in same_side]
    counts = [[_moved(op, launch, member) for op in ops] for ops in (same_side, others)]
    if len(same_side) != len(mine) or any(None in found for found in counts):
        return Fraction(0)
    one, other = (sum(count or 0 for count in found) for found in counts)
    return Fraction(other, one) if one else Fraction(0)


def _member(op: ChannelTransferOp, known: IndexAnalysis[int]) -> tuple[int, ...] | None:
    """The member of a bundle that a put or get names by numbers; None where it takes more."""
    numbers = [known.analyze(index) for index in op.indices]
    return None if None in numbers else tuple(number or 0 for number in numbers)


def _moved(op: ChannelTransferOp, launch: LaunchOp, member: tuple[int, ...] | None) -> int | None:
    """The elements that a put or get moves in one point of a launch, over all cores and trips of loops.

    member: only what goes through this one of a bundle; None: through any.
    """
    herd = next((parent for parent in parent_ops(op) if isinstance(parent, HerdOp)), None)
    count = transfer_elements(op.memref.type, op.sizes)
    cores: Sequence[HerdCore | None] = [None] if herd is None else cores_of(herd)
    if member is not None:
        found = [(core, _member(op, _known_on(core))) for core in cores]
        if any(named is None for _, named in found):
            return None
        cores = [core for core, named in found if named == member]
    runs = [_runs(op, launch, core) for core in cores]
    if count is None or None in runs:
        return None
    return count * sum(each or 0 for each in runs)


def _runs(op: Operation, launch: LaunchOp, core: HerdCore | None) -> int | None:
    """How often an operation runs in one point of a launch, on one core of the herd that it is in."""
    known = _known_on(core)
    factors: list[int | None] = []
    inner: Operation = op
    for parent in parent_ops(op):
        if parent is launch:
            return None if None in factors else prod(factor or 0 for factor in factors)
        if isinstance(parent, scf.ForOp | affine.ForOp):
            space = iteration_range(parent.body.block.args[0])
            factors.append(
                None if space is None else _trips(*(known.analyze_term(bound) for bound in space[:3]))
            )
        elif isinstance(parent, scf.IfOp):
            condition = known.analyze(parent.cond)
            region = inner.parent_region()
            is_first = region is parent.true_region
            factors.append(None if condition is None else int(bool(condition) is is_first))
        elif isinstance(parent, SegmentOp):
            factors += [constant_int(size) for size in parent.sizes]
        elif not isinstance(parent, HerdOp) and parent.name not in _ONCE:
            factors.append(None)
        inner = parent
    return None


def _known_on(core: HerdCore | None) -> IndexAnalysis[int]:
    """Numbers, with the coordinates of a core."""
    return NUMBERS if core is None else replace(NUMBERS, known_value=core.ids.get)


def _trips(low: int | None, high: int | None, step: int | None) -> int | None:
    if low is None or high is None or step is None or step < 1:
        return None
    return max(0, -((low - high) // step))


# ---- the loop ----


def _prolong(group: Sequence[Operation], times: Fraction) -> None:
    """Give a loop that is the whole group, and does the same in each trip, so many times its trips."""
    loop = group[0]
    if len(group) > 1 or not isinstance(loop, scf.ForOp) or loop.body.block.args[0].uses:
        return
    low, high, step = (NUMBERS.analyze(bound) for bound in (loop.lb, loop.ub, loop.step))
    trips = _trips(low, high, step)
    if low is None or step is None or trips is None or (times * trips).denominator > 1:
        return
    end = ConstantOp(IntegerAttr(low + int(times * trips) * step, IndexType()))
    end.location = loop.location
    assert loop.parent is not None
    loop.parent.insert_op_before(end, loop)
    loop.operands[1] = end.result


def _repeat(group: Sequence[Operation], times: int) -> None:
    """Put a loop around a group. It carries a token where operations outside wait for some of the group."""
    first, location = group[0], group[0].location
    block = first.parent
    assert block is not None
    tokens = [result for op in group for result in op.results]
    leaving = [token for token in tokens if any(_outside(use.operation, group) for use in token.uses)]
    if any(not isinstance(token.type, AsyncTokenType) for token in leaving):
        return
    late = {value.owner for op in group for value in _operands(op) if _is_late(value, first, group)}
    if not all(isinstance(owner, ConstantOp) for owner in late):
        return
    for owner in late:
        assert isinstance(owner, Operation)
        owner.detach()  # type: ignore[no-untyped-call]
        block.insert_op_before(owner, first)
    zero, many, one = (ConstantOp(IntegerAttr(n, IndexType())) for n in (0, times, 1))
    inner = Block(arg_types=[IndexType(), *[AsyncTokenType()] * bool(leaving)])
    begin = [WaitAllOp.build(operands=[[]], result_types=[AsyncTokenType()])] if leaving else []
    loop = scf.ForOp(zero, many, one, [op.results[0] for op in begin], Region(inner))
    new_ops: list[Operation] = [zero, many, one, *begin, loop]
    for op in new_ops:
        block.insert_op_before(op, first)
    for token in leaving:
        for use in [use for use in token.uses if _outside(use.operation, group)]:
            use.operation.operands[use.index] = loop.results[0]
    for op in group:
        op.detach()  # type: ignore[no-untyped-call]
        inner.add_op(op)
    end: list[Operation] = []
    if leaving:
        end.append(WaitAllOp.build(operands=[[*leaving, inner.args[1]]], result_types=[AsyncTokenType()]))
    end.append(scf.YieldOp(*[op.results[0] for op in end]))
    inner.add_ops(end)
    for op in (*new_ops, *end):
        op.location = location


def _operands(op: Operation) -> Iterator[SSAValue]:
    for inner in walk(op):
        yield from inner.operands


def _outside(op: Operation, group: Sequence[Operation]) -> bool:
    return not any(parent in group for parent in (op, *parent_ops(op)))


def _is_late(value: SSAValue, first: Operation, group: Sequence[Operation]) -> bool:
    """Whether a value is made between the first operation of a group and the last, but not by the group."""
    owner = value.owner
    if not isinstance(owner, Operation) or owner in group or owner.parent is not first.parent:
        return False
    return first.is_before_in_block(owner)
