"""Which part of a buffer a transfer touches, over all tiles and iterations, by interval arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import AffineMapAttr, IntegerAttr
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineSymExpr,
)

from air_dialect.ops import ChannelTransferOp, DmaMemcpyNdOp, HierarchyOp

Interval = tuple[int, int]
"""The smallest and the largest value, both included."""


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
        span = _add(span, _multiply(offset, stride))
    for (_, size), stride in zip(known[1], known[2], strict=True):
        span = _add(span, _multiply((0, size - 1), stride))
    return span


def interval(value: SSAValue) -> Interval | None:
    """The values that an index can take; None where that is not known."""
    if isinstance(value, OpResult):
        return _of_result(value.op)
    owner = value.owner
    around = owner.parent_op() if isinstance(owner, Block) else None
    if isinstance(around, HierarchyOp):
        return _of_hierarchy_argument(around, value)
    if isinstance(around, scf.ForOp) and value is around.body.block.args[0]:
        low, high = interval(around.lb), interval(around.ub)
        return (low[0], max(low[0], high[1] - 1)) if low and high else None
    return None


def _of_hierarchy_argument(op: HierarchyOp, value: SSAValue) -> Interval | None:
    for index, size in zip(op.ids, op.sizes, strict=True):
        if index is value:
            extent = interval(size)
            return (0, max(0, extent[1] - 1)) if extent else None
    inner, outer = (*op.size_args, *op.kernel_args), (*op.sizes, *op.kernel_operands)
    return next(interval(b) for a, b in zip(inner, outer, strict=True) if a is value)


def _of_result(op: Operation) -> Interval | None:
    constant = op.properties.get("value")
    if op.name in ("arith.constant", "index.constant") and isinstance(constant, IntegerAttr):
        return constant.value.data, constant.value.data
    operands = [interval(operand) for operand in op.operands]
    known = [operand for operand in operands if operand is not None]
    if len(known) != len(operands):
        return None
    map_ = op.properties.get("map")
    if op.name == "affine.apply" and isinstance(map_, AffineMapAttr):
        return _of_expression(map_.data.results[0], known, map_.data.num_dims)
    if op.name in ("arith.addi", "index.add"):
        return _add(*known)
    if op.name in ("arith.muli", "index.mul"):
        return _multiply(*known)
    return None


def _of_expression(expr: AffineExpr, operands: Sequence[Interval], dims: int) -> Interval | None:
    if isinstance(expr, AffineConstantExpr):
        return expr.value, expr.value
    if isinstance(expr, AffineDimExpr):
        return operands[expr.position]
    if isinstance(expr, AffineSymExpr):
        return operands[dims + expr.position]
    assert isinstance(expr, AffineBinaryOpExpr)
    left, right = (_of_expression(side, operands, dims) for side in (expr.lhs, expr.rhs))
    if left is None or right is None:
        return None
    if expr.kind is AffineBinaryOpKind.Add:
        return _add(left, right)
    return _multiply(left, right) if expr.kind is AffineBinaryOpKind.Mul else None


def _add(left: Interval, right: Interval) -> Interval:
    return left[0] + right[0], left[1] + right[1]


def _multiply(left: Interval, right: Interval) -> Interval:
    products = [a * b for a in left for b in right]
    return min(products), max(products)
