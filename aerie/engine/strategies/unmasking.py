"""Which masked positions of a block become tokens in a step, and which tokens these are: rules of choice.

In every step a token is drawn for each masked position, by the Sampler with all its settings; the rule then
says which of these tokens stay. The rules are those of SDAR (arXiv 2510.06303; JetAstra/SDAR, generate.py),
and entropy_bounded is JetEngine's (Labman42/JetEngine, scheduler.py), after arXiv 2505.24857. S steps fill a
block of B; step s of them has to fill n_s = B // S positions, and one more where s < B % S.

* sequential: the leftmost n_s.
* low_confidence_static: the n_s whose tokens have the highest confidence.
* low_confidence_dynamic: all whose confidence is greater than the threshold; where these are fewer than n_s,
  the n_s of highest confidence.
* entropy_bounded: those of least entropy, as many as stay together under the bound, and at least one. It
  knows no n_s: a block takes as many steps as it needs.

Positions that are as good as each other are taken from the left. n_s is never more than the masks that are
left, so a position that holds a token, as the end of a prompt does, is never chosen: SDAR's own code does
choose such ones.

Confidence is the probability of the drawn token, and entropy that of the whole distribution, in the softmax
of the logits as the model made them: all tokens, the mask token among them, without temperature, filters,
penalties or bias, in float64. SDAR's own code takes the probability after the filters, where top_k=1 makes
each one 1 and fills a block at once; JetEngine has no filters in it, as here, but the temperature.

The mask token is never drawn (`Sampler.without`): what would stand there is what is looked for. What it had
of the probability counts as doubt, since confidence does not know that it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from aerie.common.errors import UserError
from aerie.engine.numerics import BF16Array, F32Array, bf16, widen
from aerie.engine.sampler import Sampler
from aerie.engine.sampling_filters import F64Array

SEQUENTIAL, STATIC = "sequential", "low_confidence_static"
DYNAMIC, ENTROPY = "low_confidence_dynamic", "entropy_bounded"
DEFAULT_RULE = DYNAMIC


class UnmaskedTokens(NamedTuple):
    """What a step fills in: positions within the block, from left to right, their tokens, the confidence in
    each, and the entropy of its distribution in nats."""

    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    confidences: tuple[float, ...]
    entropies: tuple[float, ...]


@dataclass(frozen=True)
class UnmaskingRule:
    """By which rule masks become tokens, with its settings.

    name: one of RULE_NAMES. steps: in how many a block is filled at most; None: as many as it has tokens; not of
    entropy_bounded. threshold: of low_confidence_dynamic, a probability. entropy: of entropy_bounded, in
    nats. Raises UserError for a value out of range.
    """

    name: str = DEFAULT_RULE
    steps: int | None = None
    threshold: float = 0.9
    entropy: float = 0.1

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise UserError(f"rule is {self.name!r}; give one of {', '.join(RULE_NAMES)}")
        if self.steps is not None and not (isinstance(self.steps, Integral) and self.steps >= 1):
            raise UserError(f"steps is {self.steps}; a block is filled in 1 step or more, a whole number")
        if not 0 <= self.threshold <= 1:
            raise UserError(
                f"threshold is {self.threshold}; it is a probability, from 0 (all stays that is drawn) to 1 "
                "(no more than a step has to fill)"
            )
        if not self.entropy > 0:
            raise UserError(
                f"entropy is {self.entropy} nats, and nothing is under that; it must be above 0, and "
                f"{DEFAULT_SETTINGS.entropy} is usual"
            )

    def for_block(self, block: int) -> UnmaskingRule:
        """This rule, for blocks, or parts of blocks, of so many tokens; UserError for more steps."""
        if self.steps is not None and self.steps > block:
            raise UserError(
                f"steps is {self.steps}, and each fills in a token or more of {block}; give 1 to {block}"
            )
        return self

    def min_unmasked(self, step: int, block: int) -> int:
        """n_s: how many positions of a block this step, counted from 0, has to fill."""
        steps = self.steps or block
        return block // steps + (step < block % steps)


class _Candidates(NamedTuple):
    """What a rule goes by: its settings, how many positions are to be filled, and, of each masked position
    from left to right, confidence and entropy."""

    rule: UnmaskingRule
    min_unmasked: int
    confidences: F64Array
    entropies: F64Array


_Indices: TypeAlias = Sequence[int]
"""Among the masked positions, from the left."""


def _sequential(drawn: _Candidates) -> _Indices:
    return range(drawn.min_unmasked)


def _static(drawn: _Candidates) -> _Indices:
    return _smallest(-drawn.confidences)[: drawn.min_unmasked]


def _dynamic(drawn: _Candidates) -> _Indices:
    above: list[int] = np.flatnonzero(drawn.confidences > drawn.rule.threshold).tolist()
    return above if len(above) >= drawn.min_unmasked else _static(drawn)


def _entropy(drawn: _Candidates) -> _Indices:
    order = _smallest(drawn.entropies)
    under = np.cumsum(drawn.entropies[order]) < drawn.rule.entropy
    return order[: max(1, int(np.count_nonzero(under)))]


def _smallest(values: F64Array) -> list[int]:
    """Places in the order of their values, equal ones from the left."""
    order: list[int] = np.argsort(values, kind="stable").tolist()
    return order


RULES: Mapping[str, Callable[[_Candidates], _Indices]] = MappingProxyType(
    {SEQUENTIAL: _sequential, STATIC: _static, DYNAMIC: _dynamic, ENTROPY: _entropy}
)
RULE_NAMES = tuple(RULES)
DEFAULT_SETTINGS = UnmaskingRule()


class Unmasker:
    """Chooses by a rule, for blocks, or parts of blocks, of `block` tokens.

    What it remembers from step to step is the sampler's random generator alone, which stays that sampler's:
    `Sampler.state` and `restore` are those of a chooser too. UserError for more steps than tokens.
    """

    def __init__(self, rule: UnmaskingRule, block: int, sampler: Sampler, mask_token_id: int) -> None:
        self._rule, self._block = rule.for_block(block), block
        self._sampler = sampler.excluding(mask_token_id)

    def __call__(
        self,
        logits: Sequence[F32Array | BF16Array] | F32Array | BF16Array,
        masked: Sequence[int],
        step: int,
        prompt_ids: Sequence[int] = (),
        token_ids: Sequence[int] = (),
    ) -> UnmaskedTokens:
        """The tokens that this step fills in.

        logits: a row (vocab_size,) of float32 or bf16 for each masked position, left to right. masked: these
        positions, within the block. step: which one of this block, from 0. prompt_ids, token_ids: what
        penalties count as said, the prompt and what was made after it, tokens that earlier steps chose in
        this block among them; tokens of one step do not count for each other.

        Above temperature 0 one number is drawn from the random generator for every masked position, from left
        to right, whether its token stays or not; at temperature 0 none. NotFiniteError where a logit is not
        finite.
        """
        tokens = [self._sampler(row, prompt_ids, token_ids) for row in logits]
        told = [_confidence_and_entropy(row, token) for row, token in zip(logits, tokens, strict=True)]
        confidences, entropies = np.array(told, np.float64).reshape(-1, 2).T
        least = min(self._rule.min_unmasked(step, self._block), len(masked))
        places = sorted(RULES[self._rule.name](_Candidates(self._rule, least, confidences, entropies)))
        return UnmaskedTokens(
            tuple(masked[place] for place in places),
            tuple(tokens[place] for place in places),
            tuple(told[place][0] for place in places),
            tuple(told[place][1] for place in places),
        )


def _confidence_and_entropy(row: F32Array | BF16Array, token: int) -> tuple[float, float]:
    """The token's probability in the softmax of these logits, and the entropy of that in nats.

    With x the logits less the largest and Z the sum of exp(x), entropy, -sum(p log p), is log Z less the mean
    of x.
    """
    wide = (widen(row) if row.dtype == bf16 else row).astype(np.float64)
    wide -= wide.max()
    shares = np.exp(wide)
    total = shares.sum()
    confidence = float(shares[token] / total)
    shares *= wide
    return confidence, max(float(np.log(total) - shares.sum() / total), 0.0)
