"""Affine expressions, maps and sets as C++ text."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineConstraintKind,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
    AffineSet,
    AffineSymExpr,
)

from virtual_npu.codegen.body import grouped, plus, times

_FUNCTIONS = {
    AffineBinaryOpKind.Mod: "vnpu::floor_mod",
    AffineBinaryOpKind.FloorDiv: "vnpu::floor_div",
    AffineBinaryOpKind.CeilDiv: "vnpu::ceil_div",
}
_CONSTRAINTS = {AffineConstraintKind.ge: ">=", AffineConstraintKind.le: "<=", AffineConstraintKind.eq: "=="}


def expression(expr: AffineExpr, dims: Sequence[str], symbols: Sequence[str] = ()) -> str:
    """C++ text of an affine expression over given dimension and symbol texts."""
    if isinstance(expr, AffineConstantExpr):
        return str(expr.value)
    if isinstance(expr, AffineDimExpr):
        return dims[expr.position]
    if isinstance(expr, AffineSymExpr):
        return symbols[expr.position]
    assert isinstance(expr, AffineBinaryOpExpr)
    left, right = (expression(side, dims, symbols) for side in (expr.lhs, expr.rhs))
    if expr.kind is AffineBinaryOpKind.Add:
        return grouped(plus(left, right))
    if expr.kind is AffineBinaryOpKind.Mul:
        return grouped(times(left, right))
    return f"{_FUNCTIONS[expr.kind]}({left}, {right})"


def results(map_: AffineMap, operands: Sequence[str]) -> list[str]:
    """C++ text of every result of a map; operands are the dimensions, then the symbols."""
    dims, symbols = operands[: map_.num_dims], operands[map_.num_dims :]
    return [expression(result, dims, symbols) for result in map_.results]


def condition(set_: AffineSet, operands: Sequence[str]) -> str:
    """C++ text of whether operands lie in an integer set."""
    dims, symbols = operands[: set_.num_dims], operands[set_.num_dims :]
    parts = [
        f"{expression(c.lhs, dims, symbols)} {_CONSTRAINTS[c.kind]} {expression(c.rhs, dims, symbols)}"
        for c in set_.constraints
    ]
    return " && ".join(parts) or "true"
