"""Generation: prefill once, then decode token by token until something ends it; from logits to a token."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from aerie.engine.attention import KVCache
from aerie.engine.errors import NotFiniteError, UserError
from aerie.engine.forward import check_prompt, decode_step, next_token_row, prefill, prefill_steps
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array, bf16, widen
from aerie.engine.progress import Bar, no_bar
from aerie.runtime import RunError

Row = TypeVar("Row", bound=NDArray[Any])
F64Array: TypeAlias = NDArray[np.float64]

INFINITY_BITS, NEGATIVE = 0x7F80, 0x8000
"""Of bf16: the bits of +infinity, and the sign."""


@dataclass(frozen=True)
class Sampler:
    """Greedy at temperature 0; above it, draws from softmax(logits / temperature) after cutting the tail.

    `top_k` keeps the k most likely tokens (0: all), then `top_p` the fewest whose probabilities reach
    p (1: all), in the order and with the rules of transformers' logits processors. The same `seed`
    draws the same tokens. Raises UserError for a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    _random: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature is {self.temperature}; it must be 0 (greedy) or more")
        if self.top_k < 0:
            raise UserError(f"top-k is {self.top_k}; it must be 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p is {self.top_p}; it must be above 0 and at most 1 (all tokens)")
        if self.seed is not None and self.seed < 0:
            raise UserError(f"seed is {self.seed}; it must be 0 or more")
        object.__setattr__(self, "_random", np.random.default_rng(self.seed))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def __call__(self, logits: F32Array | BF16Array) -> int:
        """The next token for logits of shape (vocab_size,), float32 or bf16.

        Equal logits: the lowest id, when greedy. NotFiniteError where one is not finite.
        """
        if logits.dtype == bf16:
            if self.greedy and (token := _most_likely(logits.view(np.uint16))) is not None:
                return token
            logits = widen(logits)
        if not np.isfinite(logits).all():
            raise NotFiniteError
        if self.greedy:
            return int(np.argmax(logits))
        order = np.argsort(-logits, kind="stable")
        likely = order[: self.top_k] if self.top_k else order
        probabilities = _softmax(logits[likely].astype(np.float64) / self.temperature)
        # A token stays while those before it have not yet reached top_p, so the first always stays.
        kept = np.cumsum(probabilities) - probabilities < self.top_p
        return int(self._random.choice(likely[kept], p=_normalised(probabilities[kept])))


def _most_likely(bits: NDArray[np.uint16]) -> int | None:
    """The place of the largest of bf16 values, from their bits; None where these do not tell.

    Without their sign the bits of floats are in the order of their values, and infinities and NaN come last.
    """
    token = int(np.argmax(bits.view(np.int16)))
    is_positive = 0 < bits[token] < INFINITY_BITS
    return token if is_positive and np.max(bits) < NEGATIVE + INFINITY_BITS else None


def _softmax(values: F64Array) -> F64Array:
    return _normalised(np.exp(values - values.max()))


def _normalised(values: F64Array) -> F64Array:
    normalised: F64Array = values / values.sum()
    return normalised


class FinishReason(enum.Enum):
    """Why a generation ended."""

    STOP = "stop"  # the model gave an end-of-sequence token
    LENGTH = "length"  # the number of tokens asked for was reached
    CONTEXT = "context"  # the model has no further positions
    INTERRUPTED = "interrupted"  # the user stopped it


@dataclass(frozen=True)
class Figures:
    """Counts in tokens, times in seconds. `ttft_s` runs from the start of prefill to the first token.

    `tokens_per_s` is the rate of the tokens after the first; None where there was no second one.
    """

    prompt_tokens: int
    new_tokens: int
    ttft_s: float
    tokens_per_s: float | None

    def __str__(self) -> str:
        rate = "-" if self.tokens_per_s is None else f"{self.tokens_per_s:.2f}"
        return (
            f"prompt {self.prompt_tokens} tokens | new {self.new_tokens} tokens | "
            f"time to first token {self.ttft_s:.3f} s | {rate} tokens/s"
        )


Recover = Callable[[RunError, str], LoadedModel]
"""Called with a failure and where it happened: gives the model to go on with, or raises the failure."""


def give_up(error: RunError, where: str) -> LoadedModel:  # noqa: ARG001
    """There is nothing to go on with."""
    raise error


def never() -> bool:
    return False


class Generation:
    """Tokens as they are made: iterate over it once. An end-of-sequence token is given too, and ends it.

    `interrupted` is asked after every token; True ends the generation. `bar` moves while the prompt is read.
    Afterwards `finish_reason` says why it ended and `figures` how fast it was. `recover` is called when a
    device fails: the step that failed is run again by the model that it gives. Raises PromptError, before
    anything is run, for a prompt that cannot be run, and UserError where fewer than one token is asked for.
    """

    def __init__(
        self,
        model: LoadedModel,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        sampler: Sampler,
        interrupted: Callable[[], bool] = never,
        recover: Recover = give_up,
        bar: Bar = no_bar,
    ) -> None:
        check_prompt(prompt_ids, model.config, model.seq_len)
        if max_new_tokens < 1:
            raise UserError(f"{max_new_tokens} tokens were asked for; ask for 1 or more")
        self.prompt_ids = tuple(prompt_ids)
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._model = model
        self._max_new_tokens = max_new_tokens
        self._sampler = sampler
        self._interrupted = interrupted
        self._recover = recover
        self._bar = bar
        self._started = self._first = self._last = 0.0

    def __iter__(self) -> Iterator[int]:
        self._started = time.perf_counter()
        cache = self._model.new_cache(len(self.prompt_ids) + self._max_new_tokens)
        rows = self._step(self._read, self.prompt_ids, cache)
        token = self._pick(rows[-1])
        yield token
        while (reason := self._reason_to_finish(token, cache.length)) is None:
            row = self._step(decode_step, token, cache)
            token = self._pick(row)
            yield token
        self.finish_reason = reason

    def go_on_with(self, model: LoadedModel) -> None:
        """Make what is left with another model's programs: the same model on others, say longer ones."""
        self._model = model

    @property
    def ending(self) -> str:
        """Why it ended, in words."""
        return {
            FinishReason.STOP: "complete",
            FinishReason.LENGTH: f"cut after {self._max_new_tokens} tokens (--n-tokens, N_TOKENS)",
            FinishReason.CONTEXT: f"cut at the end of the model's context of "
            f"{self._model.config.context} positions",
            FinishReason.INTERRUPTED: "stopped",
            None: "not ended",
        }[self.finish_reason]

    @property
    def figures(self) -> Figures:
        count = len(self.token_ids)
        rate = (count - 1) / (self._last - self._first) if count > 1 else None
        return Figures(len(self.prompt_ids), count, self._first - self._started, rate)

    def _read(self, model: LoadedModel, prompt_ids: Sequence[int], cache: KVCache) -> BF16Array:
        with self._bar(prefill_steps(model.config)) as step:
            return prefill(model, prompt_ids, cache, step)

    def _pick(self, hidden: BF16Array) -> int:
        logits = self._step(next_token_row, hidden)
        with self._model.host_timer("sampling"):
            token = self._sampler(logits)
        self._last = time.perf_counter()
        if not self.token_ids:
            self._first = self._last
        self.token_ids.append(token)
        return token

    def _step(self, step: Callable[..., Row], *arguments: Any) -> Row:
        """One step of the forward pass; run again, from its start, once a failed device was replaced."""
        try:
            return step(self._model, *arguments)
        except RunError as error:
            self._model = self._recover(error, f"at token {len(self.token_ids) + 1} of the answer")
        return step(self._model, *arguments)

    def _reason_to_finish(self, token: int, next_position: int) -> FinishReason | None:
        config = self._model.config
        if token in config.eos_token_ids:
            return FinishReason.STOP
        if len(self.token_ids) >= self._max_new_tokens:
            return FinishReason.LENGTH
        if next_position >= config.context:
            return FinishReason.CONTEXT
        return FinishReason.INTERRUPTED if self._interrupted() else None
