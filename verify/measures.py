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

    Two numbers tell how ours lean: means over all values, each with the same weight, of the difference as a
    share of |theirs|, and none counting for more than one unit in bf16's last place. Rounding to nearest
    leaves both near 0, whatever few large values do. `bias`: of ours - theirs; not 0 where numbers are
    rounded downwards. `shrink`: of how much nearer to zero ours are; not 0 where bits are cut off, or where
    a norm has another epsilon.
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


LAST_PLACE = 2.0**-7
"""A unit in the last place of a bf16, as the largest share that it is of a number."""

NOT_FINITE = Measures(*[float("nan")] * 6)


def measure(ours: Values, theirs: Values) -> Measures:
    """Compare two arrays of one shape, whatever that is, in float64."""
    if ours.shape != theirs.shape:
        raise ValueError(f"ours is {ours.shape} and theirs {theirs.shape}; measure arrays of one shape")
    a, b = ours.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return NOT_FINITE
    difference, total = a - b, float(np.abs(b).sum())
    shares = _clipped_shares(difference, b)
    return Measures(
        cosine=_cosine(a, b),
        max_diff=float(np.abs(difference).max(initial=0.0)),
        mean_diff=float(difference.mean()),
        relative_l1=_share(float(np.abs(difference).sum()), total),
        bias=float(shares.mean()),
        shrink=float(-(shares * np.sign(b)).mean()),
    )


def _cosine(a: Values, b: Values) -> float:
    lengths = float(np.sqrt((a * a).sum())), float(np.sqrt((b * b).sum()))
    if not all(lengths):
        return float(lengths[0] == lengths[1])
    return float((a * b).sum() / lengths[0] / lengths[1])


def _clipped_shares(difference: Values, theirs: Values) -> Values:
    """difference / |theirs|, at most LAST_PLACE either way."""
    least = np.maximum(np.abs(difference), np.finfo(np.float64).tiny)  # shares beyond 1 are cut off anyway
    shares: Values = difference / np.maximum(np.abs(theirs), least)
    return shares.clip(-LAST_PLACE, LAST_PLACE)


def _share(part: float, total: float) -> float:
    if total:
        return part / total
    return float("inf") if part else 0.0
