"""What is run in a scheduler: requests for answers, and prompts that are read for their logits alone."""

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
    """What a request needs of the scheduler that it is in."""

    model: LoadedModel
    clock: Callable[[], float]

    def arrival_order(self, priority: int) -> tuple[int, int]:
        """Of a request that comes now; no two have the same."""

    def step(self) -> None:
        """One pass for all that can be in it."""

    def cached_positions(self, request: Request) -> int:
        """How many tokens of a request have keys and values in the pool, or had until they were dropped."""

    def free_positions(self, request: Request) -> int:
        """How many more positions its sequence may have before something is dropped, or it ends."""

    def prefill_program_count(self, request: Request) -> int:
        """How many programs read what is left of its prompt, where that goes by itself."""

    def retire(self, request: Request) -> None:
        """Nobody asks for more of it, for now."""

    def resume(self, request: Request) -> None:
        """Somebody does again."""


class AnswerState(NamedTuple):
    """An answer as far as it came: its prompt, its tokens, and what draws them, with what it remembers."""

    prompt: Sequence[Token]
    token_ids: Sequence[int]
    sampler: Sampler


class Request:
    """A prompt and how to answer it, and what has come of it. T by Scheduler.submit.

    `priority`: the higher goes first. `turn`: the lower does. `is_read`: its prompt is read, and nothing is
    said. `decode`: the family its tokens are decoded in. `cached_tokens`: of the prompt, those that the pool
    had. `finish_reason` says why it ended, None while it has not; or `error` does.

    Of a conversation (`is_conversation`) the sequence is kept when it is over, for a prompt that begins so or
    an answer that goes on; `resumes` is the answer that it goes on with, whose tokens end its prompt. It
    runs while somebody asks for its next token, and else rests: `is_asked`. `interrupted` is asked between
    two steps; True ends it. `bar` moves while its prompt is read, and `ran` is told of the programs that read
    it.
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
        self.is_prefill_only, self.is_conversation, self.resumes, self.decode_path = (
            is_prefill_only,
            is_conversation,
            resumes,
            decode_path,
        )
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
        """Whether nothing more comes."""
        return self.finish_reason is not None or self.error is not None or self.is_retired

    @property
    def positions(self) -> int:
        """The most that its sequence can have."""
        return self._scheduler.model.positions

    @property
    def remaining_tokens(self) -> int:
        """How many more tokens were asked for."""
        return self.max_tokens - len(self.token_ids)

    @property
    def prefill_length(self) -> int:
        """How many of its first tokens are read; the others are made one by one."""
        return len(self.prompt) - len(self._resumed_ids)

    @property
    def free_positions(self) -> int:
        """See RequestState."""
        return self._scheduler.free_positions(self)

    @property
    def state(self) -> AnswerState:
        """What another request goes on with."""
        return AnswerState(
            self.prompt[: self.prefill_length], (*self._resumed_ids, *self.token_ids), self._sampler
        )

    def tokens_after(self, length: int) -> Sequence[Token]:
        """The tokens after the first `length` that can be run at once, up to what is laid next."""
        return self.tokens[length : self.prompt_source.run_until(length)]

    def __iter__(self) -> Iterator[int]:
        return (token for token in self.steps() if token is not None)

    def steps(self) -> Iterator[int | None]:
        """The tokens as they come, and None after each step that gave none; between two of these nothing is
        under way for it, and it may rest as long as one likes. Raises what `error` is."""
        if self.is_retired:
            self._scheduler.resume(self)
        is_planned = self.is_conversation and type(self.strategy) is AutoregressiveStrategy
        count = self._scheduler.prefill_program_count(self) if is_planned else len(self.prompt)
        try:
            with self.bar(count) as told:
                numbers = itertools.count(1)
                self.on_program = (lambda program: told(program, next(numbers))) if is_planned else None
                while not (self.token_ids or self.is_finished):
                    self.advance()
                    if not (self.token_ids or self.is_finished):
                        if not is_planned:
                            self._isolated(lambda: told("", self.prefilled_tokens), None)
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
        """Whether there are tokens that were not given yet."""
        return self._returned_count < len(self.token_ids)

    def new_tokens(self) -> Iterator[int]:
        """Those that were not given yet. Raises what `error` is."""
        while self._returned_count < len(self.token_ids):  # which may become more meanwhile
            self._returned_count += 1
            yield self.token_ids[self._returned_count - 1]
        if self.error:
            raise self.error

    def advance(self) -> None:
        """A step for all, unless this one is to end before it, or is stopped in the middle of it."""
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
        """From when it was made to its first token, and from there to its last so far."""
        return self._first - self._started, self._last - self._first

    @property
    def pass_counts(self) -> PassCounts:
        """What it took so far."""
        return self.strategy.pass_counts

    @property
    def prefilled_tokens(self) -> int:
        """The positions of its prompt that the pool has."""
        return min(self._scheduler.cached_positions(self), len(self.prompt))

    @property
    def finish_text(self) -> str:
        """Why it ended, in words."""
        reason = FinishReason.ERROR if self.error else self.finish_reason
        return finish_text(reason, self.max_tokens, self.positions)

    def update(self, pass_input: PassInput, rows: Sequence[Row]) -> int:
        """What its strategy makes of these logits, unless it was stopped, and how many of the tokens that
        were tried stay; or an error, which is this request's alone."""
        if self.is_finished:
            return 0
        stay = self._isolated(lambda: self.strategy.update(pass_input, rows), 0)
        self._first_token_count = self._first_token_count or len(self.token_ids)
        return stay

    def next_input(self, length: int, draft_count: int = 0) -> PassInput:
        """What its strategy has to be run after so many positions; nothing where that fails."""
        return self._isolated(lambda: self._checked_input(length, draft_count), NO_INPUT)

    def _checked_input(self, length: int, draft_count: int) -> PassInput:
        if self.is_finished:
            return NO_INPUT
        due, size = self.strategy.next_input(length, draft_count), self._scheduler.model.config.vocab_size
        if wrong := [each for each in ids_only(due.tentative_tokens) if not 0 <= each < size]:
            raise ValueError(f"token {wrong[0]} was guessed, and the vocabulary has 0 to {size - 1}")
        return due

    def cacheable_tokens(self) -> Sequence[Token]:
        """See Strategy."""
        return self._isolated(lambda: self.strategy.cacheable_tokens, self.tokens[:1])

    def max_cached_positions(self) -> int:
        """See Strategy."""
        return self._isolated(lambda: self.strategy.max_cached_positions, 0)

    def insert_chunks(self, sequence: PagedSequence) -> int:
        """Give its sequence what is laid next of its chunks; how many tokens."""
        return self._isolated(lambda: self.prompt_source.insert_next(sequence), 0)

    def close(self) -> None:
        """It is over, and out of the scheduler."""
        self._isolated(self.strategy.close, None)

    def _isolated(self, work: Callable[[], T], instead: T) -> T:
        """What work of its own makes. Where that fails, it ends with this error, and nobody else."""
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
        """End it with an error, unless it has one."""
        self.error = self.error or error

    def sample(self, logits: Row) -> int:
        """See RequestState."""
        said = [*self._resumed_ids, *self.token_ids] if self._resumed_ids else self.token_ids
        with self._scheduler.model.host_timer("sampling"):
            return self._sampler(logits, self._prefill_ids, said)

    def append_token(self, token: int) -> bool:
        """See RequestState."""
        self._last = self._scheduler.clock()
        if not self.token_ids:
            self._first = self._last
        self.token_ids.append(token)
        self.tokens.append(token)
        held = len(self.tokens) - 1
        self.finish_reason = finish_reason_for(self._scheduler.model, token, self.remaining_tokens <= 0, held)
        return self.finish_reason is None

    def finish(self, reason: FinishReason) -> None:
        """See RequestState."""
        if not self.is_finished:
            self.finish_reason = reason

    def stop(self) -> None:
        """End it where it is, whichever thread makes its tokens, in the middle of a step of its own."""
        self._stopping.set()
        self.finish(FinishReason.INTERRUPTED)


class LogitsRequest:
    """A prompt that is read, of so many last tokens of which logits are wanted; `rows` has them then. It goes
    on the sequence from position `first`, which holds it afterwards where it is kept."""

    def __init__(
        self,
        prompt_source: PromptSource,
        sequence: PagedSequence,
        first: int,
        logits_count: int,
        is_kept: bool,
    ) -> None:
        self.sequence, self.rows = sequence, list[Row]()
        self._prompt_source, self._first, self._logits_count, self._is_kept = (
            prompt_source,
            first,
            logits_count,
            is_kept,
        )
        self._remaining = len(prompt_source.tokens)
        sequence.truncate(first)
        if is_kept and not first:
            self._remaining -= sequence.match_prefix(
                prompt_source.tokens[: len(prompt_source.tokens) - logits_count + 1]
            )

    def next_input(self) -> Sequence[Token]:
        """The tokens that can be run now."""
        if not self._remaining:
            return ()
        self._remaining -= self._prompt_source.insert_next(self.sequence)
        length = self.sequence.length
        return self._prompt_source.tokens[length - self._first : self._prompt_source.run_until(length)]

    def schedule(self, tokens: Sequence[Token]) -> ScheduledTokens:
        """Of the next step, these tokens."""
        wanted = self._logits_count - self._remaining + len(tokens)
        return ScheduledTokens(self.sequence, tokens, min(max(wanted, 0), len(tokens)))

    def update(self, scheduled: ScheduledTokens, logits: Iterator[Row]) -> None:
        """A step has run it, and gave these."""
        self.rows += itertools.islice(logits, scheduled.logits_count)
        self._remaining -= len(scheduled.tokens)
        if not self._remaining and not self._is_kept:
            self.sequence.release()


def check_forward_prompt(prompt_source: PromptSource, config: ModelConfig, past: int, name: str) -> None:
    """PromptError, which `name` begins, for what cannot be run after so many positions."""
    try:
        check_prompt(prompt_source.tokens, config, past=past)
    except PromptError as error:
        raise PromptError(f"{name}{error}") from None


def check_block_boundary(positions: Sequence[int], block: int) -> None:
    """UserError for a position within a block of diffusion."""
    if inside := [one for one in positions if one % block]:
        raise UserError(
            f"position {inside[0]} is within a block of {block} tokens, which see each other; go on from a "
            f"multiple of {block}"
        )
