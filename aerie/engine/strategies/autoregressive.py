"""One token after the other: each is drawn from the logits after the one before."""

from __future__ import annotations

from collections.abc import Sequence

from aerie.engine.embeddings import Token
from aerie.engine.strategies.strategy import Passes, PassInput, RequestState, Row


class Autoregressive:
    """See Strategy."""

    def __init__(self, making: RequestState) -> None:
        self._making, self.passes = making, Passes()

    @property
    def cacheable_tokens(self) -> Sequence[Token]:
        return self._making.tokens

    @property
    def max_cached_positions(self) -> int:
        """All but the last, of which no logits are there."""
        return len(self._making.tokens) - 1

    def next_input(self, length: int, guesses: int = 0) -> PassInput:  # noqa: ARG002
        tokens, of_all = self._making.after(length), len(self._making.tokens)
        return PassInput(tokens, int(length + len(tokens) == of_all), len(tokens), is_answer=len(tokens) == 1)

    def update(self, due: PassInput, rows: Sequence[Row]) -> int:  # noqa: ARG002
        self.passes.passes += 1
        self._making.say(self._making.draw(rows[0]))
        return 0

    def close(self) -> None:
        """Nothing is held."""
