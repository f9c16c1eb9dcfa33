"""A prompt that is read for what comes of each of its tokens: nothing is said after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from aerie.engine.embeddings import Token
from aerie.engine.generate import FinishReason
from aerie.engine.strategies.strategy import PassCounts, PassInput, RequestState, Row, StrategyFactory

OnRows: TypeAlias = "Callable[[Sequence[Row]], None]"
"""Is told the rows of the next tokens."""
LOGITS_ROWS = 32
"""Tokens of a pass of which logits are wanted: rows of the LM head's largest program, and what is made of the
logits of a large vocabulary takes about a millisecond a row."""


class PrefillOnlyStrategy:
    """See Strategy. take: is told the rows of all tokens, in order, each once: logits, (vocab_size,), or with
    `hidden` the last layer's output, (hidden_size,) bf16. block: tokens that see each other."""

    def __init__(self, request: RequestState, on_rows: OnRows, hidden_only: bool, block: int) -> None:
        self._request, self._on_rows, self._hidden_only, self._block = request, on_rows, hidden_only, block
        self.pass_counts, self._rows_given = PassCounts(), 0

    @property
    def cacheable_tokens(self) -> Sequence[Token]:
        """What was taken before its pages were given back, and one token more."""
        return self._request.tokens[: self._rows_given + 1]

    @property
    def max_cached_positions(self) -> int:
        return self._rows_given

    def next_input(self, length: int, draft_count: int = 0) -> PassInput:  # noqa: ARG002
        tokens = self._request.tokens_after(length)
        if not self._hidden_only:
            tokens = tokens[: max(LOGITS_ROWS, self._block)]
        wanted = max(0, length + len(tokens) - self._rows_given)
        return PassInput(tokens, wanted, len(tokens), self._block, hidden_only=self._hidden_only)

    def update(self, pass_input: PassInput, rows: Sequence[Row]) -> int:  # noqa: ARG002
        self.pass_counts.passes += 1
        self._on_rows(rows)
        self._rows_given += len(rows)
        if self._rows_given == len(self._request.tokens):
            self._request.finish(FinishReason.STOP)
        return 0

    def close(self) -> None:
        """Nothing is held."""


def prefill_only_factory(on_rows: OnRows, hidden_only: bool, block: int) -> StrategyFactory:
    """How a prompt is read."""
    return partial(PrefillOnlyStrategy, on_rows=on_rows, hidden_only=hidden_only, block=block)
