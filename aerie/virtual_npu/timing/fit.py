"""Fits the model's parameters to measured times, one parameter after the other.

The model's cost is not smooth, since other channels or cores limit a program as parameters change. So each
parameter is moved by a factor, up and down, within the range that its sources give, and what lowers the mean
of the absolute logarithms of predicted over measured is kept; then the factor shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Generic, Protocol, TypeAlias, TypeVar

from aerie.virtual_npu.timing.parameters import Parameters

STEPS = (0.25, 0.08, 0.025)
"""Shares by which a parameter is moved, in turn."""
MAX_ROUNDS = 3
"""Turns over all parameters at each step."""

Values: TypeAlias = "Mapping[str, float]"


class Measured(Protocol):
    """A measured time. value: in microseconds. series: what it belongs to; each has equal weight."""

    @property
    def value(self) -> float: ...

    @property
    def series(self) -> str: ...


M = TypeVar("M", bound=Measured)
Predict: TypeAlias = "Callable[[M, Values], float | None]"
"""Predicted microseconds of a row with these values of parameters; None where it has no program."""


@dataclass(frozen=True)
class ParameterRange:
    """One parameter: its name, and the least and largest value that its sources give."""

    name: str
    low: float
    high: float


def parameter_ranges() -> list[ParameterRange]:
    """All parameters of the model, with the range of each."""
    return [
        ParameterRange(each.name, each.metadata["low"], each.metadata["high"]) for each in fields(Parameters)
    ]


def fit(
    rows: Sequence[M],
    predict: Predict[M],
    start: Values,
    parameters: Sequence[ParameterRange],
    report: Callable[[str], None],
) -> tuple[dict[str, float], float]:
    """The values that fit the rows best, and their mean absolute logarithm."""
    search = _Search(rows, predict, start)
    report(f"start: mean error {math.expm1(search.least):.1%}")
    for step in STEPS:
        search.forget_which_rows_move()
        for _ in range(MAX_ROUNDS):
            before = search.least
            for parameter in parameters:
                search.move(parameter, step)
            report(f"step {step:g}: mean error {math.expm1(search.least):.1%}")
            if before - search.least < 1e-4:
                break
    return search.values, search.least


class _Search(Generic[M]):
    """The best values so far. Within one step, rows that a parameter did not change are not predicted again
    when it moves again: most rows depend on few parameters, and a prediction takes long."""

    def __init__(self, rows: Sequence[M], predict: Predict[M], start: Values) -> None:
        self._rows, self._predict = rows, predict
        self.values = dict(start)
        self._predicted = [predict(row, start) for row in rows]
        self.least = _loss(rows, self._predicted)
        self._unchanged: dict[str, set[int]] = {}

    def forget_which_rows_move(self) -> None:
        self._unchanged.clear()

    def move(self, parameter: ParameterRange, step: float) -> None:
        """Move a parameter up or down, if one of the two is better."""
        name, now = parameter.name, self.values[parameter.name]
        for factor in (1 + step, 1 / (1 + step)):
            moved = min(max(now * factor, parameter.low), parameter.high)
            if moved == now:
                continue
            candidate = {**self.values, name: moved}
            unchanged = self._unchanged.get(name, set())
            predicted = [
                known if i in unchanged else self._predict(row, candidate)
                for i, (row, known) in enumerate(zip(self._rows, self._predicted, strict=True))
            ]
            self._unchanged[name] = {
                i for i, pair in enumerate(zip(predicted, self._predicted, strict=True)) if pair[0] == pair[1]
            }
            loss = _loss(self._rows, predicted)
            if loss < self.least:
                self.values, self.least, self._predicted = candidate, loss, predicted
                return


def _loss(rows: Sequence[Measured], predicted: Sequence[float | None]) -> float:
    """The mean absolute logarithm of predicted over measured, each series with equal weight."""
    logarithms: dict[str, list[float]] = {}
    for row, us in zip(rows, predicted, strict=True):
        if us:
            logarithms.setdefault(row.series, []).append(abs(math.log(us / row.value)))
    if not logarithms:
        return 0.0
    return sum(sum(each) / len(each) for each in logarithms.values()) / len(logarithms)
