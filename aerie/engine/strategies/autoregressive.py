"""One token after the other: each is drawn from the logits after the one before."""

from __future__ import annotations

from collections.abc import Sequence

from aerie.engine.embeddings import Token
from aerie.engine.strategies.strategy import PassCounts, PassInput, RequestState, Row


class AutoregressiveStrategy:
    """See Strategy."""

    def __init__(self, request: RequestState) -> None:
        self._request, self.pass_counts = request, PassCounts()

    @property
    def cacheable_tokens(self) -> Sequence[Token]:
        return self._request.tokens

    @property
    def max_cached_positions(self) -> int:
        """All but the last, of which no logits are there."""
        return len(self._request.tokens) - 1

    def next_input(self, length: int, draft_count: int = 0) -> PassInput:  # noqa: ARG002
        tokens, of_all = self._request.tokens_after(length), len(self._request.tokens)
        return PassInput(tokens, int(length + len(tokens) == of_all), len(tokens), is_decode=len(tokens) == 1)

    def update(self, pass_input: PassInput, rows: Sequence[Row]) -> int:  # noqa: ARG002
        self.pass_counts.passes += 1
        self._request.append_token(self._request.sample(rows[0]))
        return 0

    def close(self) -> None:
        """Nothing is held."""
