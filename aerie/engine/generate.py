"""Generation: read the prompt step by step, then decode token by token until something ends it."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.embeddings import Token, ids_among
from aerie.engine.faults import of_one_answer
from aerie.engine.forward import check_prompt, decode_step, next_token_row, prefill_steps, read
from aerie.engine.kv import Kept, KVCache, Said
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array
from aerie.engine.progress import Bar, no_bar, undisturbed
from aerie.engine.sampler import Sampler
from aerie.runtime import RunError, RunStopped, StopFlag

Row = TypeVar("Row", bound=NDArray[Any])


class FinishReason(enum.Enum):
    """Why a generation ended."""

    STOP = "stop"  # the model gave an end-of-sequence token
    LENGTH = "length"  # the number of tokens asked for was reached
    CONTEXT = "context"  # the model has no further positions
    INTERRUPTED = "interrupted"  # the user stopped it
    ERROR = "error"  # it could not go on; those beside it did


@dataclass(frozen=True)
class Figures:
    """Counts in tokens, times in seconds. `ttft_s` runs from the start of prefill to the first token.

    `tokens_per_s` is the rate of the tokens after the first, or after those that came with it
    (`first_tokens`), as a block does; None where there were none.
    """

    prompt_tokens: int
    new_tokens: int
    ttft_s: float
    tokens_per_s: float | None
    first_tokens: int = 1

    @staticmethod
    def between(
        prompt_tokens: int, new_tokens: int, started: float, first: float, last: float, first_tokens: int = 1
    ) -> Figures:
        """Of an answer that was begun, and had its first and its last token so far, at these times."""
        rate = (new_tokens - first_tokens) / (last - first) if new_tokens > first_tokens else None
        return Figures(prompt_tokens, new_tokens, first - started, rate, first_tokens)

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


def check_asked(model: LoadedModel, prompt: Sequence[Token], max_tokens: int, sampler: Sampler) -> None:
    """PromptError for a prompt that cannot be run, UserError for what else cannot be asked for."""
    check_prompt(prompt, model.config, model.seq_len, endless=model.end.drops)
    if max_tokens < 1:
        raise UserError(f"{max_tokens} tokens were asked for; ask for 1 or more")
    sampler.check_vocabulary(model.config.vocab_size)
    if sampler.grammar and model.config.diffusion is not None:
        raise UserError(
            "a form (a JSON schema, calls) can be asked of models that say one token after the other, "
            "and this one fills in blocks of masks; ask for it in the prompt, or take another model"
        )


def reason_to_finish(
    model: LoadedModel, token: int, is_last: bool, next_position: int
) -> FinishReason | None:
    """Why an answer ends with this token, the last that was asked for or not; None where it goes on."""
    if token in model.config.eos_token_ids:
        return FinishReason.STOP
    if is_last:
        return FinishReason.LENGTH
    is_full = next_position >= model.positions and not model.end.drops
    return FinishReason.CONTEXT if is_full else None


def ending_of(reason: FinishReason | None, max_tokens: int, positions: int) -> str:
    """Why an answer ended, in words: of so many tokens at most, by a model of so many positions."""
    return {
        FinishReason.STOP: "complete",
        FinishReason.LENGTH: f"cut after {max_tokens} tokens (--n-tokens, N_TOKENS)",
        FinishReason.CONTEXT: f"cut at the end of the model's context of {positions} positions "
        "(--context-end, CONTEXT_END)",
        FinishReason.INTERRUPTED: "stopped",
        FinishReason.ERROR: "failed",
        None: "not ended",
    }[reason]


class Generation:
    """Tokens as they are made: iterate over it once. An end-of-sequence token is given too, and ends it.

    `interrupted` is asked after every step; True ends the generation. `stop` ends it sooner, in the middle
    of a program: what has come stays, and the KV cache is as before the step. `bar` moves while the prompt is
    read. What `kept` has of the prompt is not computed again: `cached_tokens` says how many that were.
    Afterwards `finish_reason` says why it ended and `figures` how fast it was. `recover` is called when a
    device fails: the step that failed is run again by the model that it gives. `said`: the
    answer that `kept` has, with which the prompt ends; it goes on. Raises PromptError, before anything is
    run, for a prompt that cannot be run, and UserError where fewer than one token is asked for, or where
    another answer took the place of `said`.
    """

    def __init__(
        self,
        model: LoadedModel,
        prompt: Sequence[Token],
        max_new_tokens: int,
        sampler: Sampler,
        interrupted: Callable[[], bool] = never,
        recover: Recover = give_up,
        bar: Bar = no_bar,
        kept: Kept | None = None,
        said: Said | None = None,
    ) -> None:
        check_asked(model, prompt, max_new_tokens, sampler)
        self.prompt = tuple(prompt)
        self.prompt_ids = tuple(ids_among(prompt))
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._model = model
        self._max_new_tokens = max_new_tokens
        self._sampler = sampler
        self._interrupted = interrupted
        self._recover = recover
        self._bar = bar
        self._kept, self._said = kept or Kept(), said
        self._before = tuple(said.token_ids) if said else ()
        self._asked_ids = self.prompt_ids[: len(self.prompt_ids) - len(self._before)]
        self._stop = StopFlag()
        self.cached_tokens = 0
        self.passes = None  # a token each
        self._started = self._first = self._last = 0.0

    def __iter__(self) -> Iterator[int]:
        return (token for token in self.steps() if token is not None)

    def steps(self) -> Iterator[int | None]:
        """The tokens, and None after each step of the prompt but the last: between two of these, and two
        tokens, nothing is under way, and it may rest as long as one likes."""
        self._started = time.perf_counter()
        cache = self._begin()
        try:
            yield from self._goes_on(self._before[-1], cache) if self._before else self._tokens(cache)
        except RunStopped:
            self.finish_reason = FinishReason.INTERRUPTED
        finally:
            if self._model.blocks.variants:
                asked = self.prompt[: len(self.prompt) - len(self._before)]
                self._kept.give(cache, Said(asked, (*self._before, *self.token_ids), self._sampler))

    def _begin(self) -> KVCache:
        """The cache of the answer that goes on, of a sequence that began alike, or a new one."""
        cache = self._kept.take_said(self._said) if self._said else self._kept.take(self.prompt)
        self.cached_tokens = cache.length if cache else 0
        return cache or self._model.new_cache(len(self.prompt) + self._max_new_tokens)

    def _tokens(self, cache: KVCache) -> Iterator[int | None]:
        rows = yield from self._read(cache)
        if rows is None:
            self.finish_reason = FinishReason.INTERRUPTED
            return
        token = self._pick(rows[-1])
        yield token
        yield from self._goes_on(token, cache)

    def _goes_on(self, token: int, cache: KVCache) -> Iterator[int]:
        """What comes after a token of the answer."""
        while (reason := self._reason_to_finish(token, cache.length)) is None:
            row = self._step(decode_step, token, cache)
            token = self._pick(row)
            yield token
        self.finish_reason = reason

    def stop(self) -> None:
        """End it at once, whichever thread makes its tokens; before its first token, none comes."""
        self._stop.set()

    def go_on_with(self, model: LoadedModel) -> None:
        """Make what is left by the same model on another device."""
        self._model = model

    @property
    def ending(self) -> str:
        """Why it ended, in words."""
        return ending_of(self.finish_reason, self._max_new_tokens, self._model.positions)

    @property
    def figures(self) -> Figures:
        times = self._started, self._first, self._last
        return Figures.between(len(self.prompt), len(self.token_ids), *times)

    def _read(self, cache: KVCache) -> Generator[None, None, BF16Array | None]:
        """The prompt, until `cache` has all of it: gives what its last step does, None where interrupted."""
        reading: Iterator[BF16Array] | None = None

        def step(model: LoadedModel) -> BF16Array:
            nonlocal reading
            reading = reading or read(model, self.prompt[cache.seen :], cache, told, last_only=True)
            try:
                return next(reading)
            except BaseException:
                reading = None  # what is left is begun anew
                raise

        programs = prefill_steps(self._model, len(self.prompt) - cache.seen, cache.length)
        with self._bar(programs) as told:
            rows = self._step(step)
            while cache.seen < len(self.prompt):
                yield
                if self._interrupted():
                    return None
                rows = self._step(step)
        return rows

    def _pick(self, hidden: BF16Array) -> int:
        logits = self._step(next_token_row, hidden)
        with undisturbed():
            with self._model.host_timer("sampling"), of_one_answer():
                said = (*self._before, *self.token_ids) if self._before else self.token_ids
                token = self._sampler(logits, self._asked_ids, said)
            self._last = time.perf_counter()
            if not self.token_ids:
                self._first = self._last
            self.token_ids.append(token)
        return token

    def _step(self, step: Callable[..., Row], *arguments: Any) -> Row:
        """One step of the forward pass; run again, from its start, once a failed device was replaced."""
        with self._stop.watching():
            try:
                return step(self._model, *arguments)
            except RunError as error:
                self._model = self._recover(error, f"at token {len(self.token_ids) + 1} of the answer")
            return step(self._model, *arguments)

    def _reason_to_finish(self, token: int, next_position: int) -> FinishReason | None:
        is_last = len(self.token_ids) >= self._max_new_tokens
        by_model = reason_to_finish(self._model, token, is_last, next_position)
        return by_model or (FinishReason.INTERRUPTED if self._interrupted() else None)
