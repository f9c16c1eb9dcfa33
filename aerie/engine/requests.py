"""Requests in a scheduler: those that generate an answer, and prompts that are run for their logits only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from aerie.common.errors import UserError
from aerie.engine.composed_prompt import PromptSource
from aerie.engine.config import ModelConfig
from aerie.engine.embeddings import Token, ids_only
from aerie.engine.error_scope import FATAL_EXCEPTIONS, caused_by
from aerie.engine.errors import PromptError
from aerie.engine.executor import ScheduledTokens
from aerie.engine.forward import check_prompt
from aerie.engine.forward_passes import OnProgram
from aerie.engine.generate import (
    FinishReason,
    RequestFigures,
    finish_reason_for,
    finish_text,
    never_interrupted,
)
from aerie.engine.model import LoadedModel
from aerie.engine.page_pool import PagedSequence
from aerie.engine.reporter import Bar, no_bar
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.autoregressive import AutoregressiveStrategy
from aerie.engine.strategies.strategy import PassCounts, PassInput, Row, StrategyFactory
from aerie.runtime import RunStopped, StopFlag

T = TypeVar("T")
NO_INPUT = PassInput((), 0, 0)


class SchedulerView(Protocol):
    """What a request uses of its scheduler."""

    model: LoadedModel
    clock: Callable[[], float]

    def arrival_order(self, priority: int) -> tuple[int, int]:
        """The order of a request that arrives now: (step number minus a bonus for priority, arrival number).
        It is unique."""

    def step(self) -> None:
        """Run one engine step for all requests."""

    def cached_positions(self, request: Request) -> int:
        """Number of tokens of a request whose keys and values were computed, dropped ones included."""

    def free_positions(self, request: Request) -> int:
        """Number of positions that its sequence can still get before positions are dropped, or the answer
        ends."""

    def prefill_program_count(self, request: Request) -> int:
        """Number of programs that compute the rest of its prompt, if the request is alone."""

    def retire(self, request: Request) -> None:
        """The caller wants no more tokens of the request for now."""

    def resume(self, request: Request) -> None:
        """The caller wants more tokens of a retired request."""


class AnswerState(NamedTuple):
    """An answer so far: its prompt, its tokens, and its sampler with the sampler's state."""

    prompt: Sequence[Token]
    token_ids: Sequence[int]
    sampler: Sampler


class Request:
    """A prompt, its sampling parameters, and its output. Made by Scheduler.add_request.

    priority: higher goes first. order: lower goes first. is_prefill_only: the prompt is computed, and no
    token is generated. decode_path: "guide" or "rows". cached_tokens: prompt tokens found in the prefix
    cache. finish_reason: None until the request is finished; `error` is set if it failed.

    is_conversation: the scheduler keeps the sequence at the end, for the next prompt or for `resumes`, the
    answer that this request continues; the tokens of that answer end the prompt. A conversation is active
    only while a caller waits for its next token (`is_active`); else it is idle. interrupted: called between
    two steps; True ends the request. bar: shows the progress of the prompt. on_program: called with each
    program that computes the prompt.
    """

    def __init__(
        self,
        scheduler: SchedulerView,
        prompt_source: PromptSource,
        max_tokens: int,
        sampler: Sampler,
        priority: int,
        strategy: StrategyFactory,
        decode_path: str,
        is_prefill_only: bool = False,
        is_conversation: bool = False,
        resumes: AnswerState | None = None,
    ) -> None:
        self.is_prefill_only = is_prefill_only
        self.is_conversation = is_conversation
        self.resumes = resumes
        self.decode_path = decode_path
        self.is_active = not is_conversation
        self.prompt_source, self.prompt = prompt_source, tuple(prompt_source.tokens)
        self.prompt_ids = tuple(ids_only(self.prompt))
        self._resumed_ids = tuple(resumes.token_ids) if resumes else ()
        self._prefill_ids = self.prompt_ids[: len(self.prompt_ids) - len(self._resumed_ids)]
        self.token_ids: list[int] = []
        self.tokens: list[Token] = [*self.prompt]
        """All that its sequence has, or will have, of which the last is not computed yet."""
        self.finish_reason: FinishReason | None = None
        self.error: UserError | None = None
        self.interrupted: Callable[[], bool] = never_interrupted
        self.bar: Bar = no_bar
        self.on_program: OnProgram | None = None
        self._stopping = StopFlag()
        self.priority, self.cached_tokens = priority, 0
        self._scheduler, self.max_tokens, self._sampler = scheduler, max_tokens, sampler
        self.order = scheduler.arrival_order(priority)
        self._started = self._first = self._last = scheduler.clock()
        self._is_started = self.is_retired = False
        self._returned_count = self._first_token_count = 0
        self.strategy = strategy(self)
        if resumes:
            ended = finish_reason_for(scheduler.model, self._resumed_ids[-1], False, 0)
            self.finish_reason = ended

    @property
    def is_finished(self) -> bool:
        """Whether no more tokens come."""
        return self.finish_reason is not None or self.error is not None or self.is_retired

    @property
    def positions(self) -> int:
        """Maximum positions of its sequence."""
        return self._scheduler.model.positions

    @property
    def remaining_tokens(self) -> int:
        """Number of tokens that may still be generated."""
        return self.max_tokens - len(self.token_ids)

    @property
    def prefill_length(self) -> int:
        """Number of first tokens that prefill computes. The others were decoded one by one."""
        return len(self.prompt) - len(self._resumed_ids)

    @property
    def free_positions(self) -> int:
        return self._scheduler.free_positions(self)

    @property
    def state(self) -> AnswerState:
        """The state that another request can continue."""
        return AnswerState(
            self.prompt[: self.prefill_length], (*self._resumed_ids, *self.token_ids), self._sampler
        )

    def tokens_after(self, length: int) -> Sequence[Token]:
        """The tokens after the first `length` that can run in one pass, up to the next inserted chunk."""
        return self.tokens[length : self.prompt_source.run_until(length)]

    def __iter__(self) -> Iterator[int]:
        return (token for token in self.steps() if token is not None)

    def steps(self) -> Iterator[int | None]:
        """Generated tokens as they come, and None after each step without a token. Between two of them the
        request may be idle for any time. Raises `error` if the request failed."""
        if self.is_retired:
            self._scheduler.resume(self)
        shows_programs = self.is_conversation and type(self.strategy) is AutoregressiveStrategy
        count = self._scheduler.prefill_program_count(self) if shows_programs else len(self.prompt)
        try:
            with self.bar(count) as step:
                numbers = itertools.count(1)
                self.on_program = (lambda program: step(program, next(numbers))) if shows_programs else None
                while not (self.token_ids or self.is_finished):
                    self.advance()
                    if not (self.token_ids or self.is_finished):
                        if not shows_programs:
                            self._isolated(lambda: step("", self.prefilled_tokens), None)
                        yield None
                self.on_program = None
            while True:
                yield from self.new_tokens()
                if self.is_finished:
                    return
                self.advance()
                if self._returned_count == len(self.token_ids) and not self.is_finished:
                    yield None
        finally:
            self.on_program = None
            if self.is_conversation and not self.is_retired:
                self._scheduler.retire(self)

    @property
    def has_new_tokens(self) -> bool:
        """Whether `new_tokens` would give a token."""
        return self._returned_count < len(self.token_ids)

    def new_tokens(self) -> Iterator[int]:
        """Tokens that were not returned before. Raises `error` if the request failed."""
        while self._returned_count < len(self.token_ids):  # which may become more meanwhile
            self._returned_count += 1
            yield self.token_ids[self._returned_count - 1]
        if self.error:
            raise self.error

    def advance(self) -> None:
        """Run an engine step, unless the request ends before it. A stop during the step ends the request."""
        if self.is_finished:
            return
        if self._is_started and self._isolated(self.interrupted, True):
            self.stop()
            return
        if self.is_conversation and not self._is_started:
            self._started = self._first = self._last = self._scheduler.clock()
        self._is_started = self.is_active = True
        try:
            with self._stopping.watching():
                self._scheduler.step()
        except RunStopped:
            self.finish(FinishReason.INTERRUPTED)
        finally:
            self.is_active = not self.is_conversation

    @property
    def figures(self) -> RequestFigures:
        times = self._started, self._first, self._last
        return RequestFigures.from_times(
            len(self.prompt), len(self.token_ids), *times, self._first_token_count
        )

    @property
    def phase_times_s(self) -> tuple[float, float]:
        """Seconds from submission to the first token, and from there to the last token so far."""
        return self._first - self._started, self._last - self._first

    @property
    def pass_counts(self) -> PassCounts:
        """Counts of its forward passes so far."""
        return self.strategy.pass_counts

    @property
    def prefilled_tokens(self) -> int:
        """Number of prompt tokens whose keys and values are in the pool."""
        return min(self._scheduler.cached_positions(self), len(self.prompt))

    @property
    def finish_text(self) -> str:
        """The finish reason in words."""
        reason = FinishReason.ERROR if self.error else self.finish_reason
        return finish_text(reason, self.max_tokens, self.positions)

    def update(self, pass_input: PassInput, rows: Sequence[Row]) -> int:
        """Give logits to the strategy. Returns how many tentative tokens the sequence keeps. An error of the
        strategy fails this request only."""
        if self.is_finished:
            return 0
        kept = self._isolated(lambda: self.strategy.update(pass_input, rows), 0)
        self._first_token_count = self._first_token_count or len(self.token_ids)
        return kept

    def next_input(self, length: int, draft_count: int = 0) -> PassInput:
        """The strategy's input for the next pass, after `length` positions. Empty if the strategy fails."""
        return self._isolated(lambda: self._checked_input(length, draft_count), NO_INPUT)

    def _checked_input(self, length: int, draft_count: int) -> PassInput:
        if self.is_finished:
            return NO_INPUT
        pass_input = self.strategy.next_input(length, draft_count)
        size = self._scheduler.model.config.vocab_size
        if wrong := [token for token in ids_only(pass_input.tentative_tokens) if not 0 <= token < size]:
            raise ValueError(f"token {wrong[0]} was drafted, and the vocabulary has 0 to {size - 1}")
        return pass_input

    def cacheable_tokens(self) -> Sequence[Token]:
        return self._isolated(lambda: self.strategy.cacheable_tokens, self.tokens[:1])

    def max_cached_positions(self) -> int:
        return self._isolated(lambda: self.strategy.max_cached_positions, 0)

    def insert_chunks(self, sequence: PagedSequence) -> int:
        """Insert the next chunks into its sequence. Returns the number of tokens."""
        return self._isolated(lambda: self.prompt_source.insert_next(sequence), 0)

    def close(self) -> None:
        """Release what the strategy holds. The scheduler calls it when the request is removed."""
        self._isolated(self.strategy.close, None)

    def _isolated(self, work: Callable[[], T], instead: T) -> T:
        """The result of `work`. If that raises, the request fails with the error, and `instead` is returned.
        No other request is affected."""
        try:
            return work()
        except UserError as error:
            self.fail(error)
        except FATAL_EXCEPTIONS:
            raise
        except BaseException as error:
            self.fail(caused_by(error))
        return instead

    def fail(self, error: UserError) -> None:
        """End the request with an error, unless it has one."""
        self.error = self.error or error

    def sample(self, logits: Row) -> int:
        output_ids = [*self._resumed_ids, *self.token_ids] if self._resumed_ids else self.token_ids
        with self._scheduler.model.host_timer("sampling"):
            return self._sampler(logits, self._prefill_ids, output_ids)

    def append_token(self, token: int) -> bool:
        self._last = self._scheduler.clock()
        if not self.token_ids:
            self._first = self._last
        self.token_ids.append(token)
        self.tokens.append(token)
        next_position = len(self.tokens) - 1
        self.finish_reason = finish_reason_for(
            self._scheduler.model, token, self.remaining_tokens <= 0, next_position
        )
        return self.finish_reason is None

    def finish(self, reason: FinishReason) -> None:
        if not self.is_finished:
            self.finish_reason = reason

    def stop(self) -> None:
        """End the request now, from any thread, even during a step."""
        self._stopping.set()
        self.finish(FinishReason.INTERRUPTED)


class LogitsRequest:
    """A prompt that is run for the logits of its last `logits_count` tokens; they are in `rows` at the end.
    It continues `sequence` from position `first`. The sequence keeps the prompt if `is_kept`; else it is
    released."""

    def __init__(
        self,
        prompt_source: PromptSource,
        sequence: PagedSequence,
        first: int,
        logits_count: int,
        is_kept: bool,
    ) -> None:
        self.sequence, self.rows = sequence, list[Row]()
        self._prompt_source = prompt_source
        self._first = first
        self._logits_count = logits_count
        self._is_kept = is_kept
        self._remaining = len(prompt_source.tokens)
        sequence.truncate(first)
        if is_kept and not first:
            self._remaining -= sequence.match_prefix(
                prompt_source.tokens[: len(prompt_source.tokens) - logits_count + 1]
            )

    def next_input(self) -> Sequence[Token]:
        """The tokens that can run now."""
        if not self._remaining:
            return ()
        self._remaining -= self._prompt_source.insert_next(self.sequence)
        length = self.sequence.length
        return self._prompt_source.tokens[length - self._first : self._prompt_source.run_until(length)]

    def schedule(self, tokens: Sequence[Token]) -> ScheduledTokens:
        """These tokens as a part of the next step."""
        logits_count = self._logits_count - self._remaining + len(tokens)
        return ScheduledTokens(self.sequence, tokens, min(max(logits_count, 0), len(tokens)))

    def update(self, scheduled: ScheduledTokens, logits: Iterator[Row]) -> None:
        """Take the logits of a step."""
        self.rows += itertools.islice(logits, scheduled.logits_count)
        self._remaining -= len(scheduled.tokens)
        if not self._remaining and not self._is_kept:
            self.sequence.release()


def check_forward_prompt(prompt_source: PromptSource, config: ModelConfig, past: int, name: str) -> None:
    """Raises PromptError, whose text starts with `name`, if the prompt cannot run after `past` positions."""
    try:
        check_prompt(prompt_source.tokens, config, past=past)
    except PromptError as error:
        raise PromptError(f"{name}{error}") from None


def check_block_boundary(positions: Sequence[int], block: int) -> None:
    """Raises UserError for a position within a diffusion block."""
    if inside := [position for position in positions if position % block]:
        raise UserError(
            f"position {inside[0]} is within a block of {block} tokens, which see each other; go on from a "
            f"multiple of {block}"
        )
