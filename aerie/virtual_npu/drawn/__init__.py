"""Programs drawn at random from a grammar, so that a corpus for the static check, or for runs with checks and
without, is drawn and not collected.

`draw(seed)` gives one program. Its shape is drawn (forms.py): how data travel, through which memories, the
herd, the launch, nested loops, element types, sizes, offsets and what a core computes. Then features are
drawn (features.py) and written into it, each with what upstream's tools are known to say of it, and who says
so. That is no second static check: nobody looks at the text, what was written into it is known.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from aerie.virtual_npu.drawn.features import FEATURES, Feature, Verdict
from aerie.virtual_npu.drawn.forms import Form, draw_form, text_of

__all__ = ["FEATURES", "Drawn", "Feature", "Form", "Verdict", "draw"]

PLAIN, ONE = 0.3, 0.75
"""The shares of programs without a feature, and with at most one."""


@dataclass(frozen=True)
class Drawn:
    """A program, what was drawn for it, and what the tools are known to say.

    form: the shape, by its parts. features: what was written into it. expected: REFUSED where one of them is.
    """

    seed: int
    text: str = field(repr=False)
    form: Form
    features: tuple[Feature, ...]

    @property
    def name(self) -> str:
        """The program's name, which is its function's too."""
        return f"drawn_{self.seed}"

    @property
    def expected(self) -> Verdict:
        """What the tools are known to say."""
        return max((feature.verdict for feature in self.features), default=Verdict.ACCEPTED)

    def as_json(self) -> dict[str, object]:
        """The labels as plain values."""
        return {
            "name": self.name,
            "seed": self.seed,
            "form": self.form.words,
            "features": {feature.name: feature.verdict.name.lower() for feature in self.features},
            "expected": self.expected.name.lower(),
            "sources": sorted({feature.source for feature in self.features}),
        }


def draw(seed: int) -> Drawn:
    """The program of a seed; the same seed gives the same text everywhere."""
    chance = random.Random(seed)
    form = draw_form(chance)
    share = chance.random()
    chosen: list[Feature] = []
    for _ in range(0 if share < PLAIN else 1 if share < ONE else 2):
        fitting = [f for f in FEATURES if f.fits(form) and all(f.part != other.part for other in chosen)]
        feature = chance.choice(fitting)
        form = feature.write(form, chance)
        chosen.append(feature)
    return Drawn(seed, text_of(form, f"drawn_{seed}"), form, tuple(chosen))
