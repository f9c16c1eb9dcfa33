"""A prompt that is read for what comes of each of its tokens: nothing is said after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from aerie.engine.embeddings import Token
from aerie.engine.generate import FinishReason
from aerie.engine.strategies.strategy import Passes, PassInput, RequestState, Row, StrategyFactory

Take: TypeAlias = "Callable[[Sequence[Row]], None]"
"""Is told the rows of the next tokens."""
LOGITS_ROWS = 32
"""Tokens of a pass of which logits are wanted: rows of the LM head's largest program, and what is made of the
logits of a large vocabulary takes about a millisecond a row."""


class Read:
    """See Strategy. take: is told the rows of all tokens, in order, each once: logits, (vocab_size,), or with
    `hidden` the last layer's output, (hidden_size,) bf16. block: tokens that see each other."""

    def __init__(self, making: RequestState, take: Take, hidden: bool, block: int) -> None:
        self._making, self._take, self._hidden, self._block = making, take, hidden, block
        self.passes, self._taken = Passes(), 0

    @property
    def cacheable_tokens(self) -> Sequence[Token]:
        """What was taken before its pages were given back, and one token more."""
        return self._making.tokens[: self._taken + 1]

    @property
    def max_cached_positions(self) -> int:
        return self._taken

    def next_input(self, length: int, guesses: int = 0) -> PassInput:  # noqa: ARG002
        tokens = self._making.after(length)
        if not self._hidden:
            tokens = tokens[: max(LOGITS_ROWS, self._block)]
        wanted = max(0, length + len(tokens) - self._taken)
        return PassInput(tokens, wanted, len(tokens), self._block, hidden=self._hidden)

    def update(self, due: PassInput, rows: Sequence[Row]) -> int:  # noqa: ARG002
        self.passes.passes += 1
        self._take(rows)
        self._taken += len(rows)
        if self._taken == len(self._making.tokens):
            self._making.end(FinishReason.STOP)
        return 0

    def close(self) -> None:
        """Nothing is held."""


def read_by(take: Take, hidden: bool, block: int) -> StrategyFactory:
    """How a prompt is read."""
    return partial(Read, take=take, hidden=hidden, block=block)
