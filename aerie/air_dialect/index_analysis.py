"""Analyses of an index: its constant, the interval of its values, their common divisor, its linear form.

Each is a reading (air_dialect.indices) of the same operations. None always means that nothing is known; what
is known holds on every tile and in every iteration.
"""

from __future__ import annotations

import math
import operator as of
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Block, SSAValue

from aerie.air_dialect.index_expressions import (
    IndexAnalysis,
    IndexOperator,
    is_signed_loop,
    literal_constant,
    unknown_value,
)
from aerie.air_dialect.values import resolve_alias


def _bounds(value: SSAValue) -> tuple[int, int] | None:
    """The smallest and the largest number of a value's type; None for an index, which is wide enough."""
    if not isinstance(value.type, IntegerType):
        return None
    limit = 1 << (value.type.width.data - 1)
    return -limit, limit - 1


# ---- numbers ----


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


def _ceil_divide(lhs: int, rhs: int) -> int:
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
    bounds = _bounds(value)
    return number if bounds is None or bounds[0] <= number <= bounds[1] else None


NUMBERS: IndexAnalysis[int] = IndexAnalysis(
    lambda number: number,
    {
        IndexOperator.ADD: of.add,
        IndexOperator.SUBTRACT: of.sub,
        IndexOperator.MULTIPLY: of.mul,
        IndexOperator.FLOOR_DIVIDE: _by(of.floordiv),
        IndexOperator.CEIL_DIVIDE: _by(_ceil_divide),
        IndexOperator.DIVIDE: _quotient,
        IndexOperator.REMAINDER: _remainder,
        IndexOperator.MODULO: lambda left, right: left % right if right > 0 else None,
        IndexOperator.UNSIGNED_DIVIDE: _natural(_quotient),
        IndexOperator.UNSIGNED_CEIL_DIVIDE: _natural(_by(_ceil_divide)),
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


# ---- ranges ----

Interval: TypeAlias = tuple[int, int]
"""The smallest and the largest value, both included."""


def single_value(bounds: Interval | None) -> int | None:
    """The number in an interval that holds one only; None for any other."""
    return bounds[0] if bounds is not None and bounds[0] == bounds[1] else None


def add(lhs: Interval, rhs: Interval) -> Interval:
    """The interval of a sum, from those of its operands."""
    return lhs[0] + rhs[0], lhs[1] + rhs[1]


def multiply(lhs: Interval, rhs: Interval) -> Interval:
    """The interval of a product, from those of its operands."""
    products = [a * b for a in lhs for b in rhs]
    return min(products), max(products)


def _divided(function: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval | None]:
    """A division by positive numbers, in which larger dividends have larger quotients."""

    def divide(lhs: Interval, rhs: Interval) -> Interval | None:
        quotients = [function(a, b) for a in lhs for b in rhs] if rhs[0] > 0 else []
        return (min(quotients), max(quotients)) if quotients else None

    return divide


def _modulo(lhs: Interval, rhs: Interval) -> Interval | None:
    if rhs[0] <= 0:
        return None
    if lhs[0] >= 0 and lhs[1] < rhs[0]:
        return lhs
    return 0, rhs[1] - 1


def _of_naturals(
    function: Callable[[Interval, Interval], Interval | None],
) -> Callable[[Interval, Interval], Interval | None]:
    """The function where no value is negative; else nothing is known."""
    return lambda left, right: function(left, right) if left[0] >= 0 and right[0] >= 0 else None


def _smaller(lhs: Interval, rhs: Interval) -> Interval:
    return min(lhs[0], rhs[0]), min(lhs[1], rhs[1])


def _larger(lhs: Interval, rhs: Interval) -> Interval:
    return max(lhs[0], rhs[0]), max(lhs[1], rhs[1])


def _and(lhs: Interval, rhs: Interval) -> Interval | None:
    """A natural number leaves none of the higher bits."""
    highest = [side[1] for side in (lhs, rhs) if side[0] >= 0]
    return (0, min(highest)) if highest else None


def _unsigned(found: Interval, width: Interval) -> Interval | None:
    if found[0] >= 0:
        return found
    return (0, (1 << width[0]) - 1) if width[0] < 64 else None


def _either(chosen: Interval | None, yes: Interval, no: Interval) -> Interval:
    if chosen is not None and (chosen[0] > 0 or chosen[1] < 0):
        return yes
    return no if chosen == (0, 0) else (min(yes[0], no[0]), max(yes[1], no[1]))


def _compared(
    function: Callable[[int, int], bool], unsigned: bool = False
) -> Callable[[Interval, Interval], Interval]:
    """Whether an order holds: it does wherever it does for the values that are hardest for it."""

    def compare(lhs: Interval, rhs: Interval) -> Interval:
        if unsigned and min(lhs[0], rhs[0]) < 0:
            return -1, 0
        always = function(lhs[0], rhs[1]) and function(lhs[1], rhs[0])
        ever = function(lhs[0], rhs[1]) or function(lhs[1], rhs[0])
        return (-1 if ever else 0), (-1 if always else 0)

    return compare


def _equal(lhs: Interval, rhs: Interval) -> Interval:
    meet = lhs[0] <= rhs[1] and rhs[0] <= lhs[1]
    always = lhs[0] == lhs[1] == rhs[0] == rhs[1]
    return (-1 if meet else 0), (-1 if always else 0)


def _unequal(lhs: Interval, rhs: Interval) -> Interval:
    low, high = _equal(lhs, rhs)
    return -1 - high, -1 - low


def _counted(
    _: SSAValue, low: Interval | None, high: Interval | None, step: Interval | None
) -> Interval | None:
    """The values of a loop variable that goes from `low` by `step` as long as it is below `high`."""
    if low is None or high is None:
        return None
    last = high[1] - 1
    if low[0] == low[1] and step is not None and step[0] == step[1] > 0:
        last = low[0] + (last - low[0]) // step[0] * step[0]
    return low[0], max(low[0], last)


def _fitting_interval(value: SSAValue, found: Interval) -> Interval | None:
    bounds = _bounds(value)
    return found if bounds is None or (bounds[0] <= found[0] and found[1] <= bounds[1]) else None


def _of_numbers(
    operator: IndexOperator, function: Callable[..., Interval | None]
) -> Callable[..., Interval | None]:
    """The number that an operator makes of numbers; else what the function makes of ranges."""

    def compute(*operands: Interval | None) -> Interval | None:
        found = NUMBERS.apply(operator, [single_value(operand) for operand in operands])
        return function(*operands) if found is None else (found, found)

    return compute


_OF_RANGES: Mapping[IndexOperator, Callable[..., Interval | None]] = {
    IndexOperator.ADD: add,
    IndexOperator.SUBTRACT: lambda left, right: (left[0] - right[1], left[1] - right[0]),
    IndexOperator.MULTIPLY: multiply,
    IndexOperator.FLOOR_DIVIDE: _divided(of.floordiv),
    IndexOperator.CEIL_DIVIDE: _divided(_ceil_divide),
    IndexOperator.DIVIDE: _of_naturals(_divided(of.floordiv)),
    IndexOperator.REMAINDER: _of_naturals(_modulo),
    IndexOperator.MODULO: _modulo,
    IndexOperator.UNSIGNED_DIVIDE: _of_naturals(_divided(of.floordiv)),
    IndexOperator.UNSIGNED_CEIL_DIVIDE: _of_naturals(_divided(_ceil_divide)),
    IndexOperator.UNSIGNED_REMAINDER: _of_naturals(_modulo),
    IndexOperator.MIN: _smaller,
    IndexOperator.MAX: _larger,
    IndexOperator.UNSIGNED_MIN: _of_naturals(_smaller),
    IndexOperator.UNSIGNED_MAX: _of_naturals(_larger),
    IndexOperator.AND: _and,
    IndexOperator.OR: unknown_value,
    IndexOperator.XOR: unknown_value,
    IndexOperator.CAST: lambda found: found,
    IndexOperator.UNSIGNED_CAST: _unsigned,
    IndexOperator.SELECT: _either,
    IndexOperator.EQUAL: _equal,
    IndexOperator.UNEQUAL: _unequal,
    IndexOperator.LESS: _compared(of.lt),
    IndexOperator.LESS_EQUAL: _compared(of.le),
    IndexOperator.GREATER: _compared(of.gt),
    IndexOperator.GREATER_EQUAL: _compared(of.ge),
    IndexOperator.UNSIGNED_LESS: _compared(of.lt, unsigned=True),
    IndexOperator.UNSIGNED_LESS_EQUAL: _compared(of.le, unsigned=True),
    IndexOperator.UNSIGNED_GREATER: _compared(of.gt, unsigned=True),
    IndexOperator.UNSIGNED_GREATER_EQUAL: _compared(of.ge, unsigned=True),
}
INTERVALS: IndexAnalysis[Interval] = IndexAnalysis(
    lambda number: (number, number),
    {operator: _of_numbers(operator, function) for operator, function in _OF_RANGES.items()},
    variable=_counted,
    clamp_to_type=_fitting_interval,
)


def interval(value: SSAValue) -> Interval | None:
    """The values that an integer or index can take; None where that is not known."""
    return INTERVALS.analyze(value)


class CountedLoop(NamedTuple):
    """First value, step and number of iterations of a loop."""

    first: int
    step: int
    trip_count: int


def analyze_loop(loop: scf.ForOp) -> CountedLoop | None:
    """How often a loop runs, at least once; None where that is not known."""
    bounds = [interval(value) for value in (loop.lb, loop.ub, loop.step)]
    known = [bound[0] for bound in bounds if bound is not None and bound[0] == bound[1]]
    if len(known) != len(bounds) or known[2] <= 0 or known[1] <= known[0] or not is_signed_loop(loop):
        return None
    low, high, step = known
    return CountedLoop(low, step, -((low - high) // step))


# ---- what divides all values ----


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
    bounds = _bounds(value)
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


# ---- whether that is all there is to know ----

_SUMS = (IndexOperator.ADD, IndexOperator.SUBTRACT, IndexOperator.MULTIPLY, IndexOperator.CAST)
REGULAR: IndexAnalysis[bool] = IndexAnalysis(
    lambda _: True,
    {operator: (lambda *_: True) if operator in _SUMS else None for operator in IndexOperator},
    variable=lambda *_: True,
)


def is_affine_index(value: SSAValue) -> bool:
    """Whether an index is made of constants, coordinates and loop variables by sums and products alone.

    Then `multiple` divides all its values and is the largest such number, not only a known divisor.
    """
    known: dict[SSAValue, int | None] = {}
    given = replace(REGULAR, known_value=lambda part: NUMBERS.analyze(part, known) is not None or None)
    return given.analyze(value) is not None


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


# ---- linear forms ----


@dataclass(frozen=True)
class LinearForm:
    """A linear form: constant + the sum of coefficient * value over `terms`; no coefficient is 0."""

    constant: int = 0
    terms: dict[SSAValue, int] = field(default_factory=dict)

    def plus(self, other: LinearForm) -> LinearForm:
        """The sum of two forms."""
        keys = {*self.terms, *other.terms}
        sums = {key: self.terms.get(key, 0) + other.terms.get(key, 0) for key in keys}
        return LinearForm(self.constant + other.constant, {key: n for key, n in sums.items() if n})

    def times(self, factor: int) -> LinearForm:
        """The form times a number."""
        scaled = {key: n * factor for key, n in self.terms.items()} if factor else {}
        return LinearForm(self.constant * factor, scaled)

    def values(self) -> Interval | None:
        """The interval of the form; None where that of a term is not known."""
        total: Interval = (self.constant, self.constant)
        for value, coefficient in self.terms.items():
            bounds = interval(value)
            if bounds is None:
                return None
            total = add(total, multiply(bounds, (coefficient, coefficient)))
        return total


def _product(lhs: LinearForm, rhs: LinearForm) -> LinearForm | None:
    if lhs.terms and rhs.terms:
        return None
    return rhs.times(lhs.constant) if not lhs.terms else lhs.times(rhs.constant)


LINEAR: IndexAnalysis[LinearForm] = IndexAnalysis(
    LinearForm,
    {
        **dict.fromkeys(IndexOperator),
        IndexOperator.ADD: LinearForm.plus,
        IndexOperator.SUBTRACT: lambda left, right: left.plus(right.times(-1)),
        IndexOperator.MULTIPLY: _product,
        IndexOperator.CAST: lambda form: form,
    },
    unknown_leaf=lambda value: LinearForm(0, {value: 1}),
    through_captures=False,
)


def linear_form(value: SSAValue) -> LinearForm:
    """The linear form of an index. Its terms are results of other operations, and arguments of a
    hierarchy."""
    ranges: dict[SSAValue, Interval | None] = {}

    def constant(part: SSAValue) -> LinearForm | None:
        known = single_value(INTERVALS.analyze(part, ranges))
        return None if known is None else LinearForm(known)

    def fitted(part: SSAValue, form: LinearForm) -> LinearForm | None:
        """Integers of a width may wrap around, unless their range is known."""
        known = not isinstance(part.type, IntegerType) or INTERVALS.analyze(part, ranges) is not None
        return form if known else None

    result = replace(LINEAR, known_value=constant, clamp_to_type=fitted).analyze(value)
    assert result is not None  # a value is a term at least
    return result


def weighted_sum(values: Sequence[SSAValue], weights: Sequence[int]) -> LinearForm:
    """The linear form of the sum of weight * value."""
    total = LinearForm()
    for value, weight in zip(values, weights, strict=True):
        total = total.plus(linear_form(value).times(weight))
    return total
