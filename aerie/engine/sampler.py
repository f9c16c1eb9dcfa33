"""Sampler: from logits to a token, by penalties and bias, then the most likely token or a random one.

In this order, with the rules of transformers' logits processors (generation/logits_process.py) where it has
them:

1. logit bias: added to the logits of the tokens that it names.

2. repetition penalty: for every token in the prompt or the answer, a positive logit is divided by it and a
negative one multiplied.

3. frequency and presence penalty, which transformers does not have, as OpenAI's API defines them and vLLM
implements them (model_executor/layers/utils.py, apply_penalties): for every token of the answer, frequency
times its count and presence once are subtracted from its logit. The prompt does not count.

4. At temperature 0 the most likely token is taken. Above it logits are divided by the temperature;

5. top-k: tokens less likely than the k-th are dropped; those as likely stay, as in transformers.

6. top-p: the fewest tokens, the most likely first, whose probabilities reach p.

7. min-p: tokens whose probability is less than this fraction of the highest are dropped.

With structured output (grammar.py) or a budget for thinking (thinking_plan.py), tokens that are not allowed
are dropped after the penalties, and so before everything else.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.errors import NotFiniteError
from aerie.engine.grammar import Grammar, GrammarMatcher
from aerie.engine.numerics import BF16Array, F32Array, bf16, widen
from aerie.engine.sampling_filters import F64Array, Ranks, SamplingFilters, apply_filters, sample_index
from aerie.engine.thinking_plan import ThinkingMatcher, ThinkingPlan

INFINITY_BITS, NEGATIVE = 0x7F80, 0x8000
"""The bits of +infinity and of the sign, in bf16."""
MAX_BIAS, MAX_PENALTY = 100.0, 2.0
"""Limits of the absolute value, as in OpenAI's API."""
MIN_TEMPERATURE = float(np.finfo(np.float32).tiny)
"""The smallest normal number of float32. Smaller ones are 0 or lose digits in other code that divides by the
temperature. Logits are divided in float64, where this temperature causes no overflow."""
FLOAT32_RANGE = np.finfo(np.float32).min, np.finfo(np.float32).max
SEED_LIMIT = 2**128
"""Number of different states of numpy's SeedSequence."""


class SamplingSettings(TypedDict, total=False):
    """The settings of a Sampler by name, for keyword arguments."""

    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]


@dataclass(frozen=True)
class Sampler:
    """Chooses tokens. The defaults are greedy, and change no logit.

    temperature: 0 is greedy; a higher one is more random. top_k: 0 means all tokens. top_p: 1 means all
    tokens. seed: the same seed gives the same tokens; None means a random seed. min_p: 0 means all tokens.
    repetition_penalty: 1 means none. presence_penalty, frequency_penalty: 0 means none. logit_bias: by token
    id. grammar: a compiled grammar of the same model; None means any text. thinking: the budget of a model
    that thinks first, and where its grammar begins. Raises UserError for a value out of range.

    Its only state between tokens is the random generator (`state`, `restore`): each call gets the tokens so
    far, also for the grammar.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: Grammar | None = None
    thinking: ThinkingPlan | None = None
    _random: np.random.Generator = field(init=False, repr=False, compare=False)
    _excluded: int | None = field(init=False, repr=False, default=None)
    _matcher: GrammarMatcher | ThinkingMatcher | None = field(
        init=False, repr=False, compare=False, default=None
    )

    def __post_init__(self) -> None:
        if wrong := next(self._out_of_range(), None):
            raise UserError(wrong)
        object.__setattr__(self, "_random", np.random.default_rng(self.seed))
        if self.thinking:
            object.__setattr__(self, "_matcher", self.thinking.matcher(self.grammar))
        elif self.grammar:
            object.__setattr__(self, "_matcher", self.grammar.start())

    def _out_of_range(self) -> Iterator[str]:
        """The problems of the values, one line each."""
        if not 0 <= self.temperature <= sys.float_info.max:
            yield f"temperature is {_number_text(self.temperature)}; it must be 0 (greedy) or more"
        if 0 < self.temperature < MIN_TEMPERATURE:
            yield (
                f"temperature is {self.temperature}, by which float32 cannot divide; it must be 0 (greedy), "
                f"or {MIN_TEMPERATURE:.3g} or more"
            )
        if not isinstance(self.top_k, Integral):
            yield f"top-k is {self.top_k!r}; it must be a whole number"
        if self.top_k < 0:
            yield f"top-k is {_number_text(self.top_k)}; it must be 0 (all tokens) or more"
        if not 0 < self.top_p <= 1:
            yield f"top-p is {_number_text(self.top_p)}; it must be above 0 and at most 1 (all tokens)"
        yield from self._wrong_seed()
        if not 0 <= self.min_p <= 1:
            yield f"min-p is {_number_text(self.min_p)}; it must be from 0 (all tokens) to 1"
        if not 0.01 <= self.repetition_penalty <= 100:
            value = _number_text(self.repetition_penalty)
            yield f"repetition-penalty is {value}; it must be from 0.01 to 100; 1 is none"
        for name in ("presence", "frequency"):
            if not abs(value := getattr(self, f"{name}_penalty")) <= MAX_PENALTY:
                yield f"{name}-penalty is {_number_text(value)}; it must be from -2 to 2, and 0 is none"
        for token, bias in self.logit_bias.items():
            if not isinstance(token, Integral):
                yield f"logit-bias names {token!r}; name a token by its id, a whole number"
            if not abs(bias) <= MAX_BIAS:
                value = _number_text(bias)
                yield f"logit-bias of token {_number_text(token)} is {value}; it must be from -100 to 100"

    def _wrong_seed(self) -> Iterator[str]:
        if self.seed is None:
            return
        if not isinstance(self.seed, Integral):
            yield f"seed is {self.seed!r}; it must be a whole number"
        elif self.seed < 0:
            yield f"seed is {_number_text(self.seed)}; it must be 0 or more"
        elif self.seed >= SEED_LIMIT:
            yield f"seed is {_number_text(self.seed)}; it must be less than 2**128"

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises UserError if the bias names a token beyond the vocabulary."""
        if (token := next((one for one in self.logit_bias if not 0 <= one < vocab_size), None)) is not None:
            raise UserError(
                f"logit-bias names token {_number_text(token)}, and the model's vocabulary has 0 to "
                f"{vocab_size - 1}; name one of these"
            )

    def excluding(self, token: int) -> Sampler:
        """This sampler without one token, which it never gives: the other tokens share its probability.

        Both use one random generator, so `state` and `restore` of either are those of both.
        """
        other = copy.copy(self)
        object.__setattr__(other, "_excluded", token)
        return other

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def changes_logits(self) -> bool:
        """Whether bias or penalties are set."""
        return bool(
            self.logit_bias or self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty
        )

    @property
    def _has_excluded(self) -> bool:
        """Whether some tokens are not allowed."""
        return self._excluded is not None or self._matcher is not None

    def __call__(
        self, logits: F32Array | BF16Array, prompt_ids: Sequence[int] = (), token_ids: Sequence[int] = ()
    ) -> int:
        """The next token. logits: (vocab_size,), float32 or bf16. prompt_ids, token_ids: the prompt, and the
        answer so far.

        Above temperature 0 the random generator gives one number, at temperature 0 none. Equal logits: the
        lowest id, if greedy. Raises NotFiniteError if a logit is not finite.
        """
        if self.greedy and logits.dtype == bf16 and not self.changes_logits and self._matcher is None:
            token = _most_likely(logits.view(np.uint16))
            if token is not None and token != self._excluded:
                return token
        scores = self._adjusted(logits, prompt_ids, token_ids)
        if self.greedy:
            return int(np.argmax(scores))
        values = self._values(scores)
        rank = sample_index(values, self._filters, self._random.random())
        return _token_of(rank, scores, values)

    def distribution(
        self, logits: F32Array | BF16Array, prompt_ids: Sequence[int] = (), token_ids: Sequence[int] = ()
    ) -> tuple[Ranks, F64Array]:
        """The tokens that may be sampled, the most likely first, and their probabilities, which sum to 1.

        Arguments and errors as in a call. Samples nothing. Greedy: one token.
        """
        scores = self._adjusted(logits, prompt_ids, token_ids)
        if self.greedy:
            return np.array([np.argmax(scores)]), np.ones(1)
        ranks, probabilities = apply_filters(values := self._values(scores), self._filters)
        likely = np.flatnonzero(scores >= values[ranks[-1]])
        return likely[np.argsort(-scores[likely], kind="stable")][ranks], probabilities

    def _values(self, scores: F32Array) -> F32Array:
        """The scores after top-k, the largest first, without their tokens (sampling_filters.py)."""
        if self._has_excluded:
            scores = scores[scores > -np.inf]
        if 0 < self.top_k < len(scores):
            scores = scores[scores >= np.partition(scores, -self.top_k)[-self.top_k]]
        return np.ascontiguousarray(np.sort(scores)[::-1])

    @property
    def _filters(self) -> SamplingFilters:
        return SamplingFilters(self.temperature, self.top_p, self.min_p)

    @property
    def settings(self) -> dict[str, Any]:
        """The constructor's arguments by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    def state(self) -> str:
        """The state of the random generator, as JSON. A Sampler with this state continues as this one."""
        return json.dumps(self._random.bit_generator.state)

    def restore(self, state: str) -> None:
        """Continue from a `state`. Raises UserError for another text, which changes nothing."""
        try:
            self._random.bit_generator.state = json.loads(state)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise UserError(
                f"{state[:40]!r} is no state of a sampler ({error}); give what Sampler.state gave"
            ) from None

    def _adjusted(
        self, logits: F32Array | BF16Array, prompt_ids: Sequence[int], token_ids: Sequence[int]
    ) -> F32Array:
        """The logits with bias and penalties, (vocab_size,) float32. Raises NotFiniteError if one is not
        finite."""
        scores: F32Array = widen(logits) if logits.dtype == bf16 else logits
        if not np.isfinite(scores).all():
            raise NotFiniteError
        if not self.changes_logits and not self._has_excluded:
            return scores
        scores = scores.copy()
        if self.changes_logits:
            self._penalise(scores, prompt_ids, token_ids)
        if self._matcher is not None and (mask := self._matcher.token_mask(token_ids)) is not None:
            scores[~mask] = -np.inf
        if self._excluded is not None:
            scores[self._excluded] = -np.inf
        return scores

    def _penalise(self, scores: F32Array, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> None:
        """Apply bias and penalties in place. Values beyond float32 become its largest number."""
        for token, bias in self.logit_bias.items():
            scores[token] += np.float32(bias)
        if self.repetition_penalty != 1:
            penalised_ids = np.unique([*prompt_ids, *token_ids]).astype(np.intp)
            penalty = self.repetition_penalty
            with np.errstate(over="ignore"):
                penalised = scores[penalised_ids]
                scores[penalised_ids] = np.clip(
                    np.where(penalised < 0, penalised * penalty, penalised / penalty), *FLOAT32_RANGE
                )
        output_ids, counts = np.unique(np.array(token_ids, np.intp), return_counts=True)
        scores[output_ids] -= np.float32(self.frequency_penalty) * counts.astype(np.float32)
        scores[output_ids] -= np.float32(self.presence_penalty)


def _number_text(number: float) -> str:
    """A number as text. Python writes none of thousands of digits."""
    is_long = isinstance(number, int) and number.bit_length() > 256
    return f"a number of {int(number).bit_length()} bits" if is_long else str(number)


def _token_of(rank: int, scores: F32Array, values: F32Array) -> int:
    """The token whose score is `values[rank]`, for scores in order: of equal ones the lower id is first."""
    equal = np.flatnonzero(scores == values[rank])
    return int(equal[rank - np.flatnonzero(values == values[rank])[0]])


def _most_likely(bits: NDArray[np.uint16]) -> int | None:
    """The index of the largest of these bf16 values, from their bits; None if the bits do not decide it.

    Without the sign, the bits of floats are in the order of their values, and infinities and NaN come last.
    """
    token = int(np.argmax(bits.view(np.int16)))
    is_positive = 0 < bits[token] < INFINITY_BITS
    return token if is_positive and np.max(bits) < NEGATIVE + INFINITY_BITS else None
