"""Affine expressions, worked out over what stands for their operands: intervals, linear forms, C++ text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineSymExpr,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Algebra(Generic[T]):
    """What a constant is, and what the operations make; those that are left out have no value."""

    constant: Callable[[int], T]
    operations: Mapping[AffineBinaryOpKind, Callable[[T, T], T | None]]

    def value(self, expr: AffineExpr, operands: Sequence[T | None], dims: int) -> T | None:
        """The value of an expression; operands are the dimensions, then the symbols. None where not known."""
        if isinstance(expr, AffineConstantExpr):
            return self.constant(expr.value)
        if isinstance(expr, AffineDimExpr):
            return operands[expr.position]
        if isinstance(expr, AffineSymExpr):
            return operands[dims + expr.position]
        assert isinstance(expr, AffineBinaryOpExpr)
        left, right = (self.value(side, operands, dims) for side in (expr.lhs, expr.rhs))
        operation = self.operations.get(expr.kind)
        return None if left is None or right is None or operation is None else operation(left, right)
