"""How far a step may be from the reference before it is named, with the measurement behind each number.

The yardstick is what the same rounding does to transformers: each number below is a multiple of that, or a
share of the values themselves. Measured on the demo checkpoint on the virtual NPU and on random Llamas of
five other shapes (one a layer of full size), prompts of 1 to 128 tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from verify.measures import Measures

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

    What is exact in the reference, such as a copy, has to be exact in ours.
    """
    lean = (LEAN_OF_BLOCKS if of_blocks else LEAN) if yardstick.max_diff else 0.0
    return (
        *run_checks(ours, yardstick, ROUNDING),
        Check("largest difference", ours.max_diff, LARGEST * yardstick.max_diff),
        Check("bias", ours.bias, lean),
        Check("shrink", ours.shrink, lean),
    )


def run_checks(ours: Measures, yardstick: Measures, times: float) -> tuple[Check, ...]:
    """A step in the whole run. The gap of a cosine to 1 grows with the square of the error."""
    gap = max(times**2 * (1 - yardstick.cosine), LEAST_COSINE_GAP)
    return (
        Check("cosine", ours.cosine, 1 - gap),
        Check("relative L1", ours.relative_l1, times * yardstick.relative_l1),
    )
