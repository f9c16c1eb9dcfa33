"""The operators of index expressions, the operations that are one of them, and the expressions themselves.

Integers are signed, also those of one bit: true is -1. Unsigned operators are defined for operands that are
not negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineBinaryOpKind


class IndexOperator(Enum):
    """An operator on integers. DIVIDE and REMAINDER round towards zero, MODULO is never negative."""

    ADD = auto()
    SUBTRACT = auto()
    MULTIPLY = auto()
    FLOOR_DIVIDE = auto()
    CEIL_DIVIDE = auto()
    DIVIDE = auto()
    REMAINDER = auto()
    MODULO = auto()
    UNSIGNED_DIVIDE = auto()
    UNSIGNED_CEIL_DIVIDE = auto()
    UNSIGNED_REMAINDER = auto()
    MIN = auto()
    MAX = auto()
    UNSIGNED_MIN = auto()
    UNSIGNED_MAX = auto()
    AND = auto()
    OR = auto()
    XOR = auto()
    CAST = auto()
    UNSIGNED_CAST = auto()
    """Of a value and the width of its type in bits: the bits, read as an unsigned number."""
    SELECT = auto()
    EQUAL = auto()
    UNEQUAL = auto()
    LESS = auto()
    LESS_EQUAL = auto()
    GREATER = auto()
    GREATER_EQUAL = auto()
    UNSIGNED_LESS = auto()
    UNSIGNED_LESS_EQUAL = auto()
    UNSIGNED_GREATER = auto()
    UNSIGNED_GREATER_EQUAL = auto()


COMPARISONS = (
    IndexOperator.EQUAL, IndexOperator.UNEQUAL, IndexOperator.LESS, IndexOperator.LESS_EQUAL,
    IndexOperator.GREATER,
    IndexOperator.GREATER_EQUAL, IndexOperator.UNSIGNED_LESS, IndexOperator.UNSIGNED_LESS_EQUAL,
    IndexOperator.UNSIGNED_GREATER,
    IndexOperator.UNSIGNED_GREATER_EQUAL,
)  # fmt: skip
"""In the order of the predicates of arith.cmpi and index.cmp."""

OPERATIONS: Mapping[str, IndexOperator] = {
    "arith.addi": IndexOperator.ADD, "index.add": IndexOperator.ADD,
    "arith.subi": IndexOperator.SUBTRACT, "index.sub": IndexOperator.SUBTRACT,
    "arith.muli": IndexOperator.MULTIPLY, "index.mul": IndexOperator.MULTIPLY,
    "arith.floordivsi": IndexOperator.FLOOR_DIVIDE, "index.floordivs": IndexOperator.FLOOR_DIVIDE,
    "arith.ceildivsi": IndexOperator.CEIL_DIVIDE, "index.ceildivs": IndexOperator.CEIL_DIVIDE,
    "arith.divsi": IndexOperator.DIVIDE, "index.divs": IndexOperator.DIVIDE,
    "arith.remsi": IndexOperator.REMAINDER, "index.rems": IndexOperator.REMAINDER,
    "arith.divui": IndexOperator.UNSIGNED_DIVIDE, "index.divu": IndexOperator.UNSIGNED_DIVIDE,
    "arith.ceildivui": IndexOperator.UNSIGNED_CEIL_DIVIDE,
    "index.ceildivu": IndexOperator.UNSIGNED_CEIL_DIVIDE,
    "arith.remui": IndexOperator.UNSIGNED_REMAINDER, "index.remu": IndexOperator.UNSIGNED_REMAINDER,
    "arith.minsi": IndexOperator.MIN, "index.mins": IndexOperator.MIN,
    "arith.maxsi": IndexOperator.MAX, "index.maxs": IndexOperator.MAX,
    "arith.minui": IndexOperator.UNSIGNED_MIN, "index.minu": IndexOperator.UNSIGNED_MIN,
    "arith.maxui": IndexOperator.UNSIGNED_MAX, "index.maxu": IndexOperator.UNSIGNED_MAX,
    "arith.andi": IndexOperator.AND, "index.and": IndexOperator.AND,
    "arith.ori": IndexOperator.OR, "index.or": IndexOperator.OR,
    "arith.xori": IndexOperator.XOR, "index.xor": IndexOperator.XOR,
    "arith.index_cast": IndexOperator.CAST, "index.casts": IndexOperator.CAST,
    "arith.extsi": IndexOperator.CAST, "arith.trunci": IndexOperator.CAST,
    "arith.index_castui": IndexOperator.UNSIGNED_CAST, "index.castu": IndexOperator.UNSIGNED_CAST,
    "arith.extui": IndexOperator.UNSIGNED_CAST,
    "arith.select": IndexOperator.SELECT,
}  # fmt: skip
"""Operations that are one operator over their operands. `defining_expr` knows more."""

AFFINE: Mapping[AffineBinaryOpKind, IndexOperator] = {
    AffineBinaryOpKind.Add: IndexOperator.ADD,
    AffineBinaryOpKind.Mul: IndexOperator.MULTIPLY,
    AffineBinaryOpKind.FloorDiv: IndexOperator.FLOOR_DIVIDE,
    AffineBinaryOpKind.CeilDiv: IndexOperator.CEIL_DIVIDE,
    AffineBinaryOpKind.Mod: IndexOperator.MODULO,
}


@dataclass(frozen=True)
class IndexExpr:
    """An operator over terms: any number of them for MIN and MAX, the operator's own number for others."""

    operator: IndexOperator
    operands: tuple[Term, ...]


Term: TypeAlias = "SSAValue | int | IndexExpr"


class IndexRange(NamedTuple):
    """The values of range(low, high, step); `parallel`: they exist side by side, not one after the other."""

    low: Term
    high: Term
    step: Term
    parallel: bool


def operand_values(expr: Term | IndexRange | None) -> Iterator[SSAValue]:
    """The SSA values in a term, or in the bounds of a range."""
    if isinstance(expr, IndexExpr):
        for operand in expr.operands:
            yield from operand_values(operand)
    elif isinstance(expr, IndexRange):
        for bound in expr[:3]:
            yield from operand_values(bound)
    elif expr is not None and not isinstance(expr, int):
        yield expr
