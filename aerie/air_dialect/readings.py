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

from aerie.air_dialect.indices import Operator, Reading, counts_signed, unknown
from aerie.air_dialect.values import passed


def _bounds(value: SSAValue) -> tuple[int, int] | None:
    """The smallest and the largest number of a value's type; None for an index, which is wide enough."""
    if not isinstance(value.type, IntegerType):
        return None
    most = 1 << (value.type.width.data - 1)
    return -most, most - 1


# ---- numbers ----


def _quotient(left: int, right: int) -> int | None:
    """Rounded towards zero."""
    if right == 0:
        return None
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _remainder(left: int, right: int) -> int | None:
    whole = _quotient(left, right)
    return None if whole is None else left - whole * right


def _by(function: Callable[[int, int], int]) -> Callable[[int, int], int | None]:
    """A division, where it is none by zero."""
    return lambda left, right: function(left, right) if right else None


def _ceil_divide(left: int, right: int) -> int:
    return -(-left // right)


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


NUMBERS: Reading[int] = Reading(
    lambda number: number,
    {
        Operator.ADD: of.add,
        Operator.SUBTRACT: of.sub,
        Operator.MULTIPLY: of.mul,
        Operator.FLOOR_DIVIDE: _by(of.floordiv),
        Operator.CEIL_DIVIDE: _by(_ceil_divide),
        Operator.DIVIDE: _quotient,
        Operator.REMAINDER: _remainder,
        Operator.MODULO: lambda left, right: left % right if right > 0 else None,
        Operator.UNSIGNED_DIVIDE: _natural(_quotient),
        Operator.UNSIGNED_CEIL_DIVIDE: _natural(_by(_ceil_divide)),
        Operator.UNSIGNED_REMAINDER: _natural(_remainder),
        Operator.MIN: min,
        Operator.MAX: max,
        Operator.UNSIGNED_MIN: _natural(min),
        Operator.UNSIGNED_MAX: _natural(max),
        Operator.AND: of.and_,
        Operator.OR: of.or_,
        Operator.XOR: of.xor,
        Operator.CAST: lambda number: number,
        Operator.UNSIGNED_CAST: _unsigned_number,
        Operator.SELECT: lambda chosen, yes, no: None if chosen is None else yes if chosen else no,
        Operator.EQUAL: _truth(of.eq),
        Operator.UNEQUAL: _truth(of.ne),
        Operator.LESS: _truth(of.lt),
        Operator.LESS_EQUAL: _truth(of.le),
        Operator.GREATER: _truth(of.gt),
        Operator.GREATER_EQUAL: _truth(of.ge),
        Operator.UNSIGNED_LESS: _natural_truth(of.lt),
        Operator.UNSIGNED_LESS_EQUAL: _natural_truth(of.le),
        Operator.UNSIGNED_GREATER: _natural_truth(of.gt),
        Operator.UNSIGNED_GREATER_EQUAL: _natural_truth(of.ge),
    },
    fitted=_fitting_number,
)

Known: TypeAlias = Mapping[SSAValue, int]
"""Values that are assumed to be these numbers, such as the ids of one tile."""


def number(value: SSAValue, known: Known | None = None) -> int | None:
    """The integer that a value is, with those of `known` as given; None where it is no constant then."""
    reading = NUMBERS if not known else replace(NUMBERS, given=known.get)
    return reading.read(value)


def numbers(values: Sequence[SSAValue], known: Known | None = None) -> list[int] | None:
    """The integers that values are; None where one of them is not known."""
    found = [number(value, known) for value in values]
    whole = [one for one in found if one is not None]
    return whole if len(whole) == len(found) else None


# ---- ranges ----

Interval: TypeAlias = tuple[int, int]
"""The smallest and the largest value, both included."""


def only_number(found: Interval | None) -> int | None:
    """The number in an interval that holds one only; None for any other."""
    return found[0] if found is not None and found[0] == found[1] else None


def add(left: Interval, right: Interval) -> Interval:
    """The interval of a sum, from those of its operands."""
    return left[0] + right[0], left[1] + right[1]


def multiply(left: Interval, right: Interval) -> Interval:
    """The interval of a product, from those of its operands."""
    products = [a * b for a in left for b in right]
    return min(products), max(products)


def _divided(function: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval | None]:
    """A division by positive numbers, in which larger dividends have larger quotients."""

    def divide(left: Interval, right: Interval) -> Interval | None:
        quotients = [function(a, b) for a in left for b in right] if right[0] > 0 else []
        return (min(quotients), max(quotients)) if quotients else None

    return divide


def _modulo(left: Interval, right: Interval) -> Interval | None:
    if right[0] <= 0:
        return None
    if left[0] >= 0 and left[1] < right[0]:
        return left
    return 0, right[1] - 1


def _of_naturals(
    function: Callable[[Interval, Interval], Interval | None],
) -> Callable[[Interval, Interval], Interval | None]:
    """The function where no value is negative; else nothing is known."""
    return lambda left, right: function(left, right) if left[0] >= 0 and right[0] >= 0 else None


def _smaller(left: Interval, right: Interval) -> Interval:
    return min(left[0], right[0]), min(left[1], right[1])


def _larger(left: Interval, right: Interval) -> Interval:
    return max(left[0], right[0]), max(left[1], right[1])


def _and(left: Interval, right: Interval) -> Interval | None:
    """A natural number leaves none of the higher bits."""
    highest = [side[1] for side in (left, right) if side[0] >= 0]
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

    def compare(left: Interval, right: Interval) -> Interval:
        if unsigned and min(left[0], right[0]) < 0:
            return -1, 0
        always = function(left[0], right[1]) and function(left[1], right[0])
        ever = function(left[0], right[1]) or function(left[1], right[0])
        return (-1 if ever else 0), (-1 if always else 0)

    return compare


def _equal(left: Interval, right: Interval) -> Interval:
    meet = left[0] <= right[1] and right[0] <= left[1]
    always = left[0] == left[1] == right[0] == right[1]
    return (-1 if meet else 0), (-1 if always else 0)


def _unequal(left: Interval, right: Interval) -> Interval:
    low, high = _equal(left, right)
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
    operator: Operator, function: Callable[..., Interval | None]
) -> Callable[..., Interval | None]:
    """The number that an operator makes of numbers; else what the function makes of ranges."""

    def compute(*operands: Interval | None) -> Interval | None:
        found = NUMBERS.apply(operator, [only_number(operand) for operand in operands])
        return function(*operands) if found is None else (found, found)

    return compute


_OF_RANGES: Mapping[Operator, Callable[..., Interval | None]] = {
    Operator.ADD: add,
    Operator.SUBTRACT: lambda left, right: (left[0] - right[1], left[1] - right[0]),
    Operator.MULTIPLY: multiply,
    Operator.FLOOR_DIVIDE: _divided(of.floordiv),
    Operator.CEIL_DIVIDE: _divided(_ceil_divide),
    Operator.DIVIDE: _of_naturals(_divided(of.floordiv)),
    Operator.REMAINDER: _of_naturals(_modulo),
    Operator.MODULO: _modulo,
    Operator.UNSIGNED_DIVIDE: _of_naturals(_divided(of.floordiv)),
    Operator.UNSIGNED_CEIL_DIVIDE: _of_naturals(_divided(_ceil_divide)),
    Operator.UNSIGNED_REMAINDER: _of_naturals(_modulo),
    Operator.MIN: _smaller,
    Operator.MAX: _larger,
    Operator.UNSIGNED_MIN: _of_naturals(_smaller),
    Operator.UNSIGNED_MAX: _of_naturals(_larger),
    Operator.AND: _and,
    Operator.OR: unknown,
    Operator.XOR: unknown,
    Operator.CAST: lambda found: found,
    Operator.UNSIGNED_CAST: _unsigned,
    Operator.SELECT: _either,
    Operator.EQUAL: _equal,
    Operator.UNEQUAL: _unequal,
    Operator.LESS: _compared(of.lt),
    Operator.LESS_EQUAL: _compared(of.le),
    Operator.GREATER: _compared(of.gt),
    Operator.GREATER_EQUAL: _compared(of.ge),
    Operator.UNSIGNED_LESS: _compared(of.lt, unsigned=True),
    Operator.UNSIGNED_LESS_EQUAL: _compared(of.le, unsigned=True),
    Operator.UNSIGNED_GREATER: _compared(of.gt, unsigned=True),
    Operator.UNSIGNED_GREATER_EQUAL: _compared(of.ge, unsigned=True),
}
INTERVALS: Reading[Interval] = Reading(
    lambda number: (number, number),
    {operator: _of_numbers(operator, function) for operator, function in _OF_RANGES.items()},
    variable=_counted,
    fitted=_fitting_interval,
)


def interval(value: SSAValue) -> Interval | None:
    """The values that an integer or index can take; None where that is not known."""
    return INTERVALS.read(value)


class Counted(NamedTuple):
    """First value, step and number of iterations of a loop."""

    first: int
    step: int
    trips: int


def counted(loop: scf.ForOp) -> Counted | None:
    """How often a loop runs, at least once; None where that is not known."""
    bounds = [interval(value) for value in (loop.lb, loop.ub, loop.step)]
    known = [bound[0] for bound in bounds if bound is not None and bound[0] == bound[1]]
    if len(known) != len(bounds) or known[2] <= 0 or known[1] <= known[0] or not counts_signed(loop):
        return None
    low, high, step = known
    return Counted(low, step, -((low - high) // step))


# ---- what divides all values ----


class Multiple(NamedTuple):
    """The largest number known to divide every value, 0 where all are 0; `number`: the value, if it is
    constant."""

    divisor: int
    number: int | None = None


def _multiple_of(found: int) -> Multiple:
    return Multiple(abs(found), found)


def _multiples(operator: Operator, rule: Callable[..., int] | None) -> Callable[..., Multiple | None]:
    """Numbers where all operands are; else what the rule makes of multiples, 1 where there is none."""
    exact = NUMBERS.operators[operator]
    assert exact is not None

    def compute(*operands: Multiple) -> Multiple:
        numbers = [operand.number for operand in operands if operand is not None]
        found = exact(*numbers) if None not in numbers and len(numbers) == len(operands) else None
        if found is not None:
            return _multiple_of(found)
        return Multiple(1 if rule is None else rule(*operands))

    return compute


def _common(left: Multiple, right: Multiple) -> int:
    return math.gcd(left.divisor, right.divisor)


def _exact_quotient(left: Multiple, right: Multiple) -> int:
    """Of a division that leaves nothing, whichever way it would round."""
    by = right.number
    return left.divisor // abs(by) if by and left.divisor % by == 0 else 1


_DIVISORS: Mapping[Operator, Callable[..., int]] = {
    **dict.fromkeys((Operator.ADD, Operator.SUBTRACT, Operator.MIN, Operator.MAX), _common),
    **dict.fromkeys((Operator.UNSIGNED_MIN, Operator.UNSIGNED_MAX), _common),
    **dict.fromkeys((Operator.REMAINDER, Operator.UNSIGNED_REMAINDER, Operator.MODULO), _common),
    **dict.fromkeys((Operator.FLOOR_DIVIDE, Operator.CEIL_DIVIDE, Operator.DIVIDE), _exact_quotient),
    **dict.fromkeys((Operator.UNSIGNED_DIVIDE, Operator.UNSIGNED_CEIL_DIVIDE), _exact_quotient),
    Operator.MULTIPLY: lambda left, right: left.divisor * right.divisor,
    Operator.SELECT: lambda _, yes, no: math.gcd(yes.divisor, no.divisor),
    Operator.CAST: lambda found: found.divisor,
    Operator.UNSIGNED_CAST: lambda found, width: math.gcd(found.divisor, 1 << width.number),
}


def _walked(_: SSAValue, low: Multiple | None, high: Multiple | None, step: Multiple | None) -> Multiple:
    """Of a loop's variable or a coordinate."""
    bounds = [None if bound is None else bound.number for bound in (low, high, step)]
    first, last, by = bounds
    if low is None:
        return Multiple(1)
    if first is not None and last is not None and by is not None and by >= max(1, last - first):
        return low
    return Multiple(math.gcd(low.divisor, 1 if step is None else step.divisor))


def _fitting_multiple(value: SSAValue, found: Multiple) -> Multiple:
    """A number that wraps around its type moves by a power of two."""
    bounds = _bounds(value)
    if bounds is None or (found.number is not None and bounds[0] <= found.number <= bounds[1]):
        return found
    return Multiple(math.gcd(found.divisor, 2 * (bounds[1] + 1)))


MULTIPLES: Reading[Multiple] = Reading(
    _multiple_of,
    {operator: _multiples(operator, _DIVISORS.get(operator)) for operator in Operator},
    variable=_walked,
    leaf=lambda _: Multiple(1),
    fitted=_fitting_multiple,
)


def multiple(value: SSAValue) -> int:
    """The largest number known to divide an index; 0 where it is 0."""
    found = MULTIPLES.read(value)
    return 1 if found is None else found.divisor


# ---- whether that is all there is to know ----

_SUMS = (Operator.ADD, Operator.SUBTRACT, Operator.MULTIPLY, Operator.CAST)
REGULAR: Reading[bool] = Reading(
    lambda _: True,
    {operator: (lambda *_: True) if operator in _SUMS else None for operator in Operator},
    variable=lambda *_: True,
)


def is_regular(value: SSAValue) -> bool:
    """Whether an index is made of constants, coordinates and loop variables by sums and products alone.

    Then `multiple` is what divides all its values, not just the most that can be told.
    """
    known: dict[SSAValue, int | None] = {}
    given = replace(REGULAR, given=lambda part: NUMBERS.read(part, known) is not None or None)
    return given.read(value) is not None


def leaves(value: SSAValue) -> set[SSAValue]:
    """What an index depends on: coordinates, loop variables, arguments, and results of operations without
    operands, constants aside."""
    known: dict[SSAValue, int | None] = {}
    found: set[SSAValue] = set()
    seen: set[SSAValue] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if current in seen or NUMBERS.read(current, known) is not None:
            continue
        seen.add(current)
        through, owner = passed(current), current.owner
        inside = [] if isinstance(owner, Block) else list(owner.operands)
        inside = inside if through is None else [through]
        pending += inside
        if not inside:
            found.add(current)
    return found


# ---- linear forms ----


@dataclass(frozen=True)
class Linear:
    """A linear form: constant + the sum of coefficient * value over `terms`; no coefficient is 0."""

    constant: int = 0
    terms: dict[SSAValue, int] = field(default_factory=dict)

    def plus(self, other: Linear) -> Linear:
        """The sum of two forms."""
        keys = {*self.terms, *other.terms}
        sums = {key: self.terms.get(key, 0) + other.terms.get(key, 0) for key in keys}
        return Linear(self.constant + other.constant, {key: n for key, n in sums.items() if n})

    def times(self, factor: int) -> Linear:
        """The form times a number."""
        scaled = {key: n * factor for key, n in self.terms.items()} if factor else {}
        return Linear(self.constant * factor, scaled)

    def values(self) -> Interval | None:
        """The interval of the form; None where that of a term is not known."""
        found: Interval = (self.constant, self.constant)
        for value, coefficient in self.terms.items():
            known = interval(value)
            if known is None:
                return None
            found = add(found, multiply(known, (coefficient, coefficient)))
        return found


def _product(left: Linear, right: Linear) -> Linear | None:
    if left.terms and right.terms:
        return None
    return right.times(left.constant) if not left.terms else left.times(right.constant)


LINEAR: Reading[Linear] = Reading(
    Linear,
    {
        **dict.fromkeys(Operator),
        Operator.ADD: Linear.plus,
        Operator.SUBTRACT: lambda left, right: left.plus(right.times(-1)),
        Operator.MULTIPLY: _product,
        Operator.CAST: lambda form: form,
    },
    leaf=lambda value: Linear(0, {value: 1}),
    through_captures=False,
)


def linear(value: SSAValue) -> Linear:
    """The linear form of an index. Its terms are results of other operations, and arguments of a
    hierarchy."""
    ranges: dict[SSAValue, Interval | None] = {}

    def constant(part: SSAValue) -> Linear | None:
        known = only_number(INTERVALS.read(part, ranges))
        return None if known is None else Linear(known)

    def fitted(part: SSAValue, form: Linear) -> Linear | None:
        """Integers of a width may wrap around, unless their range is known."""
        known = not isinstance(part.type, IntegerType) or INTERVALS.read(part, ranges) is not None
        return form if known else None

    found = replace(LINEAR, given=constant, fitted=fitted).read(value)
    assert found is not None  # a value is a term at least
    return found


def weighted(values: Sequence[SSAValue], weights: Sequence[int]) -> Linear:
    """The linear form of the sum of weight * value."""
    total = Linear()
    for value, weight in zip(values, weights, strict=True):
        total = total.plus(linear(value).times(weight))
    return total
