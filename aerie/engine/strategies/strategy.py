"""What a strategy tells the scheduler: which tokens of an answer go into the next pass, and what comes of it.

A pass has rows that stay, whose keys and values the sequence holds from then on, and rows that are tried:
they see all that the sequence holds and each other, and leave no trace, unless the strategy has some of them
stay when it has seen the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from aerie.engine.embeddings import Token
from aerie.engine.generate import FinishReason
from aerie.engine.numerics import BF16Array, F32Array

Row: TypeAlias = "BF16Array | F32Array"
"""Logits after one position, (vocab_size,)."""


class DraftEstimate(NamedTuple):
    """What an answer could try in a pass beyond its next token.

    most: so many tokens. chance: how likely each is right where those before it are. cost: what it takes to
    guess one, in passes of the model; at_once: what all take together.
    """

    max_drafts: int = 0
    acceptance_rate: float = 0.0
    cost: float = 0.0
    cost_is_total: bool = False


NO_DRAFTS = DraftEstimate()


class PassInput(NamedTuple):
    """Tokens that can be run next, after the positions that a sequence holds.

    wanted: of how many of the last ones logits are wanted. held: how many of the first ones stay; what comes
    after them is tried. whole: they are cut after a multiple of so many only. is_answer: whether an answer
    waits for them, which then goes before prompts that are read. guesses: what could be tried behind them.
    hidden: the last layer's output is wanted in place of logits.
    """

    tokens: Sequence[Token]
    logits_count: int
    kept_count: int
    multiple_of: int = 1
    is_decode: bool = False
    drafts: DraftEstimate = NO_DRAFTS
    hidden_only: bool = False

    def truncate(self, rows: int) -> PassInput:
        """The first of them, as many as so many rows take."""
        if rows >= len(self.tokens):
            return self
        count = max(0, rows) // self.multiple_of * self.multiple_of
        wanted = max(0, self.logits_count - (len(self.tokens) - count))
        return self._replace(
            tokens=self.tokens[:count], logits_count=wanted, kept_count=min(self.kept_count, count)
        )

    @property
    def tentative_tokens(self) -> Sequence[Token]:
        return self.tokens[self.kept_count :]


class RequestState(Protocol):
    """An answer that is made, as its strategy sees it.

    prompt_ids: the ids of its prompt. token_ids: what was said so far. tokens: prompt and answer. positions:
    the most that its sequence can have.
    """

    prompt_ids: tuple[int, ...]
    token_ids: list[int]
    finish_reason: FinishReason | None

    @property
    def tokens(self) -> Sequence[Token]: ...

    @property
    def positions(self) -> int: ...

    @property
    def free_positions(self) -> int:
        """How many more positions its sequence may have before something is dropped, or it ends."""

    @property
    def remaining_tokens(self) -> int:
        """How many more tokens were asked for."""

    def tokens_after(self, length: int) -> Sequence[Token]:
        """The tokens after the first `length` that can be run at once."""

    def sample(self, logits: Row) -> int:
        """The sampler's choice after all that was said. UserError."""

    def append_token(self, token: int) -> bool:
        """Give a token to whoever asked; whether more may come."""

    def finish(self, reason: FinishReason) -> None:
        """Nothing more comes."""


@dataclass
class PassCounts:
    """What an answer took.

    passes: those that gave logits for it. drafted, accepted: tokens that were guessed, and those of them that
    stayed. blocks: those that were filled in. committed: of these, whose keys and values were written, by a
    pass that filled in the next block as well; commits: passes of their own that did so.
    """

    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    blocks: int = 0
    committed: int = 0
    commits: int = 0

    def summary(self, tokens: int) -> str:
        """In words, of an answer of so many tokens."""
        guesses = f", {self.accepted} of {self.drafted} guesses right" if self.drafted else ""
        blocks = f", {self.blocks} blocks" if self.blocks else ""
        return f"{tokens / max(1, self.passes):.2f} tokens a pass ({self.passes} passes{blocks}{guesses})"


class Strategy(Protocol):
    """How one answer is made. It is asked `next_input` before every pass, and told the logits by `update`."""

    pass_counts: PassCounts

    @property
    def cacheable_tokens(self) -> Sequence[Token]:
        """Tokens whose keys and values may be taken from another sequence; the last one is always run."""

    @property
    def max_cached_positions(self) -> int:
        """How many positions its sequence may hold between passes."""

    def next_input(self, length: int, draft_count: int = 0) -> PassInput:
        """What can be run after `length` positions, and behind it up to so many of the guesses that the same
        without any said there could be."""

    def update(self, pass_input: PassInput, rows: Sequence[Row]) -> int:
        """The logits of the last `due.wanted` tokens of a pass; how many of `due.tried` stay. UserError."""

    def close(self) -> None:
        """The answer is over."""


StrategyFactory: TypeAlias = "Callable[[RequestState], Strategy]"
"""Gives an answer its strategy."""
