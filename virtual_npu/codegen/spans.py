"""Which part of a buffer an operation touches, over all tiles and iterations, by interval arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import memref
from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType, VectorType
from xdsl.ir import Operation, OpResult, SSAValue

from air_dialect.ops import ChannelTransferOp, DmaMemcpyNdOp
from virtual_npu.codegen import types
from virtual_npu.codegen.intervals import Interval, add, interval, multiply

PLAIN = {
    "memref.load": 1, "memref.store": 2, "vector.load": 1, "vector.store": 2, "vector.transfer_read": 1,
    "vector.transfer_write": 2,
}  # fmt: skip
"""Operations with an index per dimension, and how many operands come before the first index."""


def span(op: Operation, buffer: SSAValue, writes: bool) -> Interval | None:
    """First and last element of a memref that an operation touches; None where that is not known."""
    found = _plain_span(op, buffer) if op.name in PLAIN else _transfer_span(op, buffer, writes)
    return _whole_span(buffer) if found is None else found


def _whole_span(buffer: SSAValue) -> Interval | None:
    """All of a memref whose type tells its extents and strides."""
    assert isinstance(buffer.type, MemRefType)
    sizes, strides = buffer.type.get_shape(), types.memref_strides(buffer.type)
    if types.DYNAMIC in (*sizes, *strides):
        return None
    return 0, sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def _transfer_span(op: Operation, buffer: SSAValue, writes: bool) -> Interval | None:
    if isinstance(op, ChannelTransferOp):
        return _span(op.offsets, op.sizes, op.strides)
    if isinstance(op, DmaMemcpyNdOp) and writes and op.dst is buffer:
        return _span(op.dst_offsets, op.dst_sizes, op.dst_strides)
    if isinstance(op, DmaMemcpyNdOp) and not writes and op.src is buffer:
        return _span(op.src_offsets, op.src_sizes, op.src_strides)
    return None


def joined(left: Interval | None, right: Interval | None) -> Interval | None:
    """The smallest interval around both; None, the whole buffer, if one of them is."""
    if left is None or right is None:
        return None
    return min(left[0], right[0]), max(left[1], right[1])


def shift(view: SSAValue) -> Interval | None:
    """How far the first element of a view lies behind that of its source, in elements; None if not known."""
    assert isinstance(view, OpResult)
    op = view.op
    if not isinstance(op, memref.SubviewOp):
        is_same_place = op.name not in ("memref.view", "memref.reinterpret_cast", "memref.transpose")
        return (0, 0) if is_same_place else None
    assert isinstance(op.source.type, MemRefType)
    dynamic = iter(op.offsets)
    offsets = [
        interval(next(dynamic)) if number == DYNAMIC_INDEX else (int(number), int(number))
        for number in op.static_offsets.get_values()
    ]
    return _walked(offsets, types.memref_strides(op.source.type))


def _plain_span(op: Operation, buffer: SSAValue) -> Interval | None:
    type_ = buffer.type
    assert isinstance(type_, MemRefType)
    strides, first = types.memref_strides(type_), PLAIN[op.name]
    begin = _walked([interval(value) for value in op.operands[first : first + len(strides)]], strides)
    moved = op.results[0].type if op.results else op.operands[0].type
    shape = list(moved.get_shape()) if isinstance(moved, VectorType) else []
    if begin is None or types.DYNAMIC in strides or len(shape) > len(strides):
        return None
    # Whatever the permutation, a transfer moves at most so far in every dimension, and stays in the memref.
    if op.name.startswith("vector.transfer"):
        shape = [max(shape, default=1)] * len(strides)
    extents = [1] * (len(strides) - len(shape)) + shape
    reach = sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True))
    whole = _whole_span(buffer)
    return (max(0, begin[0]), min(begin[1] + reach, whole[1])) if whole is not None else None


def _walked(offsets: Sequence[Interval | None], strides: Sequence[int]) -> Interval | None:
    """Where an index per dimension leads; None where one of them is not known."""
    found: Interval = (0, 0)
    for offset, stride in zip(offsets, strides, strict=True):
        if offset is None or stride == types.DYNAMIC:
            return None
        found = add(found, multiply(offset, (stride, stride)))
    return found


def _span(
    offsets: Sequence[SSAValue], sizes: Sequence[SSAValue], strides: Sequence[SSAValue]
) -> Interval | None:
    lists = [[interval(value) for value in values] for values in (offsets, sizes, strides)]
    if not sizes or len(offsets) > len(strides) or any(None in values for values in lists):
        return None
    known = [[value for value in values if value is not None] for values in lists]
    span: Interval = (0, 0)
    aligned = known[2][len(strides) - len(offsets) :]
    for offset, stride in zip(known[0], aligned, strict=True):
        span = add(span, multiply(offset, stride))
    for (_, size), stride in zip(known[1], known[2], strict=True):
        span = add(span, multiply((0, size - 1), stride))
    return span
