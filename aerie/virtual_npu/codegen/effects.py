"""The memrefs that an operation and its regions read and write outside of it, and which part of each.

The part is known over all tiles and iterations, by the ranges of the indices (air_dialect.readings).
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import memref
from xdsl.dialects.builtin import AffineMapAttr, MemRefType, VectorType
from xdsl.ir import Operation, OpResult, SSAValue

from aerie.air_dialect.effects import ACCESSES, VIEWS, accesses
from aerie.air_dialect.index_expressions import IndexAnalysis, mixed_values
from aerie.air_dialect.index_intervals import INTERVALS, Interval, add, interval, multiply
from aerie.air_dialect.ops import ChannelTransferOp, DmaMemcpyNdOp, HierarchyOp
from aerie.air_dialect.values import is_defined_in, walk
from aerie.virtual_npu.codegen import types

MemoryAccess = tuple[SSAValue, bool, Interval | None]
"""A memref, whether it is written, and the first and last element that is accessed (None: any)."""


CHANNEL_TRANSFERS = frozenset(("air.channel.put", "air.channel.get"))
"""The names of ChannelTransferOp: walks of whole programs compare them, for classes of xDSL take long to."""


def channels_used(op: Operation) -> list[str]:
    """The names of the channels that an operation and everything in it use, in order of appearance."""
    transfers = [inner for inner in walk(op) if inner.name in CHANNEL_TRANSFERS]
    return list(dict.fromkeys(inner.chan_name for inner in transfers if isinstance(inner, ChannelTransferOp)))


def operand_effects(op: Operation) -> list[MemoryAccess]:
    """The effects of `op`, and of everything in it, on memrefs that are defined outside of it."""
    effects: dict[tuple[SSAValue, bool], Interval | None] = {}
    outside: dict[SSAValue, SSAValue] = {}
    for inner in walk(op):
        if isinstance(inner, HierarchyOp):
            outside.update(zip(inner.kernel_args, inner.kernel_operands, strict=True))
    for inner in walk(op):
        for value, writes in accesses(inner):
            root, touched = _outermost(op, value, _accessed(inner, value, writes), outside)
            if inner is op or not is_defined_in(op, root):
                key = root, writes
                effects[key] = _joined(effects[key], touched) if key in effects else touched
    return [(root, writes, touched) for (root, writes), touched in effects.items()]


def _outermost(
    op: Operation, value: SSAValue, touched: Interval | None, outside: dict[SSAValue, SSAValue]
) -> tuple[SSAValue, Interval | None]:
    """What a memref in `op` is, or looks at, outside of it, and what is touched counted from there."""
    while not any(operand is value for operand in op.operands):
        if value in outside:
            value = outside[value]
        elif isinstance(value, OpResult) and value.op.name in VIEWS and is_defined_in(op, value):
            step = _shift(value)
            touched = add(touched, step) if touched is not None and step is not None else None
            value = value.op.operands[0]
        else:
            break
    return value, touched


# ---- which elements are touched ----


def _joined(lhs: Interval | None, rhs: Interval | None) -> Interval | None:
    """The smallest interval around both; None, the whole buffer, if one of them is."""
    if lhs is None or rhs is None:
        return None
    return min(lhs[0], rhs[0]), max(lhs[1], rhs[1])


def _accessed(op: Operation, buffer: SSAValue, writes: bool) -> Interval | None:
    """First and last element of a memref that an operation touches; None where that is not known."""
    found = _of_access(op, buffer) if op.name in ACCESSES else _of_transfer(op, buffer, writes)
    return _whole_interval(buffer) if found is None else found


def _whole_interval(buffer: SSAValue) -> Interval | None:
    """All of a memref whose type gives its extents and strides."""
    assert isinstance(buffer.type, MemRefType)
    sizes, strides = buffer.type.get_shape(), types.memref_strides(buffer.type)
    if types.DYNAMIC in (*sizes, *strides):
        return None
    return 0, sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def _of_access(op: Operation, buffer: SSAValue) -> Interval | None:
    type_ = buffer.type
    assert isinstance(type_, MemRefType)
    strides = types.memref_strides(type_)
    begin = _walked(index_ranges(op, len(strides)), strides)
    moved = op.results[0].type if op.results else op.operands[0].type
    shape = list(moved.get_shape()) if isinstance(moved, VectorType) else []
    if begin is None or types.DYNAMIC in strides or len(shape) > len(strides):
        return None
    # Whatever the permutation, a transfer moves at most so far in every dimension, and stays in the memref.
    if op.name.startswith("vector.transfer"):
        shape = [max(shape, default=1)] * len(strides)
    extents = [1] * (len(strides) - len(shape)) + shape
    reach = sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True))
    whole = _whole_interval(buffer)
    return (max(0, begin[0]), min(begin[1] + reach, whole[1])) if whole is not None else None


def index_ranges(
    op: Operation, rank: int, ranges: IndexAnalysis[Interval] = INTERVALS
) -> list[Interval | None]:
    """The ranges of the indices of an access, one per dimension of its memref, as a reading has them."""
    first, map_ = ACCESSES[op.name][0] + 1, op.properties.get("map")
    if isinstance(map_, AffineMapAttr):
        return ranges.analyze_map(map_.data, op.operands[first:])
    return [ranges.analyze(value) for value in op.operands[first : first + rank]]


def _of_transfer(op: Operation, buffer: SSAValue, writes: bool) -> Interval | None:
    if isinstance(op, ChannelTransferOp):
        return _of_pattern(op.offsets, op.sizes, op.strides)
    if isinstance(op, DmaMemcpyNdOp) and writes and op.dst is buffer:
        return _of_pattern(op.dst_offsets, op.dst_sizes, op.dst_strides)
    if isinstance(op, DmaMemcpyNdOp) and not writes and op.src is buffer:
        return _of_pattern(op.src_offsets, op.src_sizes, op.src_strides)
    return None


def _of_pattern(
    offsets: Sequence[SSAValue], sizes: Sequence[SSAValue], strides: Sequence[SSAValue]
) -> Interval | None:
    lists = [[interval(value) for value in values] for values in (offsets, sizes, strides)]
    if not sizes or len(offsets) > len(strides) or any(None in values for values in lists):
        return None
    known = [[value for value in values if value is not None] for values in lists]
    total: Interval = (0, 0)
    aligned = known[2][len(strides) - len(offsets) :]
    for offset, stride in zip(known[0], aligned, strict=True):
        total = add(total, multiply(offset, stride))
    for (_, size), stride in zip(known[1], known[2], strict=True):
        total = add(total, multiply((0, size - 1), stride))
    return total


def _shift(view: SSAValue) -> Interval | None:
    """How far the first element of a view lies behind that of its source, in elements; None if not known."""
    assert isinstance(view, OpResult)
    op = view.op
    if not isinstance(op, memref.SubviewOp):
        is_same_place = op.name not in ("memref.view", "memref.reinterpret_cast", "memref.transpose")
        return (0, 0) if is_same_place else None
    assert isinstance(op.source.type, MemRefType)
    offsets = mixed_values(op.static_offsets.get_values(), op.offsets)
    ranges = [(each, each) if isinstance(each, int) else interval(each) for each in offsets]
    return _walked(ranges, types.memref_strides(op.source.type))


def _walked(offsets: Sequence[Interval | None], strides: Sequence[int]) -> Interval | None:
    """Where an index per dimension leads; None where one of them is not known."""
    total: Interval = (0, 0)
    for offset, stride in zip(offsets, strides, strict=True):
        if offset is None or stride == types.DYNAMIC:
            return None
        total = add(total, multiply(offset, (stride, stride)))
    return total
