"""Prefill-only requests: a prompt is computed for the rows of its tokens, and nothing is generated."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from aerie.engine.embeddings import Token
from aerie.engine.generate import FinishReason
from aerie.engine.strategies.strategy import PassCounts, PassInput, RequestState, Row, StrategyFactory

OnRows: TypeAlias = "Callable[[Sequence[Row]], None]"
"""Called with the rows of the next tokens."""


class WantedRows(enum.Enum):
    """Which rows of a prompt's tokens are needed: logits, (vocab_size,), of all; or the last layer's output,
    (hidden_size,) bf16, of all or of the last token."""

    LOGITS = "logits"
    HIDDEN = "hidden"
    LAST_HIDDEN = "last hidden"


LOGITS_ROWS = 32
"""Maximum tokens of a pass whose logits are needed: rows of the LM head's largest program. Work on the logits
of a large vocabulary takes about a millisecond per row."""


class PrefillOnlyStrategy:
    """Calls `on_rows` with the wanted rows of the tokens, in order, each once. block: number of tokens that
    attend to each other."""

    def __init__(self, request: RequestState, on_rows: OnRows, wanted: WantedRows, block: int) -> None:
        self._request, self._on_rows, self._wanted, self._block = request, on_rows, wanted, block
        self.pass_counts, self._rows_given = PassCounts(), 0

    @property
    def _rows_needed_from(self) -> int:
        """The first position whose row is still needed."""
        is_last = self._wanted is WantedRows.LAST_HIDDEN
        return len(self._request.tokens) - 1 if is_last else self._rows_given

    @property
    def cacheable_tokens(self) -> Sequence[Token]:
        """Tokens whose rows are not needed, or were given before a preemption, and one more."""
        return self._request.tokens[: self._rows_needed_from + 1]

    @property
    def max_cached_positions(self) -> int:
        return self._rows_needed_from

    def next_input(self, length: int, draft_count: int = 0) -> PassInput:  # noqa: ARG002
        tokens = self._request.tokens_after(length)
        hidden_only = self._wanted is not WantedRows.LOGITS
        if not hidden_only:
            tokens = tokens[: max(LOGITS_ROWS, self._block)]
        logits_count = max(0, length + len(tokens) - self._rows_needed_from)
        return PassInput(tokens, logits_count, len(tokens), self._block, hidden_only=hidden_only)

    def update(self, pass_input: PassInput, rows: Sequence[Row]) -> int:  # noqa: ARG002
        self.pass_counts.passes += 1
        self._on_rows(rows)
        self._rows_given = self._rows_needed_from + len(rows)
        if self._rows_given == len(self._request.tokens):
            self._request.finish(FinishReason.STOP)
        return 0

    def close(self) -> None:
        """Does nothing: this strategy holds no resources."""


def prefill_only_factory(on_rows: OnRows, wanted: WantedRows, block: int) -> StrategyFactory:
    """The factory of a PrefillOnlyStrategy."""
    return partial(PrefillOnlyStrategy, on_rows=on_rows, wanted=wanted, block=block)
