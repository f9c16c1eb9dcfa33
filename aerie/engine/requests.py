"""What is run in a scheduler: requests for answers, and prompts that are read for their logits alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from aerie.common.errors import UserError
from aerie.engine.composing import Beginning
from aerie.engine.config import ModelConfig
from aerie.engine.embeddings import Token, ids_among
from aerie.engine.errors import PromptError
from aerie.engine.executor import ScheduledTokens
from aerie.engine.faults import ENDS_ALL, caused_by
from aerie.engine.forward import check_prompt
from aerie.engine.generate import Figures, FinishReason, ending_of, never, reason_to_finish
from aerie.engine.model import LoadedModel
from aerie.engine.pages import PagedSequence
from aerie.engine.passes import Ran
from aerie.engine.progress import Bar, no_bar
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.autoregressive import Autoregressive
from aerie.engine.strategies.strategy import Passes, PassInput, Row, StrategyFactory
from aerie.runtime import RunStopped, StopFlag

Made = TypeVar("Made")
NO_INPUT = PassInput((), 0, 0)


class Steps(Protocol):
    """What a request needs of the scheduler that it is in."""

    model: LoadedModel
    clock: Callable[[], float]

    def turn_of(self, priority: int) -> tuple[int, int]:
        """Of a request that comes now; no two have the same."""

    def step(self) -> None:
        """One pass for all that can be in it."""

    def held(self, request: Request) -> int:
        """How many tokens of a request have keys and values in the pool, or had until they were dropped."""

    def room(self, request: Request) -> int:
        """How many more positions its sequence may have before something is dropped, or it ends."""

    def programs_of(self, request: Request) -> int:
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
    """A prompt and how to answer it, and what has come of it. Made by Scheduler.submit.

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
        scheduler: Steps,
        begins: Beginning,
        max_tokens: int,
        sampler: Sampler,
        priority: int,
        strategy: StrategyFactory,
        decode: str,
        is_read: bool = False,
        is_conversation: bool = False,
        resumes: AnswerState | None = None,
    ) -> None:
        self.is_read, self.is_conversation, self.resumes, self.decode = (
            is_read,
            is_conversation,
            resumes,
            decode,
        )
        self.is_asked = not is_conversation
        self.begins, self.prompt = begins, tuple(begins.tokens)
        self.prompt_ids = tuple(ids_among(self.prompt))
        self._before = tuple(resumes.token_ids) if resumes else ()
        self._asked_ids = self.prompt_ids[: len(self.prompt_ids) - len(self._before)]
        self.token_ids: list[int] = []
        self.tokens: list[Token] = [*self.prompt]
        """All that its sequence has, or will have, of which the last is not computed yet."""
        self.finish_reason: FinishReason | None = None
        self.error: UserError | None = None
        self.interrupted: Callable[[], bool] = never
        self.bar: Bar = no_bar
        self.ran: Ran | None = None
        self._stopping = StopFlag()
        self.priority, self.cached_tokens = priority, 0
        self._scheduler, self.max_tokens, self._sampler = scheduler, max_tokens, sampler
        self.turn = scheduler.turn_of(priority)
        self._started = self._first = self._last = scheduler.clock()
        self._is_begun = self.is_retired = False
        self._given = self._at_first = 0
        self.strategy = strategy(self)
        if resumes:
            ended = reason_to_finish(scheduler.model, self._before[-1], False, 0)
            self.finish_reason = ended

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self.finish_reason is not None or self.error is not None or self.is_retired

    @property
    def positions(self) -> int:
        """The most that its sequence can have."""
        return self._scheduler.model.positions

    @property
    def left(self) -> int:
        """How many more tokens were asked for."""
        return self.max_tokens - len(self.token_ids)

    @property
    def to_read(self) -> int:
        """How many of its first tokens are read; the others are made one by one."""
        return len(self.prompt) - len(self._before)

    @property
    def room(self) -> int:
        """See RequestState."""
        return self._scheduler.room(self)

    @property
    def state(self) -> AnswerState:
        """What another request goes on with."""
        return AnswerState(self.prompt[: self.to_read], (*self._before, *self.token_ids), self._sampler)

    def after(self, length: int) -> Sequence[Token]:
        """The tokens after the first `length` that can be run at once, up to what is laid next."""
        return self.tokens[length : self.begins.runs_to(length)]

    def __iter__(self) -> Iterator[int]:
        return (token for token in self.steps() if token is not None)

    def steps(self) -> Iterator[int | None]:
        """The tokens as they come, and None after each step that gave none; between two of these nothing is
        under way for it, and it may rest as long as one likes. Raises what `error` is."""
        if self.is_retired:
            self._scheduler.resume(self)
        is_planned = self.is_conversation and type(self.strategy) is Autoregressive
        count = self._scheduler.programs_of(self) if is_planned else len(self.prompt)
        try:
            with self.bar(count) as told:
                numbers = itertools.count(1)
                self.ran = (lambda program: told(program, next(numbers))) if is_planned else None
                while not (self.token_ids or self.is_over):
                    self.advance()
                    if not (self.token_ids or self.is_over):
                        if not is_planned:
                            self._own(lambda: told("", self.read), None)
                        yield None
                self.ran = None
            while True:
                yield from self.new_tokens()
                if self.is_over:
                    return
                self.advance()
                if self._given == len(self.token_ids) and not self.is_over:
                    yield None
        finally:
            self.ran = None
            if self.is_conversation and not self.is_retired:
                self._scheduler.retire(self)

    @property
    def has_new(self) -> bool:
        """Whether there are tokens that were not given yet."""
        return self._given < len(self.token_ids)

    def new_tokens(self) -> Iterator[int]:
        """Those that were not given yet. Raises what `error` is."""
        while self._given < len(self.token_ids):  # which may become more meanwhile
            self._given += 1
            yield self.token_ids[self._given - 1]
        if self.error:
            raise self.error

    def advance(self) -> None:
        """A step for all, unless this one is to end before it, or is stopped in the middle of it."""
        if self.is_over:
            return
        if self._is_begun and self._own(self.interrupted, True):
            self.stop()
            return
        if self.is_conversation and not self._is_begun:
            self._started = self._first = self._last = self._scheduler.clock()
        self._is_begun = self.is_asked = True
        try:
            with self._stopping.watching():
                self._scheduler.step()
        except RunStopped:
            self.end(FinishReason.INTERRUPTED)
        finally:
            self.is_asked = not self.is_conversation

    @property
    def figures(self) -> Figures:
        times = self._started, self._first, self._last
        return Figures.between(len(self.prompt), len(self.token_ids), *times, self._at_first)

    @property
    def times_s(self) -> tuple[float, float]:
        """From when it was made to its first token, and from there to its last so far."""
        return self._first - self._started, self._last - self._first

    @property
    def passes(self) -> Passes:
        """What it took so far."""
        return self.strategy.passes

    @property
    def read(self) -> int:
        """The positions of its prompt that the pool has."""
        return min(self._scheduler.held(self), len(self.prompt))

    @property
    def ending(self) -> str:
        """Why it ended, in words."""
        reason = FinishReason.ERROR if self.error else self.finish_reason
        return ending_of(reason, self.max_tokens, self.positions)

    def update(self, due: PassInput, rows: Sequence[Row]) -> int:
        """What its strategy makes of these logits, unless it was stopped, and how many of the tokens that
        were tried stay; or an error, which is this request's alone."""
        if self.is_over:
            return 0
        stay = self._own(lambda: self.strategy.update(due, rows), 0)
        self._at_first = self._at_first or len(self.token_ids)
        return stay

    def next_input(self, length: int, guesses: int = 0) -> PassInput:
        """What its strategy has to be run after so many positions; nothing where that fails."""
        return self._own(lambda: self._due(length, guesses), NO_INPUT)

    def _due(self, length: int, guesses: int) -> PassInput:
        if self.is_over:
            return NO_INPUT
        due, size = self.strategy.next_input(length, guesses), self._scheduler.model.config.vocab_size
        if wrong := [each for each in ids_among(due.tried) if not 0 <= each < size]:
            raise ValueError(f"token {wrong[0]} was guessed, and the vocabulary has 0 to {size - 1}")
        return due

    def cacheable_tokens(self) -> Sequence[Token]:
        """See Strategy."""
        return self._own(lambda: self.strategy.cacheable_tokens, self.tokens[:1])

    def max_cached_positions(self) -> int:
        """See Strategy."""
        return self._own(lambda: self.strategy.max_cached_positions, 0)

    def lay(self, sequence: PagedSequence) -> int:
        """Give its sequence what is laid next of its chunks; how many tokens."""
        return self._own(lambda: self.begins.lay(sequence), 0)

    def close(self) -> None:
        """It is over, and out of the scheduler."""
        self._own(self.strategy.close, None)

    def _own(self, work: Callable[[], Made], instead: Made) -> Made:
        """What work of its own makes. Where that fails, it ends with this error, and nobody else."""
        try:
            return work()
        except UserError as error:
            self.fail(error)
        except ENDS_ALL:
            raise
        except BaseException as error:
            self.fail(caused_by(error))
        return instead

    def fail(self, error: UserError) -> None:
        """End it with an error, unless it has one."""
        self.error = self.error or error

    def draw(self, logits: Row) -> int:
        """See RequestState."""
        said = [*self._before, *self.token_ids] if self._before else self.token_ids
        with self._scheduler.model.host_timer("sampling"):
            return self._sampler(logits, self._asked_ids, said)

    def say(self, token: int) -> bool:
        """See RequestState."""
        self._last = self._scheduler.clock()
        if not self.token_ids:
            self._first = self._last
        self.token_ids.append(token)
        self.tokens.append(token)
        held = len(self.tokens) - 1
        self.finish_reason = reason_to_finish(self._scheduler.model, token, self.left <= 0, held)
        return self.finish_reason is None

    def end(self, reason: FinishReason) -> None:
        """See RequestState."""
        if not self.is_over:
            self.finish_reason = reason

    def stop(self) -> None:
        """End it where it is, whichever thread makes its tokens, in the middle of a step of its own."""
        self._stopping.set()
        self.end(FinishReason.INTERRUPTED)


class Reading:
    """A prompt that is read, of so many last tokens of which logits are wanted; `rows` has them then. It goes
    on the sequence from position `first`, which holds it afterwards where it is kept."""

    def __init__(
        self, begins: Beginning, sequence: PagedSequence, first: int, wanted: int, is_kept: bool
    ) -> None:
        self.sequence, self.rows = sequence, list[Row]()
        self._begins, self._first, self._wanted, self._is_kept = begins, first, wanted, is_kept
        self._left = len(begins.tokens)
        sequence.go_back(first)
        if is_kept and not first:
            self._left -= sequence.begin(begins.tokens[: len(begins.tokens) - wanted + 1])

    def next_input(self) -> Sequence[Token]:
        """The tokens that can be run now."""
        if not self._left:
            return ()
        self._left -= self._begins.lay(self.sequence)
        length = self.sequence.length
        return self._begins.tokens[length - self._first : self._begins.runs_to(length)]

    def piece(self, tokens: Sequence[Token]) -> ScheduledTokens:
        """Of the next step, these tokens."""
        wanted = self._wanted - self._left + len(tokens)
        return ScheduledTokens(self.sequence, tokens, min(max(wanted, 0), len(tokens)))

    def update(self, piece: ScheduledTokens, logits: Iterator[Row]) -> None:
        """A step has run it, and gave these."""
        self.rows += itertools.islice(logits, piece.wanted)
        self._left -= len(piece.tokens)
        if not self._left and not self._is_kept:
            self.sequence.release()


def check_reading(begins: Beginning, config: ModelConfig, past: int, name: str) -> None:
    """PromptError, which `name` begins, for what cannot be run after so many positions."""
    try:
        check_prompt(begins.tokens, config, past=past)
    except PromptError as error:
        raise PromptError(f"{name}{error}") from None


def check_blocks(positions: Sequence[int], block: int) -> None:
    """UserError for a position within a block of diffusion."""
    if inside := [one for one in positions if one % block]:
        raise UserError(
            f"position {inside[0]} is within a block of {block} tokens, which see each other; go on from a "
            f"multiple of {block}"
        )
