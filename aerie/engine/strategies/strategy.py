"""The protocol between a strategy and the scheduler: which tokens of an answer go into the next pass, and
what its logits mean.

A pass has rows that are kept: the sequence holds their keys and values afterwards. It can also have tentative
rows: they attend to all that the sequence holds and to each other, and are dropped, unless the strategy keeps
some of them when it has seen the logits.
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
    """The drafts that an answer could verify in a pass.

    max_drafts: their maximum number. acceptance_rate: probability that a draft is accepted if those before it
    are. cost: time of a draft, relative to a pass of the model; cost_is_total: it is the time of all drafts.
    """

    max_drafts: int = 0
    acceptance_rate: float = 0.0
    cost: float = 0.0
    cost_is_total: bool = False


NO_DRAFTS = DraftEstimate()


class PassInput(NamedTuple):
    """Tokens that can run next, after the positions that a sequence holds.

    logits_count: number of last tokens whose logits are needed. kept_count: number of first tokens that are
    kept; the tokens after them are tentative. multiple_of: they are split at multiples of it only. is_decode:
    an answer waits for them, so they go before prompts. drafts: the drafts that could follow them.
    hidden_only: the last layer's output is needed in place of logits.
    """

    tokens: Sequence[Token]
    logits_count: int
    kept_count: int
    multiple_of: int = 1
    is_decode: bool = False
    drafts: DraftEstimate = NO_DRAFTS
    hidden_only: bool = False

    def truncate(self, rows: int) -> PassInput:
        """At most `rows` of the first tokens, split at a multiple of `multiple_of`."""
        if rows >= len(self.tokens):
            return self
        count = max(0, rows) // self.multiple_of * self.multiple_of
        wanted = max(0, self.logits_count - (len(self.tokens) - count))
        return self._replace(
            tokens=self.tokens[:count], logits_count=wanted, kept_count=min(self.kept_count, count)
        )

    @property
    def tentative_tokens(self) -> Sequence[Token]:
        """The tokens after the first `kept_count`."""
        return self.tokens[self.kept_count :]


class RequestState(Protocol):
    """A request as its strategy sees it.

    prompt_ids: the ids of its prompt. token_ids: its output so far. tokens: prompt and output. positions:
    maximum positions of its sequence.
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
        """Number of positions that its sequence can still get before positions are dropped, or the answer
        ends."""

    @property
    def remaining_tokens(self) -> int:
        """Number of tokens that may still be generated."""

    def tokens_after(self, length: int) -> Sequence[Token]:
        """The tokens after the first `length` that can run in one pass."""

    def sample(self, logits: Row) -> int:
        """Sample the next token id after the output so far. Raises UserError, for example if the grammar
        allows no token."""

    def append_token(self, token: int) -> bool:
        """Append a token to the output. Returns False if the request is finished."""

    def finish(self, reason: FinishReason) -> None:
        """Finish the request with this reason."""


@dataclass
class PassCounts:
    """Counts of an answer's forward passes.

    passes: those that gave logits for it. drafted, accepted: draft tokens, and those that were accepted.
    blocks: diffusion blocks that were filled. committed: blocks whose keys and values were written by a pass
    that also filled the next block; commits: separate passes that did so.
    """

    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    blocks: int = 0
    committed: int = 0
    commits: int = 0

    def summary(self, tokens: int) -> str:
        """The counts in words, for an answer of this number of tokens."""
        drafts = f", {self.accepted} of {self.drafted} draft tokens right" if self.drafted else ""
        blocks = f", {self.blocks} blocks" if self.blocks else ""
        return f"{tokens / max(1, self.passes):.2f} tokens a pass ({self.passes} passes{blocks}{drafts})"


class Strategy(Protocol):
    """How one answer is generated. The scheduler calls `next_input` before every pass, and `update` with its
    logits."""

    pass_counts: PassCounts

    @property
    def cacheable_tokens(self) -> Sequence[Token]:
        """Tokens to look up in the prefix cache; the last one is always computed."""

    @property
    def max_cached_positions(self) -> int:
        """Maximum positions that its sequence may hold between passes."""

    def next_input(self, length: int, draft_count: int = 0) -> PassInput:
        """The tokens that can run after `length` positions, with `draft_count` drafts, at most as many as the
        estimate of the same call without drafts."""

    def update(self, pass_input: PassInput, rows: Sequence[Row]) -> int:
        """Take the logits of the last `pass_input.logits_count` tokens of a pass. Returns how many of
        `pass_input.tentative_tokens` are kept. Raises UserError."""

    def close(self) -> None:
        """Release resources: the answer is finished."""


StrategyFactory: TypeAlias = "Callable[[RequestState], Strategy]"
"""Makes the strategy of a request."""
