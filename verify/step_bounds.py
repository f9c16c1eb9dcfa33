"""How far a step may be from exact arithmetic before it is named."""

from __future__ import annotations

from dataclasses import dataclass

from verify.measures import Measures

# To be set from measurements.
ROUNDING = 3.0
LEAST_SHRINK = 1e-3


@dataclass(frozen=True)
class Bounds:
    """The least cosine; the most of the others. What is exact in the reference has to be exact in ours."""

    cosine: float
    max_diff: float
    relative_l1: float
    shrink: float

    def left_by(self, measures: Measures) -> str:
        """What of `measures` is beyond its bound, in words; empty where nothing is."""
        checks = (
            ("cosine", measures.cosine, self.cosine, measures.cosine >= self.cosine),
            ("relative L1", measures.relative_l1, self.relative_l1, measures.relative_l1 <= self.relative_l1),
            ("largest difference", measures.max_diff, self.max_diff, measures.max_diff <= self.max_diff),
            ("shrink", measures.shrink, self.shrink, abs(measures.shrink) <= self.shrink),
        )
        return ", ".join(
            f"{name} {value:.4g} (bound {bound:.4g})" for name, value, bound, holds in checks if not holds
        )


def bounds_from(yardstick: Measures) -> Bounds:
    """The bounds for ours, from the measures of transformers' bf16 on the same inputs."""
    if yardstick.max_diff == 0:
        return Bounds(1 - 1e-12, 0.0, 0.0, 0.0)
    return Bounds(
        cosine=1 - ROUNDING**2 * (1 - yardstick.cosine),
        max_diff=ROUNDING * yardstick.max_diff,
        relative_l1=ROUNDING * yardstick.relative_l1,
        shrink=LEAST_SHRINK + ROUNDING * abs(yardstick.shrink),
    )
