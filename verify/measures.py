"""How far one array is from another, and how far a step may be from the reference before it counts as a
fault.

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
    """Measures of `ours` against `theirs`. All are NaN if either holds a value that is not finite.

    cosine: of the angle between both, as vectors; 0 if exactly one is all zero. max_diff: the largest
    absolute difference. mean_diff: the mean of ours - theirs. Both are in the values' own unit. relative_l1:
    sum|ours - theirs| / sum|theirs|.

    Two numbers show a systematic error. Both are means over all values of the difference divided by |theirs|,
    each clipped to one unit in bf16's last place. Rounding to nearest leaves both near 0, whatever few large
    values do.
    bias: of ours - theirs; not 0 if numbers are rounded downwards. shrink: of how much nearer to zero ours
    are; not 0 if bits are cut off, or if a norm has another epsilon.
    """

    cosine: float
    max_diff: float
    mean_diff: float
    relative_l1: float
    bias: float
    shrink: float

    def as_dict(self) -> dict[str, float | None]:
        """For JSON, which has no NaN and no infinity: those are null."""
        return {name: value if np.isfinite(value) else None for name, value in asdict(self).items()}


BF16_ULP = 2.0**-7
"""A unit in the last place of a bf16, relative to the number, at most."""

NOT_FINITE = Measures(*[float("nan")] * 6)


def measure(ours: Values, theirs: Values) -> Measures:
    """Compare two arrays of one shape, in float64."""
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
    """difference / |theirs|, clipped to BF16_ULP either way."""
    smallest = np.maximum(np.abs(difference), np.finfo(np.float64).tiny)  # shares beyond 1 are cut off anyway
    shares: Values = difference / np.maximum(np.abs(theirs), smallest)
    return shares.clip(-BF16_ULP, BF16_ULP)


def _share(part: float, total: float) -> float:
    if total:
        return part / total
    return float("inf") if part else 0.0


ROUNDING = 2.0
"""Times the yardstick's relative L1, for a step on its own inputs. Correct steps reach 1.3 (attention on the
virtual NPU), all products and norms 1.0.
"""

MAX_DIFFERENCE = 4.0
"""Times the yardstick's largest difference. Correct: 2.3 (RoPE, rounded three times by transformers, once by
us, over as few as 64 numbers), else 1.8.
"""

MAX_BIAS = 0.0016
"""Maximum |bias| and |shrink|, relative to the values. Correct: 0.0006, for one row of 128 numbers. Rounding
downwards, or cutting bits off, gives half a unit in the last place: 0.0027.
"""

MAX_BIAS_BFP16 = 0.004
"""The same for a product in block floating point, which has up to 0.0016 when it is correct."""

MAX_DRIFT = 4.0
"""Times the yardstick's relative L1, in the whole run. Correct: 2.3 in decode, which has a single row, 1.7 in
prefill.
"""

MAX_DRIFT_BFP16 = 8.0
"""The same with block floating point in our run and none in the yardstick's. Correct: 4.2."""

MIN_COSINE_GAP = 1e-12
"""The rounding error of a cosine of equal vectors in float64."""


@dataclass(frozen=True)
class BoundCheck:
    """A measure and its bound: the minimum for a cosine, the maximum of |value| for all others."""

    name: str
    value: float
    bound: float

    @property
    def used_share(self) -> float:
        """How much of the bound is used; above 1 it is exceeded. Infinite if the value is not finite."""
        value, bound = abs(self.value), self.bound
        if self.name == "cosine":
            value, bound = 1 - self.value, 1 - self.bound
        if not math.isfinite(value):
            return math.inf
        return value / bound if bound else math.inf if value else 0.0

    @property
    def passes(self) -> bool:
        return self.used_share <= 1

    def __str__(self) -> str:
        shown = "{:.7f}" if self.name == "cosine" else "{:.3g}"
        return f"{self.name} {shown.format(self.value)} (bound {shown.format(self.bound)})"


def own_checks(ours: Measures, yardstick: Measures, of_blocks: bool) -> tuple[BoundCheck, ...]:
    """The checks of a step on its own inputs. of_blocks: a product in block floating point, in the yardstick
    too.

    What is exact in the reference, such as a copy, must be exact in ours. If few numbers give the reference's
    own bf16 a bias, ours may have as much more.
    """
    lean = (MAX_BIAS_BFP16 if of_blocks else MAX_BIAS) if yardstick.max_diff else 0.0
    return (
        *run_checks(ours, yardstick, ROUNDING),
        BoundCheck("largest difference", ours.max_diff, MAX_DIFFERENCE * yardstick.max_diff),
        BoundCheck("bias", ours.bias, lean + abs(yardstick.bias)),
        BoundCheck("shrink", ours.shrink, lean + abs(yardstick.shrink)),
    )


def run_checks(ours: Measures, yardstick: Measures, times: float) -> tuple[BoundCheck, ...]:
    """The checks of a step in the whole run. The gap of a cosine to 1 grows with the square of the error."""
    gap = max(times**2 * (1 - yardstick.cosine), MIN_COSINE_GAP)
    return (
        BoundCheck("cosine", ours.cosine, 1 - gap),
        BoundCheck("relative L1", ours.relative_l1, times * yardstick.relative_l1),
    )
