"""Sampling filters: temperature, top-p and min-p, and the choice of one of the remaining scores.

Scores are sorted, the largest first, as values without their tokens, which sort several times faster.
`apply_filters` and `sample_index` are the definition, in float64, score by score. For a large vocabulary that
is two softmaxes and three sums over all of it. But logits are bf16, so most of them are equal to many others,
and `_draw_by_runs` computes with each value once. It adds in another order, which rounds differently, so it
gives a result only if no rounding could change it; else the definition is used. So a random number gives the
same token either way.
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
    """The indices of values that may be sampled, and their probabilities, which sum to 1."""
    probabilities = _normalised(_weights(values, filters))
    # A token stays while those before it have not yet reached top_p, so the first always stays.
    stay = np.cumsum(probabilities) - probabilities < filters.top_p
    stay &= probabilities >= filters.min_p * probabilities[0]
    return np.flatnonzero(stay), _normalised(probabilities[stay])


def sample_index(values: F32Array, filters: SamplingFilters, number: float) -> int:
    """The index that a random number from [0, 1) selects."""
    index = _draw_by_runs(values, filters, number)
    if index is not None:
        return index
    ranks, probabilities = apply_filters(values, filters)
    below = np.cumsum(probabilities)  # as Generator.choice does, which would want all tokens
    below /= below[-1]
    return int(ranks[np.searchsorted(below, number, side="right")])


def _draw_by_runs(values: F32Array, filters: SamplingFilters, number: float) -> int | None:
    """As sample_index, with runs of equal values; None if the runs are short, or if rounding could decide."""
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
    """Runs of equal values: the indices where each starts and the last ends, the weight of one value of each,
    and the total weight before each and of all. doubt: maximum rounding error of the sums."""

    edges: Ranks
    weights: F64Array
    below: F64Array
    doubt: float

    def place(self, weight: float) -> int | None:
        """The index whose weight interval contains `weight`; None if rounding could decide."""
        run = min(int(np.searchsorted(self.below, weight, side="right")) - 1, len(self.weights) - 1)
        offset, unit = weight - self.below[run], self.weights[run]
        if not unit > 4 * self.doubt:
            return None
        number = int(offset / unit)
        inside = offset - number * unit
        if not (2 * self.doubt < inside < unit - 2 * self.doubt):
            return None
        place = int(self.edges[run]) + number
        return place if place < self.edges[run + 1] else None


def _mass(runs: _Runs, filters: SamplingFilters) -> float | None:
    """The total weight of what may be sampled; None if rounding could decide."""
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
    """The softmax of values, the first of which is the largest, before the division by their sum."""
    wide = values.astype(np.float64) / filters.temperature
    weights: F64Array = np.exp(wide - wide[0])
    return weights


def _normalised(values: F64Array) -> F64Array:
    normalised: F64Array = values / values.sum()
    return normalised
