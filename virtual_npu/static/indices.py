"""What an index can be: the values it takes side by side, and what divides them all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects import affine, arith
from xdsl.ir import Block, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineSymExpr,
)

from virtual_npu.static.spaces import Bound, Space, number, space_of_variable
from virtual_npu.static.values import constant, origin


def extent_of(leaf: SSAValue) -> int:
    """How many values run side by side: tile ids, unrolled segments, parallel loops; another loop is one."""
    values = side_by_side(leaf)
    return 1 if values is None else max(1, length(values))


def length(values: range) -> int:
    """How many there are; `len` refuses more than a machine word counts."""
    return max(0, -(-(values.stop - values.start) // values.step))


def side_by_side(value: SSAValue) -> range | None:
    """The values that an index takes at the same time in space; None where they are not known."""
    constant_ = constant(value)
    if constant_ is not None:
        return range(constant_, constant_ + 1)
    space = space_of_variable(value)
    return space.values() if space is not None and space.parallel else None


def multiple(value: SSAValue) -> int:
    """The largest number known to divide an index; 0 where it is 0."""
    number = constant(value)
    if number is not None:
        return abs(number)
    value = origin(value)
    owner = value.owner
    if isinstance(owner, Block):
        return _variable_multiple(space_of_variable(value))
    if isinstance(owner, affine.ApplyOp):
        return _expression_multiple(owner.map.data.results[0], owner.mapOperands, owner.map.data.num_dims)
    if isinstance(owner, arith.MuliOp):
        return multiple(owner.lhs) * multiple(owner.rhs)
    if isinstance(owner, arith.AddiOp | arith.SubiOp):
        return math.gcd(multiple(owner.lhs), multiple(owner.rhs))
    if isinstance(owner, arith.IndexCastOp):
        return multiple(owner.input)
    return 1


def _variable_multiple(space: Space | None) -> int:
    """Of a loop's variable or a coordinate: 0 where it is only ever 0."""
    if space is None:
        return 1
    values = space.values()
    if values is not None and length(values) <= 1:
        return _bound_multiple(space.low)
    return math.gcd(_bound_multiple(space.low), _bound_multiple(space.step))


def _bound_multiple(bound: Bound) -> int:
    known = number(bound)
    if known is not None:
        return abs(known)
    return multiple(bound) if isinstance(bound, SSAValue) else 1


def is_regular(value: SSAValue) -> bool:
    """Whether an index is made of constants, coordinates and loop variables by sums and products alone.

    Then `multiple` is what divides all its values, not just the most that can be told.
    """
    value = origin(value)
    owner = value.owner
    if isinstance(owner, Block):
        return space_of_variable(value) is not None
    if constant(value) is not None:
        return True
    linear = affine.ApplyOp | arith.AddiOp | arith.SubiOp | arith.MuliOp | arith.IndexCastOp
    if isinstance(owner, affine.ApplyOp) and not _is_linear(owner.map.data.results[0]):
        return False
    return isinstance(owner, linear) and all(map(is_regular, owner.operands))


def _is_linear(expression: AffineExpr) -> bool:
    if isinstance(expression, AffineBinaryOpExpr):
        plain = expression.kind in (AffineBinaryOpKind.Add, AffineBinaryOpKind.Mul)
        return plain and _is_linear(expression.lhs) and _is_linear(expression.rhs)
    return True


def _expression_multiple(expression: AffineExpr, operands: Sequence[SSAValue], dims: int) -> int:
    if isinstance(expression, AffineConstantExpr):
        return abs(expression.value)
    if isinstance(expression, AffineDimExpr):
        return multiple(operands[expression.position])
    if isinstance(expression, AffineSymExpr):
        return multiple(operands[dims + expression.position])
    if isinstance(expression, AffineBinaryOpExpr):
        left = _expression_multiple(expression.lhs, operands, dims)
        right = _expression_multiple(expression.rhs, operands, dims)
        if expression.kind is AffineBinaryOpKind.Mul:
            return left * right
        if expression.kind in (AffineBinaryOpKind.Add, AffineBinaryOpKind.Mod):
            return math.gcd(left, right)
    return 1
