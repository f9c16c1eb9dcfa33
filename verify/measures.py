"""How far one array is from another, and how far a step may be from the reference before it is named.

The yardstick is what the same rounding does to transformers: each bound is a multiple of that, or a share of
the values themselves. Measured on the demo checkpoint on the virtual NPU and on random Llamas of five other
shapes (one a layer of full size), prompts of 1 to 128 tokens. The rule: docs/explanation/verification.md.
"""

from __future__ import annotations

import math
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


ROUNDING = 2.0
"""Times the yardstick's relative L1, of a step on its own inputs. Healthy steps reach 1.3 (attention on the
virtual NPU), all products and norms 1.0."""

LARGEST = 4.0
"""Times the yardstick's largest difference. Healthy: 2.3 (RoPE, rounded three times by transformers, once by
us, over as few as 64 numbers), else 1.8."""

LEAN = 0.0016
"""Most |bias| and |shrink|, as a share of the values. Healthy: 0.0006, where there is one row of 128 numbers.
Rounding downwards, or cutting bits off, leans by half a unit in the last place: 0.0027."""

LEAN_OF_BLOCKS = 0.004
"""The same for a product in block floating point, which leans by up to 0.0016 in health."""

DRIFT = 4.0
"""Times the yardstick's relative L1, in the whole run. Healthy: 2.3 in decode, where one row is all there is,
1.7 in prefill."""

DRIFT_OF_BLOCKS = 8.0
"""The same with block floating point in ours and none in the yardstick's run. Healthy: 4.2."""

LEAST_COSINE_GAP = 1e-12
"""What computing a cosine of equal vectors in float64 may cost."""


@dataclass(frozen=True)
class Check:
    """A measure and its bound: the least for a cosine, the most |value| for all others."""

    name: str
    value: float
    bound: float

    @property
    def used(self) -> float:
        """How much of the bound is used up; beyond 1 it is left. Infinite where the value is not finite."""
        value, bound = abs(self.value), self.bound
        if self.name == "cosine":
            value, bound = 1 - self.value, 1 - self.bound
        if not math.isfinite(value):
            return math.inf
        return value / bound if bound else math.inf if value else 0.0

    @property
    def holds(self) -> bool:
        return self.used <= 1

    def __str__(self) -> str:
        shown = "{:.7f}" if self.name == "cosine" else "{:.3g}"
        return f"{self.name} {shown.format(self.value)} (bound {shown.format(self.bound)})"


def own_checks(ours: Measures, yardstick: Measures, of_blocks: bool) -> tuple[Check, ...]:
    """A step on its own inputs; `of_blocks`: a product in block floating point, in the yardstick too.

    What is exact in the reference, such as a copy, has to be exact in ours. Where few numbers make the
    reference's own bf16 lean, ours may lean as much more.
    """
    lean = (LEAN_OF_BLOCKS if of_blocks else LEAN) if yardstick.max_diff else 0.0
    return (
        *run_checks(ours, yardstick, ROUNDING),
        Check("largest difference", ours.max_diff, LARGEST * yardstick.max_diff),
        Check("bias", ours.bias, lean + abs(yardstick.bias)),
        Check("shrink", ours.shrink, lean + abs(yardstick.shrink)),
    )


def run_checks(ours: Measures, yardstick: Measures, times: float) -> tuple[Check, ...]:
    """A step in the whole run. The gap of a cosine to 1 grows with the square of the error."""
    gap = max(times**2 * (1 - yardstick.cosine), LEAST_COSINE_GAP)
    return (
        Check("cosine", ours.cosine, 1 - gap),
        Check("relative L1", ours.relative_l1, times * yardstick.relative_l1),
    )
