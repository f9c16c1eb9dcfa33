"""Autoregressive decoding: each token is sampled from the logits after the one before."""

from __future__ import annotations

from collections.abc import Sequence

from aerie.engine.embeddings import Token
from aerie.engine.strategies.strategy import PassCounts, PassInput, RequestState, Row


class AutoregressiveStrategy:
    """One token in each forward pass."""

    def __init__(self, request: RequestState) -> None:
        self._request, self.pass_counts = request, PassCounts()

    @property
    def cacheable_tokens(self) -> Sequence[Token]:
        return self._request.tokens

    @property
    def max_cached_positions(self) -> int:
        """All tokens but the last one, whose logits are not computed yet."""
        return len(self._request.tokens) - 1

    def next_input(self, length: int, draft_count: int = 0) -> PassInput:  # noqa: ARG002
        tokens, total = self._request.tokens_after(length), len(self._request.tokens)
        return PassInput(tokens, int(length + len(tokens) == total), len(tokens), is_decode=len(tokens) == 1)

    def update(self, pass_input: PassInput, rows: Sequence[Row]) -> int:  # noqa: ARG002
        self.pass_counts.passes += 1
        self._request.append_token(self._request.sample(rows[0]))
        return 0

    def close(self) -> None:
        """Does nothing: this strategy holds no resources."""
