"""The interval of an index: its smallest and its largest value on every tile and in every iteration."""

from __future__ import annotations

import operator as of
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from xdsl.dialects import scf
from xdsl.ir import SSAValue

from aerie.air_dialect.index_constants import NUMBERS, ceil_divide, type_bounds
from aerie.air_dialect.index_expressions import IndexAnalysis, is_signed_loop, unknown_value
from aerie.air_dialect.index_operators import IndexOperator

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
    bounds = type_bounds(value)
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
    IndexOperator.CEIL_DIVIDE: _divided(ceil_divide),
    IndexOperator.DIVIDE: _of_naturals(_divided(of.floordiv)),
    IndexOperator.REMAINDER: _of_naturals(_modulo),
    IndexOperator.MODULO: _modulo,
    IndexOperator.UNSIGNED_DIVIDE: _of_naturals(_divided(of.floordiv)),
    IndexOperator.UNSIGNED_CEIL_DIVIDE: _of_naturals(_divided(ceil_divide)),
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
