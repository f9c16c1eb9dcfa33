"""The common divisor of all values of an index.

`known_divisor` gives a divisor. Where `is_affine_index` holds, it is the greatest one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from xdsl.ir import SSAValue

from aerie.air_dialect.index_constants import NUMBERS, type_bounds
from aerie.air_dialect.index_expressions import IndexAnalysis
from aerie.air_dialect.index_operators import IndexOperator


class Divisibility(NamedTuple):
    """The largest number known to divide every value, 0 where all are 0; `number`: the value, if it is
    constant."""

    divisor: int
    number: int | None = None


def _multiple_of(found: int) -> Divisibility:
    return Divisibility(abs(found), found)


def _multiples(
    operator: IndexOperator, rule: Callable[..., int] | None
) -> Callable[..., Divisibility | None]:
    """Numbers where all operands are; else what the rule makes of multiples, 1 where there is none."""
    exact = NUMBERS.operators[operator]
    assert exact is not None

    def compute(*operands: Divisibility) -> Divisibility:
        numbers = [operand.number for operand in operands if operand is not None]
        found = exact(*numbers) if None not in numbers and len(numbers) == len(operands) else None
        if found is not None:
            return _multiple_of(found)
        return Divisibility(1 if rule is None else rule(*operands))

    return compute


def _common(lhs: Divisibility, rhs: Divisibility) -> int:
    return math.gcd(lhs.divisor, rhs.divisor)


def _exact_quotient(lhs: Divisibility, rhs: Divisibility) -> int:
    """Of a division that leaves nothing, whichever way it would round."""
    by = rhs.number
    return lhs.divisor // abs(by) if by and lhs.divisor % by == 0 else 1


_DIVISORS: Mapping[IndexOperator, Callable[..., int]] = {
    **dict.fromkeys(
        (IndexOperator.ADD, IndexOperator.SUBTRACT, IndexOperator.MIN, IndexOperator.MAX), _common
    ),
    **dict.fromkeys((IndexOperator.UNSIGNED_MIN, IndexOperator.UNSIGNED_MAX), _common),
    **dict.fromkeys(
        (IndexOperator.REMAINDER, IndexOperator.UNSIGNED_REMAINDER, IndexOperator.MODULO), _common
    ),
    **dict.fromkeys(
        (IndexOperator.FLOOR_DIVIDE, IndexOperator.CEIL_DIVIDE, IndexOperator.DIVIDE), _exact_quotient
    ),
    **dict.fromkeys((IndexOperator.UNSIGNED_DIVIDE, IndexOperator.UNSIGNED_CEIL_DIVIDE), _exact_quotient),
    IndexOperator.MULTIPLY: lambda left, right: left.divisor * right.divisor,
    IndexOperator.SELECT: lambda _, yes, no: math.gcd(yes.divisor, no.divisor),
    IndexOperator.CAST: lambda found: found.divisor,
    IndexOperator.UNSIGNED_CAST: lambda found, width: math.gcd(found.divisor, 1 << width.number),
}


def _walked(
    _: SSAValue, low: Divisibility | None, high: Divisibility | None, step: Divisibility | None
) -> Divisibility:
    """Of a loop's variable or a coordinate."""
    bounds = [None if bound is None else bound.number for bound in (low, high, step)]
    first, last, by = bounds
    if low is None:
        return Divisibility(1)
    if first is not None and last is not None and by is not None and by >= max(1, last - first):
        return low
    return Divisibility(math.gcd(low.divisor, 1 if step is None else step.divisor))


def _fitting_multiple(value: SSAValue, found: Divisibility) -> Divisibility:
    """A number that wraps around its type moves by a power of two."""
    bounds = type_bounds(value)
    if bounds is None or (found.number is not None and bounds[0] <= found.number <= bounds[1]):
        return found
    return Divisibility(math.gcd(found.divisor, 2 * (bounds[1] + 1)))


MULTIPLES: IndexAnalysis[Divisibility] = IndexAnalysis(
    _multiple_of,
    {operator: _multiples(operator, _DIVISORS.get(operator)) for operator in IndexOperator},
    variable=_walked,
    unknown_leaf=lambda _: Divisibility(1),
    clamp_to_type=_fitting_multiple,
)


def known_divisor(value: SSAValue) -> int:
    """The largest number known to divide an index; 0 where it is 0."""
    found = MULTIPLES.analyze(value)
    return 1 if found is None else found.divisor


_SUMS = (IndexOperator.ADD, IndexOperator.SUBTRACT, IndexOperator.MULTIPLY, IndexOperator.CAST)

REGULAR: IndexAnalysis[bool] = IndexAnalysis(
    lambda _: True,
    {operator: (lambda *_: True) if operator in _SUMS else None for operator in IndexOperator},
    variable=lambda *_: True,
)


def is_affine_index(value: SSAValue) -> bool:
    """Whether an index is made of constants, coordinates and loop variables by sums and products alone.

    Then `known_divisor` is the greatest common divisor of all its values, and not just a divisor.
    """
    known: dict[SSAValue, int | None] = {}
    given = replace(REGULAR, known_value=lambda part: NUMBERS.analyze(part, known) is not None or None)
    return given.analyze(value) is not None
