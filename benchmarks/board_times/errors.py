"""The errors of predictions: relative to measured times, by class, and the order of a kernel's variants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.board_times.measurements import Measurement

NEAR = 0.30
"""A prediction within this share of the measured time counts as near."""
MIN_DIFFERENCE = 0.05
"""Variants whose measured times differ by less have no order: runs differ by more (10 to 15 %)."""


@dataclass(frozen=True)
class Predicted:
    """A measurement with what a model says of it, in microseconds."""

    row: Measurement
    predicted_us: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_us / self.row.value - 1


@dataclass(frozen=True)
class Summary:
    """Errors of several predictions. pairs: variants of one kernel and shape; ordered: in the right order."""

    rows: int
    median_error: float
    worst: Predicted
    near: int
    pairs: int
    ordered: int


def summarize(predictions: Sequence[Predicted]) -> Summary:
    """The errors of at least one prediction."""
    errors = [abs(each.error) for each in predictions]
    orders = [_is_ordered(*pair) for pair in variant_pairs(predictions)]
    return Summary(
        rows=len(errors),
        median_error=median(errors),
        worst=max(predictions, key=lambda each: abs(each.error)),
        near=sum(error <= NEAR for error in errors),
        pairs=len(orders),
        ordered=sum(orders),
    )


def variant_pairs(predictions: Iterable[Predicted]) -> list[tuple[Predicted, Predicted]]:
    """Pairs of one class, shape and box whose measured times differ enough to have an order."""
    return [
        (one, other)
        for one, other in itertools.combinations(predictions, 2)
        if _subject(one.row) == _subject(other.row)
        and max(one.row.value, other.row.value) >= (1 + MIN_DIFFERENCE) * min(one.row.value, other.row.value)
    ]


def factor_of(predictions: Sequence[Predicted], share: float) -> float:
    """The factor, up or down, within which this share of the predictions are."""
    factors = sorted(
        max(one.predicted_us / one.row.value, one.row.value / one.predicted_us) for one in predictions
    )
    return factors[max(0, math.ceil(share * len(factors)) - 1)]


def _subject(row: Measurement) -> tuple[object, ...]:
    family = "gemm" if row.kernel.startswith("gemm") else row.kernel
    return family, tuple(row.shape.items()), row.box


def _is_ordered(one: Predicted, other: Predicted) -> bool:
    return (one.row.value < other.row.value) == (one.predicted_us < other.predicted_us)
