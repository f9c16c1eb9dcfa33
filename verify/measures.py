"""How far one array is from another, in six numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]


@dataclass(frozen=True)
class Measures:
    """`ours` against `theirs`. All are NaN where either holds a value that is not finite.

    `cosine` of the angle between both, as vectors; 0 where one alone is all zero. `max_diff` is the largest
    absolute difference and `mean_diff` the mean of ours - theirs, in the values' own unit. `relative_l1` is
    sum|ours - theirs| / sum|theirs|.

    Two numbers tell how ours lean, as shares of the mean |theirs|; rounding to nearest leaves both near 0.
    `bias` is the mean difference: not 0 where numbers are rounded downwards. `shrink` is how much nearer to
    zero ours are: not 0 where bits are cut off, or where a norm has another epsilon.
    """

    cosine: float
    max_diff: float
    mean_diff: float
    relative_l1: float
    bias: float
    shrink: float

    def as_dict(self) -> dict[str, float | None]:
        """For JSON, which knows no NaN and no infinity: those are null."""
        return {name: value if np.isfinite(value) else None for name, value in asdict(self).items()}


NOT_FINITE = Measures(*[float("nan")] * 6)


def measure(ours: Values, theirs: Values) -> Measures:
    """Compare two arrays of one shape, whatever that is, in float64."""
    if ours.shape != theirs.shape:
        raise ValueError(f"ours is {ours.shape} and theirs {theirs.shape}; measure arrays of one shape")
    a, b = ours.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return NOT_FINITE
    difference, total = a - b, float(np.abs(b).sum())
    return Measures(
        cosine=_cosine(a, b),
        max_diff=float(np.abs(difference).max(initial=0.0)),
        mean_diff=float(difference.mean()) if difference.size else 0.0,
        relative_l1=_share(float(np.abs(difference).sum()), total),
        bias=_share(float(difference.sum()), total),
        shrink=_share(float(-(difference * np.sign(b)).sum()), total),
    )


def _cosine(a: Values, b: Values) -> float:
    lengths = float(np.sqrt((a * a).sum())), float(np.sqrt((b * b).sum()))
    if not all(lengths):
        return float(lengths[0] == lengths[1])
    return float((a * b).sum() / lengths[0] / lengths[1])


def _share(part: float, total: float) -> float:
    if total:
        return part / total
    return float("inf") if part else 0.0
