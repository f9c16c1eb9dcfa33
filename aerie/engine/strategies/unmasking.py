"""Unmasking rules: which masked positions of a block become tokens in a pass, and which tokens.

In every pass the Sampler, with all its settings, samples a token for each masked position; the rule then
selects the tokens that stay. The rules are those of SDAR (arXiv 2510.06303; JetAstra/SDAR, generate.py);
entropy_bounded is JetEngine's (Labman42/JetEngine, scheduler.py), after arXiv 2505.24857. S steps fill a
block of B; step s must fill n_s = B // S positions, and one more if s < B % S.

* sequential: the leftmost n_s.
* low_confidence_static: the n_s with the highest confidence.
* low_confidence_dynamic: all whose confidence is above the threshold; if these are fewer than n_s, the n_s
  with the highest confidence.
* entropy_bounded: those of least entropy, as many as stay together under the bound, and at least one. It has
  no n_s: a block takes as many passes as it needs.

Equal positions are taken from the left. n_s is never more than the remaining masks, so a position with a
token, such as the end of a prompt, is never chosen. SDAR's own code can choose those.

Confidence is the probability of the sampled token. Entropy is that of the whole distribution. Both are of the
softmax of the model's logits in float64: all tokens, the mask token included, without temperature, filters,
penalties or bias. SDAR's own code takes the probability after the filters, where top_k=1 makes each one 1 and
fills a block in one pass. JetEngine applies the temperature, and no filters.

The mask token is never sampled (`Sampler.excluding`). Its probability still lowers the confidence of the
others.
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
    """The tokens that a pass fills in: positions within the block, from left to right, their tokens, the
    confidence in each, and the entropy of its distribution in nats."""

    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    confidences: tuple[float, ...]
    entropies: tuple[float, ...]


@dataclass(frozen=True)
class UnmaskingRule:
    """An unmasking rule with its settings.

    name: one of RULE_NAMES. steps: maximum number of passes for a block; None means its number of tokens; not
    for entropy_bounded. threshold: for low_confidence_dynamic, a probability. entropy: for entropy_bounded,
    in nats. Raises UserError for a value out of range.
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
        """This rule, for blocks or parts of blocks of this size. Raises UserError if it has more steps."""
        if self.steps is not None and self.steps > block:
            raise UserError(
                f"steps is {self.steps}, and each fills in a token or more of {block}; give 1 to {block}"
            )
        return self

    def min_unmasked(self, step: int, block: int) -> int:
        """n_s: number of positions of a block that this step, counted from 0, must fill."""
        steps = self.steps or block
        return block // steps + (step < block % steps)


class _Candidates(NamedTuple):
    """Input of a rule: its settings, the number of positions to fill, and confidence and entropy of each
    masked position, from left to right."""

    rule: UnmaskingRule
    min_unmasked: int
    confidences: F64Array
    entropies: F64Array


_Indices: TypeAlias = Sequence[int]
"""Indices of masked positions, from the left."""


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
    """Indices in the order of their values, equal ones from the left."""
    order: list[int] = np.argsort(values, kind="stable").tolist()
    return order


RULES: Mapping[str, Callable[[_Candidates], _Indices]] = MappingProxyType(
    {SEQUENTIAL: _sequential, STATIC: _static, DYNAMIC: _dynamic, ENTROPY: _entropy}
)
RULE_NAMES = tuple(RULES)
DEFAULT_SETTINGS = UnmaskingRule()


class Unmasker:
    """Applies an unmasking rule to blocks, or parts of blocks, of `block` tokens.

    Its only state between passes is the sampler's random generator: `Sampler.state` and `restore` are those
    of an unmasker too. Raises UserError if the rule has more steps than `block`.
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
        """The tokens that this pass fills in.

        logits: a row (vocab_size,) of float32 or bf16 for each masked position, left to right. masked: these
        positions, within the block. step: number of the pass in this block, from 0. prompt_ids, token_ids:
        the tokens that penalties count: the prompt, and the answer with the tokens that earlier passes chose
        in this block. Tokens of one pass do not count for each other.

        Above temperature 0 the random generator gives one number for every masked position, from left to
        right, whether its token stays or not; at temperature 0 none. Raises NotFiniteError if a logit is not
        finite.
        """
        tokens = [self._sampler(row, prompt_ids, token_ids) for row in logits]
        measures = [_confidence_and_entropy(row, token) for row, token in zip(logits, tokens, strict=True)]
        confidences, entropies = np.array(measures, np.float64).reshape(-1, 2).T
        min_unmasked = min(self._rule.min_unmasked(step, self._block), len(masked))
        indices = sorted(
            RULES[self._rule.name](_Candidates(self._rule, min_unmasked, confidences, entropies))
        )
        return UnmaskedTokens(
            tuple(masked[index] for index in indices),
            tuple(tokens[index] for index in indices),
            tuple(measures[index][0] for index in indices),
            tuple(measures[index][1] for index in indices),
        )


def _confidence_and_entropy(row: F32Array | BF16Array, token: int) -> tuple[float, float]:
    """The token's probability in the softmax of these logits, and the entropy of that in nats.

    With x the logits less the largest and Z the sum of exp(x), the entropy, -sum(p log p), is log Z less the
    mean of x.
    """
    wide = (widen(row) if row.dtype == bf16 else row).astype(np.float64)
    wide -= wide.max()
    probabilities = np.exp(wide)
    total = probabilities.sum()
    confidence = float(probabilities[token] / total)
    probabilities *= wide
    return confidence, max(float(np.log(total) - probabilities.sum() / total), 0.0)
