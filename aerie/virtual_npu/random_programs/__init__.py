"""Random programs from a grammar: a corpus for the static check, and for runs with and without checks.

`random_program(seed)` gives one program. It draws the shape (shapes.py): how data travel, through which
memories, the herd, the launch, nested loops, element types, sizes, offsets and what a core computes. Then it
draws features (features.py) and writes them into the program. Each feature has the verdict of upstream's
tools and its source. This is no second static check: the verdict follows from the features, not the text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from aerie.virtual_npu.random_programs.features import FEATURES, ExpectedVerdict, ProgramFeature
from aerie.virtual_npu.random_programs.shapes import ProgramShape, program_text, random_shape

__all__ = ["FEATURES", "Drawn", "ExpectedVerdict", "ProgramFeature", "ProgramShape", "draw"]

PLAIN, ONE = 0.3, 0.75
"""The shares of programs without a feature, and with at most one."""


@dataclass(frozen=True)
class RandomProgram:
    """A program, its shape, and the features that were written into it."""

    seed: int
    text: str = field(repr=False)
    shape: ProgramShape
    features: tuple[ProgramFeature, ...]

    @property
    def name(self) -> str:
        """The name of the program and of its function."""
        return f"drawn_{self.seed}"

    @property
    def expected(self) -> ExpectedVerdict:
        """The worst verdict of its features; ACCEPTED for a program without features."""
        return max((feature.verdict for feature in self.features), default=ExpectedVerdict.ACCEPTED)

    def to_json(self) -> dict[str, object]:
        """The program's labels, as JSON values."""
        return {
            "name": self.name,
            "seed": self.seed,
            "form": self.shape.words,
            "features": {feature.name: feature.verdict.name.lower() for feature in self.features},
            "expected": self.expected.name.lower(),
            "sources": sorted({feature.source for feature in self.features}),
        }


def random_program(seed: int) -> RandomProgram:
    """The program of a seed. The same seed gives the same text on every machine."""
    chance = random.Random(seed)
    shape = random_shape(chance)
    share = chance.random()
    chosen: list[ProgramFeature] = []
    for _ in range(0 if share < PLAIN else 1 if share < ONE else 2):
        fitting = [f for f in FEATURES if f.fits(shape) and all(f.part != other.part for other in chosen)]
        feature = chance.choice(fitting)
        shape = feature.write(shape, chance)
        chosen.append(feature)
    return RandomProgram(seed, program_text(shape, f"drawn_{seed}"), shape, tuple(chosen))
