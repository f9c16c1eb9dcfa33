"""Indices as linear forms: a constant and a sum of coefficients times values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from xdsl.dialects.builtin import IntegerType
from xdsl.ir import SSAValue

from aerie.air_dialect.index_expressions import IndexAnalysis, literal_constant
from aerie.air_dialect.index_intervals import INTERVALS, Interval, add, interval, multiply, single_value
from aerie.air_dialect.index_operators import IndexOperator


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
    number = literal_constant(value)  # most are
    if number is not None:
        return LinearForm(number)
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
