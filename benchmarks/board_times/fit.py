"""Fits the timing model's parameters to the rows of role `fit`, one parameter after the other.

The model's cost is not smooth, since other channels or cores limit a program as parameters change. So each
parameter is moved by a factor, up and down, within the range that its sources give, and what lowers the mean
of the absolute logarithms of predicted over measured is kept; then the factor shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.board_times.measurements import FIT, MICROSECONDS, Measurement

STEPS = (0.25, 0.08, 0.025)
"""Shares by which a parameter is moved, in turn."""
MAX_ROUNDS = 3
"""Turns over all parameters at each step."""

Values = Mapping[str, float]
Predict = Callable[[Measurement, Values], float | None]
"""Predicted microseconds of a row with these values of parameters; None where it has no program."""


@dataclass(frozen=True)
class FittedParameter:
    """One parameter: its name, and the least and largest value that its sources give."""

    name: str
    low: float
    high: float


def fit_rows(rows: Iterable[Measurement]) -> list[Measurement]:
    """The rows that a fit may see."""
    return [row for row in rows if row.role == FIT and row.unit == MICROSECONDS]


def fit(
    rows: Sequence[Measurement],
    predict: Predict,
    start: Values,
    parameters: Sequence[FittedParameter],
    report: Callable[[str], None],
) -> tuple[dict[str, float], float]:
    """The values that fit best, and their mean absolute logarithm; rows of other roles are not used."""
    chosen = fit_rows(rows)
    best, least = dict(start), loss(chosen, predict, start)
    for step in STEPS:
        for _ in range(MAX_ROUNDS):
            before = least
            for parameter in parameters:
                best, least = _move(chosen, predict, best, least, parameter, step)
            report(f"step {step:g}: mean error {math.expm1(least):.1%}")
            if before - least < 1e-4:
                break
    return best, least


def _move(
    rows: Sequence[Measurement],
    predict: Predict,
    values: dict[str, float],
    least: float,
    parameter: FittedParameter,
    step: float,
) -> tuple[dict[str, float], float]:
    """The better of the values and of those with one parameter moved up or down."""
    for factor in (1 + step, 1 / (1 + step)):
        moved = min(max(values[parameter.name] * factor, parameter.low), parameter.high)
        if moved == values[parameter.name]:
            continue
        candidate = {**values, parameter.name: moved}
        result = loss(rows, predict, candidate)
        if result < least:
            return candidate, result
    return values, least


def loss(rows: Sequence[Measurement], predict: Predict, values: Values) -> float:
    """The mean absolute logarithm of predicted over measured, each series of kernels with equal weight."""
    logarithms: dict[str, list[float]] = {}
    for row in rows:
        predicted = predict(row, values)
        if predicted:
            logarithms.setdefault(row.series, []).append(abs(math.log(predicted / row.value)))
    if not logarithms:
        return 0.0
    return sum(sum(each) / len(each) for each in logarithms.values()) / len(logarithms)
