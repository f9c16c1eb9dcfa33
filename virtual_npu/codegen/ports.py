"""The puts and gets in the text of a body, for the report of a deadlock: who could still do what."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineSymExpr,
)

from air_dialect.ops import ChannelTransferOp, HierarchyOp
from virtual_npu.codegen.body import attribute, line_of
from virtual_npu.codegen.spans import interval

MOST_DIMENSIONS = 4
"""`Port::kMaxRank` in include/vnpu/base.h."""

Linear = tuple[int, int, int]
"""constant, factor of the coordinate x, factor of the coordinate y"""


def ports_of(op: Operation) -> list[str]:
    """C++ text of a `vnpu::Port` for every put and get that the body of an operation has itself."""
    return [_port(op, transfer) for transfer in _own_transfers(op)]


def _own_transfers(op: Operation) -> Iterator[ChannelTransferOp]:
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                if isinstance(inner, ChannelTransferOp):
                    yield inner
                elif not isinstance(inner, HierarchyOp):
                    yield from _own_transfers(inner)


def _port(op: Operation, transfer: ChannelTransferOp) -> str:
    indices = ", ".join(_index(op, value) for value in transfer.indices[:MOST_DIMENSIONS])
    is_put = str(transfer.name == "air.channel.put").lower()
    return f'{{"@{transfer.chan_name}", {line_of(transfer)}, {is_put}, {{{indices}}}}}'


def _index(op: Operation, value: SSAValue) -> str:
    found = _linear(op, value)
    return "{false, 0, 0, 0}" if found is None else f"{{true, {found[0]}, {found[1]}, {found[2]}}}"


def _linear(op: Operation, value: SSAValue) -> Linear | None:
    """A value as a linear function of the coordinates of the point that executes; None where it is not."""
    if isinstance(op, HierarchyOp) and value in op.ids:
        return (0, 1, 0) if value is op.ids[0] else (0, 0, 1)
    found = interval(value)
    if found is not None and found[0] == found[1]:
        return found[0], 0, 0
    if not isinstance(value, OpResult):
        return None
    operands = [_linear(op, operand) for operand in value.op.operands]
    known = [operand for operand in operands if operand is not None]
    return _of_result(value.op, known) if len(known) == len(operands) else None


def _of_result(op: Operation, operands: list[Linear]) -> Linear | None:
    map_ = attribute(op, "map")
    if op.name == "affine.apply" and isinstance(map_, AffineMapAttr):
        return _of_expression(map_.data.results[0], operands, map_.data.num_dims)
    if op.name in ("arith.addi", "index.add"):
        return _add(operands[0], operands[1])
    if op.name in ("arith.subi", "index.sub"):
        return _add(operands[0], _scale(operands[1], -1))
    if op.name in ("arith.muli", "index.mul"):
        return _multiply(operands[0], operands[1])
    return None


def _of_expression(expr: AffineExpr, operands: list[Linear], dims: int) -> Linear | None:
    if isinstance(expr, AffineConstantExpr):
        return expr.value, 0, 0
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


def _add(left: Linear, right: Linear) -> Linear:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]


def _scale(value: Linear, factor: int) -> Linear:
    return value[0] * factor, value[1] * factor, value[2] * factor


def _multiply(left: Linear, right: Linear) -> Linear | None:
    if left[1:] == (0, 0):
        return _scale(right, left[0])
    return _scale(left, right[0]) if right[1:] == (0, 0) else None
