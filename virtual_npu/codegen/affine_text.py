"""Affine expressions, maps and sets as C++ text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir.affine import AffineConstraintKind, AffineExpr, AffineMap, AffineSet

from air_dialect.indices import Operator, Reading
from virtual_npu.codegen.text import grouped, plus, times


def _call(function: str) -> Callable[[str, str], str]:
    return lambda left, right: f"vnpu::{function}({left}, {right})"


TEXTS: Reading[str] = Reading(
    str,
    {
        **dict.fromkeys(Operator),
        Operator.ADD: lambda left, right: grouped(plus(left, right)),
        Operator.MULTIPLY: lambda left, right: grouped(times(left, right)),
        Operator.MODULO: _call("floor_mod"),
        Operator.FLOOR_DIVIDE: _call("floor_div"),
        Operator.CEIL_DIVIDE: _call("ceil_div"),
        Operator.MIN: _call("minsi<vnpu::i64>"),
        Operator.MAX: _call("maxsi<vnpu::i64>"),
    },
)
"""What the operators of affine expressions, and the bounds of their loops, are in C++."""
_CONSTRAINTS = {AffineConstraintKind.ge: ">=", AffineConstraintKind.le: "<=", AffineConstraintKind.eq: "=="}


def expression(expr: AffineExpr, dims: Sequence[str], symbols: Sequence[str] = ()) -> str:
    """C++ text of an affine expression over given dimension and symbol texts."""
    text = TEXTS.expression(expr, [*dims, *symbols], len(dims))
    assert text is not None  # every operation has a text
    return text


def results(map_: AffineMap, operands: Sequence[str]) -> list[str]:
    """C++ text of every result of a map; operands are the dimensions, then the symbols."""
    dims, symbols = operands[: map_.num_dims], operands[map_.num_dims :]
    return [expression(result, dims, symbols) for result in map_.results]


def folded(operator: Operator, texts: Sequence[str]) -> str:
    """C++ text of the smallest (MIN) or largest (MAX) of several texts."""
    text = TEXTS.apply(operator, texts)
    assert text is not None
    return text


def condition(set_: AffineSet, operands: Sequence[str]) -> str:
    """C++ text of whether operands lie in an integer set."""
    dims, symbols = operands[: set_.num_dims], operands[set_.num_dims :]
    parts = [
        f"{expression(c.lhs, dims, symbols)} {_CONSTRAINTS[c.kind]} {expression(c.rhs, dims, symbols)}"
        for c in set_.constraints
    ]
    return " && ".join(parts) or "true"
