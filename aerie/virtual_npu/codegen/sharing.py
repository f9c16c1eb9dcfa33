"""Which cores share an L1 buffer, and which each have a copy.

An L1 buffer that is allocated outside of herds is one for all cores that use it, or one for each. It is
mlir-air that decides (AIRToAIEPass.cpp): cores of several herds share it; those of one herd do where data
goes from one to another through it (`herdBufferHasCrossCoreDependence` in Util.cpp): a core reads what others
write, and writes nothing; else each has a copy. Reads and writes are found per tile: each core takes one
branch of an `scf.if` or `scf.index_switch` that compares coordinates with numbers. All other branches count
as taken. Of a function that is called behind such a branch, the last memref is written, others are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import NamedTuple

from xdsl.dialects import arith, func, memref, scf
from xdsl.dialects.builtin import AffineMapAttr, DenseArrayBase, IntegerAttr, MemRefType, NoneAttr, VectorType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr

from aerie.air_dialect.effects import ACCESSES, READ, VIEWS, WRITE, Effect, memory_effects
from aerie.air_dialect.index_constants import NUMBERS, constant_int
from aerie.air_dialect.index_expressions import (
    IndexAnalysis,
    defining_expr,
    literal_constant,
    mixed_values,
)
from aerie.air_dialect.index_intervals import INTERVALS, Interval
from aerie.air_dialect.index_operators import COMPARISONS, IndexRange
from aerie.air_dialect.ops import (
    ChannelTransferOp,
    DmaMemcpyNdOp,
    ExecuteOp,
    ExecuteTerminatorOp,
    HerdOp,
    LaunchOp,
    MemorySpace,
    SegmentOp,
    memory_space,
)
from aerie.air_dialect.values import resolve_alias, walk
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.effects import index_ranges
from aerie.virtual_npu.codegen.op_errors import attribute

PERSISTENT = "vnpu.lasting"
"""The attribute of the allocation of a core's L1 buffer that outlives launches
(passes/hoist_l1_buffers.py)."""
COUNTER = "vnpu.counter"
"""The attribute of one whose first contents, zeros, are meant."""


class HerdUse(NamedTuple):
    """A herd that captures a buffer, and the name that the buffer has in it."""

    herd: HerdOp
    buffer: SSAValue


class HerdCore(NamedTuple):
    """A core of a herd."""

    herd: HerdOp
    at: tuple[int, ...]
    """Its coordinates: column, row."""

    @property
    def ids(self) -> dict[SSAValue, int]:
        """The coordinates by their names in the herd."""
        return dict(zip(self.herd.ids, self.at, strict=True))


@dataclass
class CoreAccesses:
    """What one core does to a buffer, in the order of the text."""

    core: HerdCore
    reads: list[Operation] = field(default_factory=list)
    writes: list[Operation] = field(default_factory=list)


# ---- who uses a buffer ----


def is_in(value: SSAValue, space: MemorySpace) -> bool:
    """Whether a value is a memref in a memory of the NPU's."""
    type_ = value.type
    is_ours = isinstance(type_, MemRefType) and isinstance(type_.memory_space, IntegerAttr | NoneAttr)
    return is_ours and memory_space(type_) == space


def herds_using(buffer: SSAValue) -> list[HerdUse]:
    """The herds that capture a buffer; none where other operations use it too."""
    herds: list[HerdUse] = []
    pending = [buffer]
    while pending:
        value = pending.pop()
        for use in value.uses:
            user = use.operation
            if isinstance(user, HerdOp):
                pairs = zip(user.kernel_args, user.kernel_operands, strict=True)
                herds += [HerdUse(user, argument) for argument, operand in pairs if operand is value]
            elif isinstance(user, LaunchOp | SegmentOp):
                pairs = zip(user.kernel_args, user.kernel_operands, strict=True)
                pending += [argument for argument, operand in pairs if operand is value]
            elif isinstance(user, ExecuteTerminatorOp):
                around = user.parent_op()
                assert isinstance(around, ExecuteOp)
                pending.append(around.values[use.index])
            elif user.name != "memref.dealloc":
                return []
    return herds


def cores_of(herd: HerdOp) -> list[HerdCore]:
    """All cores of a herd."""
    extents = [constant_int(size) or 0 for size in herd.sizes]
    return [HerdCore(herd, at) for at in product(*map(range, extents))]


# ---- what each core does ----


def accesses_of(use: HerdUse, *, of_several: bool = False) -> list[CoreAccesses]:
    """What the cores of a herd do to a buffer; those that do nothing are left out.

    of_several: whether other herds have the buffer too, so that it is one for all cores. Otherwise a call
    that all cores make tells nothing.
    """
    by_core = [CoreAccesses(core) for core in cores_of(use.herd)]
    names = _names(use)
    for op in walk(use.herd):
        touched = [
            (position, effect) for position, effect in memory_effects(op) if op.operands[position] in names
        ]
        if not touched:
            continue
        on = [each for each in by_core if is_reached(op, each.core)]
        is_call = isinstance(op, func.CallOp)
        if is_call and not of_several and len(on) == len(by_core):
            continue  # all cores do the same with copies of their own
        for each in on:
            if any(_has_effect(WRITE, op, position, effect, is_call) for position, effect in touched):
                each.writes.append(op)
            if any(_has_effect(READ, op, position, effect, is_call) for position, effect in touched):
                each.reads.append(op)
    return [each for each in by_core if each.reads or each.writes]


def _has_effect(kind: Effect, op: Operation, position: int, effect: Effect, is_call: bool) -> bool:
    if not is_call:
        return kind in effect
    memrefs = [i for i, value in enumerate(op.operands) if isinstance(value.type, MemRefType)]
    return (position == memrefs[-1]) is (kind is WRITE)


def _names(use: HerdUse) -> set[SSAValue]:
    """The buffer in a herd, and its views."""
    names = {use.buffer}
    for op in walk(use.herd):
        if op.name in VIEWS and op.operands[0] in names:
            names.add(op.results[0])
        names.update(result for result in op.results if resolve_alias(result) in names)
    return names


def is_reached(op: Operation, core: HerdCore) -> bool:
    """Whether a core may come to an operation of its herd."""
    region, around = op.parent_region(), op.parent_op()
    while around is not None and around is not core.herd:
        taken = _taken(around, core)
        if taken is not None and around.regions[taken] is not region:
            return False
        region, around = around.parent_region(), around.parent_op()
    return True


def _taken(branch: Operation, core: HerdCore) -> int | None:
    """Which region of a branch is entered; None for what is no branch, or where that is not known."""
    if isinstance(branch, scf.IfOp):
        holds = _holds(branch.cond, core.ids)
        return None if holds is None else int(not holds)
    if branch.name == "scf.index_switch":
        selector, cases = _known(branch.operands[0], core.ids), attribute(branch, "cases")
        assert isinstance(cases, DenseArrayBase)
        values = list(cases.get_values())
        return None if selector is None else values.index(selector) + 1 if selector in values else 0
    return None


def _known(value: SSAValue, ids: Mapping[SSAValue, int]) -> int | None:
    return ids[value] if value in ids else literal_constant(value)


def _holds(condition: SSAValue, ids: Mapping[SSAValue, int]) -> bool | None:
    """Whether a condition holds for a core; None for those that mlir-air does not look into."""
    owner = condition.owner
    if isinstance(owner, arith.CmpiOp):
        sides = [_known(side, ids) for side in owner.operands]
        if None in sides:
            return None
        found = NUMBERS.apply(COMPARISONS[owner.predicate.value.data], sides)
        return None if found is None else found != 0
    constant = literal_constant(condition)
    if isinstance(owner, arith.IndexCastOp):
        constant = _known(owner.operands[0], ids)
    return None if constant is None else constant != 0


# ---- the rule ----


def are_shared(uses: Sequence[HerdUse]) -> bool:
    """Whether the cores that use a buffer have it together, as their reads and writes tell."""
    if len(herd_names(uses)) > 1:
        return True
    found = [each for use in uses for each in accesses_of(use)]
    writers = {each.core.at for each in found if each.writes}
    readers = {each.core.at for each in found if each.reads}
    return bool(writers) and bool(readers - writers)


def herd_names(uses: Sequence[HerdUse]) -> set[object]:
    """The herds by name: those of one name are phases of the same cores."""
    return {use.herd.sym_name or id(use.herd) for use in uses}


def tile_copies(buffer: SSAValue) -> int:
    """How many copies of a buffer that is allocated outside of herds there are: one, or one per core.

    Where each core keeps to a part of its own, one buffer for all does as well.
    """
    if not is_in(buffer, MemorySpace.L1):
        return 1
    uses = herds_using(buffer)
    is_alone = isinstance(buffer.owner, Operation) and PERSISTENT in buffer.owner.attributes
    grids = {tuple(constant_int(size) for size in use.herd.sizes) for use in uses}
    if len(grids) != 1 or None in next(iter(grids)):
        return 1
    if not is_alone and (are_shared(uses) or _keep_apart(uses)):
        return 1
    return prod(size for size in next(iter(grids)) if size is not None)


def _keep_apart(uses: Sequence[HerdUse]) -> bool:
    """Whether no two cores touch the same element, as far as the indices of each dimension tell.

    uses: of herds with the same grid. Two cores that meet end the search: most buffers are the same for all.
    """
    boxes: list[Box] = []
    ranges = [_ranges_on_all_cores(use) for use in uses]
    for core in cores_of(uses[0].herd):
        of_uses = zip(uses, ranges, strict=True)
        box = _around([_box(use, HerdCore(use.herd, core.at), known) for use, known in of_uses])
        if any(_meet(box, other) for other in boxes):
            return False
        boxes.append(box)
    return True


Box = list[Interval]
"""Of each dimension of a buffer, the first and the last index that a core uses."""


Ranges = dict[SSAValue, Interval | None]


def _ranges_on_all_cores(use: HerdUse) -> Ranges:
    """The ranges of the indices of a buffer that are numbers, or variables of loops from number to number."""
    users = (each.operation for each in use.buffer.uses)
    indices = {value for op in users for value in op.operands if value is not use.buffer}
    return {value: INTERVALS.analyze(value) for value in indices if _is_same_on_all_cores(value)}


def _is_same_on_all_cores(value: SSAValue) -> bool:
    found = defining_expr(value)
    if isinstance(found, IndexRange):
        bounds = [bound for bound in found[:3] if not isinstance(bound, int)]
        return all(isinstance(bound, SSAValue) and literal_constant(bound) is not None for bound in bounds)
    return isinstance(found, int)


def _box(use: HerdUse, core: HerdCore, known: Ranges) -> Box:
    """What a core touches of a buffer, through views too, which lie in what they are views of.

    known: ranges of indices that are the same on all cores.
    """
    ids = core.ids
    known = {value: found for value, found in known.items() if value not in ids}
    ranges = replace(
        INTERVALS, known_value=lambda value: (ids[value],) * 2 if value in ids else None, results=known
    )
    assert isinstance(use.buffer.type, MemRefType)
    shape = use.buffer.type.get_shape()
    boxes = []
    for op in (each.operation for each in use.buffer.uses):
        touched = list(_touched(op, use.buffer, ranges))
        whole = [(0, extent - 1) for extent in shape]
        if len(touched) != len(shape):
            return whole
        boxes.append([all_ if part is None else part for part, all_ in zip(touched, whole, strict=True)])
    return _around(boxes)


def _touched(op: Operation, buffer: SSAValue, ranges: IndexAnalysis[Interval]) -> Iterator[Interval | None]:
    """The indices of each dimension that an operation uses; nothing where it may be all of them."""
    assert isinstance(buffer.type, MemRefType)
    if isinstance(op, memref.SubviewOp) and op.source is buffer:
        lists = (op.static_offsets, op.offsets), (op.static_sizes, op.sizes), (op.static_strides, op.strides)
        for begin, size, step in zip(
            *(mixed_values(static.get_values(), values) for static, values in lists), strict=True
        ):
            many, by = ranges.analyze_term(size), ranges.analyze_term(step)
            yield _reach(ranges.analyze_term(begin), many and by and (many[1] - 1) * by[1])
    elif isinstance(op, DmaMemcpyNdOp | ChannelTransferOp):
        for begins, extents, steps in _patterns(op, buffer):
            is_along = [constant_int(step) for step in steps] == types.memref_strides(buffer.type)
            if is_along and len(begins) == len(steps):
                yield from map(_part, map(ranges.analyze, begins), map(ranges.analyze, extents))
    elif op.name in ACCESSES and op.operands[ACCESSES[op.name][0]] is buffer:
        yield from map(_reach, *_accessed(op, buffer, ranges))


def _patterns(
    op: DmaMemcpyNdOp | ChannelTransferOp, buffer: SSAValue
) -> Iterator[Sequence[Sequence[SSAValue]]]:
    """Offsets, sizes and strides of each side of a transfer that is the buffer's."""
    if isinstance(op, ChannelTransferOp):
        yield op.offsets, op.sizes, op.strides
    else:
        sides = [
            (op.dst_offsets, op.dst_sizes, op.dst_strides),
            (op.src_offsets, op.src_sizes, op.src_strides),
        ]
        yield from (side for side, memref in zip(sides, (op.dst, op.src), strict=True) if memref is buffer)


def _accessed(
    op: Operation, buffer: SSAValue, ranges: IndexAnalysis[Interval]
) -> tuple[list[Interval | None], list[int]]:
    """The index of a load or store in each dimension, and the number of elements behind it."""
    assert isinstance(buffer.type, MemRefType)
    rank = buffer.type.get_num_dims()
    begins = index_ranges(op, rank, ranges)
    moved = op.results[0].type if op.results else op.operands[0].type
    shape = list(moved.get_shape()) if isinstance(moved, VectorType) else []
    dims: list[int | None] = list(range(rank - len(shape), rank))
    order = op.properties.get("permutation_map")
    if isinstance(order, AffineMapAttr):
        dims = [each.position if isinstance(each, AffineDimExpr) else None for each in order.data.results]
    reach = [0] * rank
    for dim, extent in zip(dims, shape, strict=True):
        if dim is not None:
            reach[dim] = extent - 1
    return begins, reach


def _part(begin: Interval | None, extent: Interval | None) -> Interval | None:
    return _reach(begin, None if extent is None else extent[1] - 1)


def _reach(begin: Interval | None, behind: int | None) -> Interval | None:
    return None if begin is None or behind is None else (begin[0], begin[1] + behind)


def _around(boxes: Sequence[Box]) -> Box:
    """The smallest box around several; one without dimensions where there are none."""
    return [(min(low for low, _ in dim), max(high for _, high in dim)) for dim in zip(*boxes, strict=True)]


def _meet(one: Box, other: Box) -> bool:
    """Whether two boxes may have an element in common."""
    return all(a[0] <= b[1] and b[0] <= a[1] for a, b in zip(one, other, strict=False))
