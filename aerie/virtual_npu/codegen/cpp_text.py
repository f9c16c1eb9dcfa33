"""C++ text of numbers: sums, products; affine expressions, maps and sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir.affine import AffineConstraintKind, AffineExpr, AffineMap, AffineSet

from aerie.air_dialect.index_expressions import IndexAnalysis
from aerie.air_dialect.index_operators import IndexOperator


def is_integer(text: str) -> bool:
    """Whether a text is an integer literal."""
    return text.lstrip("-").isdigit()


def mul(lhs: str, rhs: str) -> str:
    """C++ text of a product; integer literals are folded."""
    if is_integer(lhs) and is_integer(rhs):
        return str(int(lhs) * int(rhs))
    if "0" in (lhs, rhs):
        return "0"
    if lhs == "1":
        return rhs
    return lhs if rhs == "1" else f"{lhs} * {rhs}"


def add(*terms: str) -> str:
    """C++ text of a sum; integer literals are folded."""
    literal = sum(int(term) for term in terms if is_integer(term))
    open_terms = [term for term in terms if not is_integer(term)]
    return " + ".join(open_terms + ([str(literal)] if literal or not open_terms else []))


def parenthesize(text: str) -> str:
    """The text in parentheses, unless it is one identifier or number."""
    return text if text.isidentifier() or is_integer(text) else f"({text})"


# ---- affine ----


def _call(function: str) -> Callable[[str, str], str]:
    return lambda left, right: f"vnpu::{function}({left}, {right})"


TEXTS: IndexAnalysis[str] = IndexAnalysis(
    str,
    {
        **dict.fromkeys(IndexOperator),
        IndexOperator.ADD: lambda left, right: parenthesize(add(left, right)),
        IndexOperator.MULTIPLY: lambda left, right: parenthesize(mul(left, right)),
        IndexOperator.MODULO: _call("floor_mod"),
        IndexOperator.FLOOR_DIVIDE: _call("floor_div"),
        IndexOperator.CEIL_DIVIDE: _call("ceil_div"),
        IndexOperator.MIN: _call("minsi<vnpu::i64>"),
        IndexOperator.MAX: _call("maxsi<vnpu::i64>"),
    },
)
"""The reading of affine expressions, and of bounds of loops, as C++ text."""
_CONSTRAINTS = {AffineConstraintKind.ge: ">=", AffineConstraintKind.le: "<=", AffineConstraintKind.eq: "=="}


def _expression(expr: AffineExpr, dims: Sequence[str], symbols: Sequence[str] = ()) -> str:
    """C++ text of an affine expression over given dimension and symbol texts."""
    text = TEXTS.analyze_affine(expr, [*dims, *symbols], len(dims))
    assert text is not None  # every operation has a text
    return text


def map_results(map_: AffineMap, operands: Sequence[str]) -> list[str]:
    """C++ text of every result of a map; operands are the dimensions, then the symbols."""
    dims, symbols = operands[: map_.num_dims], operands[map_.num_dims :]
    return [_expression(result, dims, symbols) for result in map_.results]


def min_or_max(operator: IndexOperator, texts: Sequence[str]) -> str:
    """C++ text of the smallest (MIN) or largest (MAX) of several texts."""
    text = TEXTS.apply(operator, texts)
    assert text is not None
    return text


def set_condition(set_: AffineSet, operands: Sequence[str]) -> str:
    """C++ text of the condition that operands lie in an integer set."""
    dims, symbols = operands[: set_.num_dims], operands[set_.num_dims :]
    parts = [
        f"{_expression(c.lhs, dims, symbols)} {_CONSTRAINTS[c.kind]} {_expression(c.rhs, dims, symbols)}"
        for c in set_.constraints
    ]
    return " && ".join(parts) or "true"
