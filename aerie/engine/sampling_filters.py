"""Which of the scores may be drawn, by temperature, top-p and min-p, and which one is.

Scores come sorted, the largest first, as values without their tokens: these are sorted several times faster.
`kept` and `draw` are the definition, in float64, score by score. Of a large vocabulary that is two softmaxes
and three sums over all of it. But logits are bf16, so most of them are equal to many others, and
`_draw_by_runs` reckons with each value once. It adds up in another order, which rounds differently, so it
says what it draws only where no rounding could have made it another one; else the long way is gone. So the
same number draws the same token either way.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aerie.engine.numerics import F32Array

Ranks: TypeAlias = NDArray[np.intp]
F64Array: TypeAlias = NDArray[np.float64]

MIN_REPEAT_FACTOR = 4
"""So many times fewer values than scores, and it pays to go by values."""
ROUNDING = 16 * float(np.finfo(np.float64).epsneg)
"""For each score: more than the sums of both ways can be off, which are five, each by half of this or less
of a unit in the last place for each of its terms."""


class SamplingFilters(NamedTuple):
    """See Sampler."""

    temperature: float
    top_p: float
    min_p: float


def apply_filters(values: F32Array, filters: SamplingFilters) -> tuple[Ranks, F64Array]:
    """Which of these, by their places, may be drawn, and their probabilities, which add up to 1."""
    probabilities = _normalised(_weights(values, filters))
    # A token stays while those before it have not yet reached top_p, so the first always stays.
    stay = np.cumsum(probabilities) - probabilities < filters.top_p
    stay &= probabilities >= filters.min_p * probabilities[0]
    return np.flatnonzero(stay), _normalised(probabilities[stay])


def sample_index(values: F32Array, filters: SamplingFilters, number: float) -> int:
    """The place of the one that a number from [0, 1) draws."""
    place = _draw_by_runs(values, filters, number)
    if place is not None:
        return place
    ranks, probabilities = apply_filters(values, filters)
    below = np.cumsum(probabilities)  # as Generator.choice does, which would want all tokens
    below /= below[-1]
    return int(ranks[np.searchsorted(below, number, side="right")])


def _draw_by_runs(values: F32Array, filters: SamplingFilters, number: float) -> int | None:
    """The same from runs of equal values; None where these are short, or rounding could decide."""
    starts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    if MIN_REPEAT_FACTOR * len(starts) > len(values):
        return None
    edges = np.append(starts, len(values))
    weights = _weights(values[starts], filters)
    below = np.concatenate(([0.0], np.cumsum(weights * np.diff(edges))))
    runs = _Runs(edges, weights, below, len(values) * ROUNDING * below[-1])
    mass = _mass(runs, filters)
    return None if mass is None else runs.place(number * mass)


class _Runs(NamedTuple):
    """Equal values: at which places each run begins and the last one ends, the weight of one of each, the
    weights of all before each and of all; doubt: what sums may be off."""

    edges: Ranks
    weights: F64Array
    below: F64Array
    doubt: float

    def place(self, weight: float) -> int | None:
        """Of the one before which there is less than this weight, and with which more; None in doubt."""
        run = min(int(np.searchsorted(self.below, weight, side="right")) - 1, len(self.weights) - 1)
        over, one = weight - self.below[run], self.weights[run]
        if not one > 4 * self.doubt:
            return None
        number = int(over / one)
        inside = over - number * one
        if not (2 * self.doubt < inside < one - 2 * self.doubt):
            return None
        place = int(self.edges[run]) + number
        return place if place < self.edges[run + 1] else None


def _mass(runs: _Runs, filters: SamplingFilters) -> float | None:
    """The weight of all that may be drawn; None in doubt."""
    ends = [runs.below[-1]]
    if filters.top_p < 1:
        last = runs.place(filters.top_p * runs.below[-1])
        if last is None:
            return None
        run = int(np.searchsorted(runs.edges, last, side="right")) - 1
        ends.append(runs.below[run] + (last + 1 - runs.edges[run]) * runs.weights[run])
    if filters.min_p:
        if np.any(np.abs(runs.weights[1:] - filters.min_p) <= ROUNDING * filters.min_p):
            return None
        ends.append(runs.below[1 + np.count_nonzero(runs.weights[1:] > filters.min_p)])
    return float(min(ends))


def _weights(values: F32Array, filters: SamplingFilters) -> F64Array:
    """Of the softmax of values whose largest is the first, before they are divided by their sum."""
    wide = values.astype(np.float64) / filters.temperature
    weights: F64Array = np.exp(wide - wide[0])
    return weights


def _normalised(values: F64Array) -> F64Array:
    normalised: F64Array = values / values.sum()
    return normalised
