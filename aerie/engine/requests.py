"""What is run in a scheduler: requests for answers, and prompts that are read for their logits alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias, TypeVar

from aerie.common.errors import UserError
from aerie.engine.composing import Beginning
from aerie.engine.config import ModelConfig
from aerie.engine.embeddings import Token, ids_among
from aerie.engine.errors import PromptError
from aerie.engine.faults import of_one_answer
from aerie.engine.forward import check_prompt
from aerie.engine.generate import Figures, FinishReason, Generation, ending_of, never, reason_to_finish
from aerie.engine.model import LoadedModel
from aerie.engine.pages import Paged
from aerie.engine.progress import Bar, no_bar
from aerie.engine.ragged import Piece
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.strategy import Due, Maker, Passes, Row
from aerie.runtime import RunStopped, StopFlag

Made = TypeVar("Made")
NOTHING_DUE = Due((), 0, 0)


class Steps(Protocol):
    """What a request needs of the scheduler that it is in."""

    model: LoadedModel
    clock: Callable[[], float]

    def turn_of(self, priority: int) -> tuple[int, int]:
        """Of a request that comes now; no two have the same."""

    def step(self) -> None:
        """One pass for all that can be in it."""

    def held(self, request: Request) -> int:
        """How many positions a request has in the pool."""


class Request:
    """A prompt and how to answer it, and what has come of it. Made by Scheduler.submit.

    `priority`: the higher goes first. `turn`: the lower does. `is_read`: its prompt is read, and nothing is
    said. `cached_tokens`: of the prompt, those that were found in the pool. `finish_reason` says why it
    ended, None while it has not; or `error` does. `interrupted` is asked after every step of `steps`; True
    ends it.
    `bar` moves while its prompt is read there.
    """

    def __init__(
        self,
        scheduler: Steps,
        begins: Beginning,
        max_tokens: int,
        sampler: Sampler,
        priority: int,
        strategy: Maker,
        is_read: bool = False,
    ) -> None:
        self.is_read = is_read
        self.begins, self.prompt = begins, tuple(begins.tokens)
        self.prompt_ids = tuple(ids_among(self.prompt))
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.error: UserError | None = None
        self.interrupted: Callable[[], bool] = never
        self.bar: Bar = no_bar
        self._stopping = StopFlag()
        self.priority, self.cached_tokens = priority, 0
        self._scheduler, self.max_tokens, self._sampler = scheduler, max_tokens, sampler
        self.turn = scheduler.turn_of(priority)
        self._started = scheduler.clock()
        self._first = self._last = self._started
        self._at_first = 0
        self.strategy = strategy(self)

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self.finish_reason is not None or self.error is not None

    @property
    def tokens(self) -> Sequence[Token]:
        """All that its sequence has, or will have, of which the last is not computed yet."""
        return (*self.prompt, *self.token_ids)

    @property
    def positions(self) -> int:
        """The most that its sequence can have."""
        return self._scheduler.model.positions

    @property
    def left(self) -> int:
        """How many more tokens were asked for."""
        return self.max_tokens - len(self.token_ids)

    def after(self, length: int) -> Sequence[Token]:
        """The tokens after the first `length` that can be run at once, up to what is laid next."""
        return self.tokens[length : self.begins.runs_to(length)]

    def __iter__(self) -> Iterator[int]:
        return (token for token in self.steps() if token is not None)

    def steps(self) -> Iterator[int | None]:
        """The tokens as they come, and None after each step that gave none. Raises what `error` is."""
        with self.bar(len(self.prompt)) as told:
            while not (self.token_ids or self.is_over):
                self._step()
                if not (self.token_ids or self.is_over):
                    self._own(lambda: told("", self.read), None)
                    yield None
        given = 0
        while True:
            while given < len(self.token_ids):  # which may become more meanwhile
                given += 1
                yield self.token_ids[given - 1]
            if self.error:
                raise self.error
            if self.is_over:
                return
            self._step()
            if given == len(self.token_ids) and not self.is_over:
                yield None

    def _step(self) -> None:
        """A step for all, unless this one is stopped in the middle of it."""
        try:
            with self._stopping.watching():
                self._scheduler.step()
        except RunStopped:
            self.stop()
        if self._own(self.interrupted, True):
            self.stop()

    def go_on_with(self, model: LoadedModel) -> None:
        """The scheduler is told by itself."""

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

    def took(self, due: Due, rows: Sequence[Row]) -> int:
        """What its strategy makes of these logits, unless it was stopped, and how many of the tokens that
        were tried stay; or an error, which is this request's alone."""
        if self.is_over:
            return 0
        stay = self._own(lambda: self.strategy.took(due, rows), 0)
        self._at_first = self._at_first or len(self.token_ids)
        return stay

    def due(self, length: int, guesses: int = 0) -> Due:
        """What its strategy has to be run after so many positions; nothing where that fails."""
        return self._own(lambda: self._due(length, guesses), NOTHING_DUE)

    def _due(self, length: int, guesses: int) -> Due:
        if self.is_over:
            return NOTHING_DUE
        due, size = self.strategy.due(length, guesses), self._scheduler.model.config.vocab_size
        if wrong := [each for each in ids_among(due.tried) if not 0 <= each < size]:
            raise ValueError(f"token {wrong[0]} was guessed, and the vocabulary has 0 to {size - 1}")
        return due

    def findable(self) -> Sequence[Token]:
        """See Strategy."""
        return self._own(lambda: self.strategy.findable, self.tokens[:1])

    def most_held(self) -> int:
        """See Strategy."""
        return self._own(lambda: self.strategy.most_held, 0)

    def lay(self, sequence: Paged) -> int:
        """Give its sequence what is laid next of its chunks; how many tokens."""
        return self._own(lambda: self.begins.lay(sequence), 0)

    def close(self) -> None:
        """It is over, and out of the scheduler."""
        self._own(self.strategy.close, None)

    def _own(self, work: Callable[[], Made], instead: Made) -> Made:
        """What work of its own makes. Where that fails, it ends with this error, and nobody else."""
        try:
            with of_one_answer():
                return work()
        except UserError as error:
            self.fail(error)
            return instead

    def fail(self, error: UserError) -> None:
        """End it with an error, unless it has one."""
        self.error = self.error or error

    def draw(self, logits: Row) -> int:
        """See Making."""
        return self._sampler(logits, self.prompt_ids, self.token_ids)

    def say(self, token: int) -> bool:
        """See Making."""
        self._last = self._scheduler.clock()
        if not self.token_ids:
            self._first = self._last
        self.token_ids.append(token)
        held = len(self.prompt) + len(self.token_ids) - 1
        self.finish_reason = reason_to_finish(self._scheduler.model, token, self.left <= 0, held)
        return self.finish_reason is None

    def end(self, reason: FinishReason) -> None:
        """See Making."""
        if not self.is_over:
            self.finish_reason = reason

    def stop(self) -> None:
        """End it where it is."""
        self.end(FinishReason.INTERRUPTED)


Answer: TypeAlias = "Generation | Request"
"""One that is made by itself, or one among many."""


class Reading:
    """A prompt that is read, of so many last tokens of which logits are wanted; `rows` has them then. It goes
    on the sequence from position `first`, which holds it afterwards where it is kept."""

    def __init__(self, begins: Beginning, sequence: Paged, first: int, wanted: int, is_kept: bool) -> None:
        self.sequence, self.rows = sequence, list[Row]()
        self._begins, self._first, self._wanted, self._is_kept = begins, first, wanted, is_kept
        self._left = len(begins.tokens)
        sequence.go_back(first)
        if is_kept and not first:
            self._left -= sequence.begin(begins.tokens[: len(begins.tokens) - wanted + 1])

    def due(self) -> Sequence[Token]:
        """The tokens that can be run now."""
        if not self._left:
            return ()
        self._left -= self._begins.lay(self.sequence)
        length = self.sequence.length
        return self._begins.tokens[length - self._first : self._begins.runs_to(length)]

    def piece(self, tokens: Sequence[Token]) -> Piece:
        """Of the next step, these tokens."""
        wanted = self._wanted - self._left + len(tokens)
        return Piece(self.sequence, tokens, min(max(wanted, 0), len(tokens)))

    def took(self, piece: Piece, logits: Iterator[Row]) -> None:
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
