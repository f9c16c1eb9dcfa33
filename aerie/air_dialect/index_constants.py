"""The constant that an index is, and what an index depends on beside constants.

This is one of the analyses of index expressions; index_intervals.py, index_divisors.py and linear_forms.py
have the others, and build on this one. None means that nothing is known. What is known holds on every tile
and in every iteration.
"""

from __future__ import annotations

import operator as of
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Block, SSAValue

from aerie.air_dialect.index_expressions import IndexAnalysis, literal_constant
from aerie.air_dialect.index_operators import IndexOperator
from aerie.air_dialect.values import resolve_alias


def type_bounds(value: SSAValue) -> tuple[int, int] | None:
    """The smallest and the largest number of a value's type; None for an index, which is wide enough."""
    if not isinstance(value.type, IntegerType):
        return None
    limit = 1 << (value.type.width.data - 1)
    return -limit, limit - 1


def _quotient(lhs: int, rhs: int) -> int | None:
    """Rounded towards zero."""
    if rhs == 0:
        return None
    return abs(lhs) // abs(rhs) * (1 if (lhs < 0) == (rhs < 0) else -1)


def _remainder(lhs: int, rhs: int) -> int | None:
    whole = _quotient(lhs, rhs)
    return None if whole is None else lhs - whole * rhs


def _by(function: Callable[[int, int], int]) -> Callable[[int, int], int | None]:
    """A division, where it is none by zero."""
    return lambda left, right: function(left, right) if right else None


def ceil_divide(lhs: int, rhs: int) -> int:
    return -(-lhs // rhs)


def _natural(function: Callable[[int, int], int | None]) -> Callable[[int, int], int | None]:
    """An unsigned operation: of numbers that are not negative."""
    return lambda left, right: function(left, right) if left >= 0 and right >= 0 else None


def _truth(function: Callable[[int, int], bool]) -> Callable[[int, int], int]:
    return lambda left, right: -1 if function(left, right) else 0


def _natural_truth(function: Callable[[int, int], bool]) -> Callable[[int, int], int | None]:
    return _natural(_truth(function))


def _unsigned_number(number: int, width: int) -> int | None:
    """None for what only an index of more than 64 bits could hold."""
    return number % (1 << width) if number >= 0 or width < 64 else None


def _fitting_number(value: SSAValue, number: int) -> int | None:
    bounds = type_bounds(value)
    return number if bounds is None or bounds[0] <= number <= bounds[1] else None


NUMBERS: IndexAnalysis[int] = IndexAnalysis(
    lambda number: number,
    {
        IndexOperator.ADD: of.add,
        IndexOperator.SUBTRACT: of.sub,
        IndexOperator.MULTIPLY: of.mul,
        IndexOperator.FLOOR_DIVIDE: _by(of.floordiv),
        IndexOperator.CEIL_DIVIDE: _by(ceil_divide),
        IndexOperator.DIVIDE: _quotient,
        IndexOperator.REMAINDER: _remainder,
        IndexOperator.MODULO: lambda left, right: left % right if right > 0 else None,
        IndexOperator.UNSIGNED_DIVIDE: _natural(_quotient),
        IndexOperator.UNSIGNED_CEIL_DIVIDE: _natural(_by(ceil_divide)),
        IndexOperator.UNSIGNED_REMAINDER: _natural(_remainder),
        IndexOperator.MIN: min,
        IndexOperator.MAX: max,
        IndexOperator.UNSIGNED_MIN: _natural(min),
        IndexOperator.UNSIGNED_MAX: _natural(max),
        IndexOperator.AND: of.and_,
        IndexOperator.OR: of.or_,
        IndexOperator.XOR: of.xor,
        IndexOperator.CAST: lambda number: number,
        IndexOperator.UNSIGNED_CAST: _unsigned_number,
        IndexOperator.SELECT: lambda chosen, yes, no: None if chosen is None else yes if chosen else no,
        IndexOperator.EQUAL: _truth(of.eq),
        IndexOperator.UNEQUAL: _truth(of.ne),
        IndexOperator.LESS: _truth(of.lt),
        IndexOperator.LESS_EQUAL: _truth(of.le),
        IndexOperator.GREATER: _truth(of.gt),
        IndexOperator.GREATER_EQUAL: _truth(of.ge),
        IndexOperator.UNSIGNED_LESS: _natural_truth(of.lt),
        IndexOperator.UNSIGNED_LESS_EQUAL: _natural_truth(of.le),
        IndexOperator.UNSIGNED_GREATER: _natural_truth(of.gt),
        IndexOperator.UNSIGNED_GREATER_EQUAL: _natural_truth(of.ge),
    },
    clamp_to_type=_fitting_number,
)

Known: TypeAlias = Mapping[SSAValue, int]
"""Values that are assumed to be these numbers, such as the ids of one tile."""


def constant_int(value: SSAValue, known: Known | None = None) -> int | None:
    """The integer that a value is, with those of `known` as given; None where it is no constant then."""
    if known:
        return NUMBERS.analyze(value, dict(known))
    number = literal_constant(value)  # most are
    return NUMBERS.analyze(value) if number is None else number


def constant_ints(values: Sequence[SSAValue], known: Known | None = None) -> list[int] | None:
    """The integers that values are; None where one of them is not known."""
    values_or_none = [constant_int(value, known) for value in values]
    integers = [one for one in values_or_none if one is not None]
    return integers if len(integers) == len(values_or_none) else None


def leaves(value: SSAValue) -> set[SSAValue]:
    """What an index depends on: coordinates, loop variables, arguments, and results of operations without
    operands, constants aside."""
    known: dict[SSAValue, int | None] = {}
    result: set[SSAValue] = set()
    seen: set[SSAValue] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if current in seen or literal_constant(current) is not None:
            continue
        if NUMBERS.analyze(current, known) is not None:
            continue
        seen.add(current)
        through, owner = resolve_alias(current), current.owner
        inside = [] if isinstance(owner, Block) else list(owner.operands)
        inside = inside if through is None else [through]
        pending += inside
        if not inside:
            result.add(current)
    return result
