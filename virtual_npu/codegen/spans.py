"""Which part of a buffer a transfer touches, over all tiles and iterations, by interval arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from air_dialect.ops import ChannelTransferOp, DmaMemcpyNdOp
from virtual_npu.codegen.intervals import Interval, add, interval, multiply


def transfer_span(op: Operation, buffer: SSAValue, writes: bool) -> Interval | None:
    """First and last element that a DMA or channel operation touches; None where that is not known."""
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
