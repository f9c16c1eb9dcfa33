"""Several tokens a pass of a model that says one after the other: what comes next is guessed, and tried.

Each row of a pass sees what it would see had the drafts before it been said. A draft stays where it is the
very token that the sampler draws from the logits before it; with the first that is not, the rest goes. So an
answer has the tokens, the logits' bits and the draws that it has without drafts: greedily and drawn. For a
guess that is certain of its token this is the rejection rule of speculative sampling (Leviathan et al. 2023,
arXiv 2211.17192, with a q that is 1 for one token): it stays with the probability that the model gives it,
and in its place comes a draw from the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from aerie.engine.embeddings import Token, ids_among
from aerie.engine.strategies.adapting import Adaptive
from aerie.engine.strategies.autoregressive import Autoregressive
from aerie.engine.strategies.drafting import Drafter
from aerie.engine.strategies.strategy import PassInput, RequestState, Row

MOST_DRAFTS = 15
"""Tokens tried in a pass: with the one before them, rows of the second smallest program."""


class Speculative(Autoregressive):
    """Tries what `drafter` guesses, as many as `length` says that it pays to try, and others leave room for.

    Guesses that cost nothing are made before it is known how many of them are tried, so that an answer that
    has none takes no room. Others are made when it is known, and none in vain.
    """

    def __init__(self, making: RequestState, drafter: Drafter, length: Adaptive) -> None:
        super().__init__(making)
        self._drafter, self._length = drafter, length
        self._found: Sequence[int] = ()

    def next_input(self, length: int, guesses: int = 0) -> PassInput:
        due, making = super().next_input(length), self._making
        if not (due.is_answer and due.wanted and making.token_ids):
            return due
        could = self._length.guesses(min(making.left, making.room) - 1)
        if guesses:
            drafts = self._drafted(guesses) if could.cost else self._found[:guesses]
            return PassInput((*due.tokens, *drafts), 1 + len(drafts), 1, is_answer=True)
        if not could.cost:
            self._found = self._drafted(could.most) if could.most else ()
            could = could._replace(most=len(self._found))
        return due._replace(guesses=could)

    def _drafted(self, most: int) -> Sequence[int]:
        return self._drafter(ids_among(self._making.tokens), most)[:most]

    def update(self, due: PassInput, rows: Sequence[Row]) -> int:
        stays = self._say(due.tried, rows)
        done = self.passes
        done.passes, done.drafted = done.passes + 1, done.drafted + len(due.tried)
        done.accepted += stays
        self._length.update(len(due.tried), stays)
        return stays

    def _say(self, drafts: Sequence[Token], rows: Sequence[Row]) -> int:
        """Draw row after row for as long as the draft before it was right; how many were."""
        for number, row in enumerate(rows):
            token = self._making.draw(row)
            goes_on = self._making.say(token)
            if number == len(drafts) or token != drafts[number]:
                return number
            if not goes_on:
                return number + 1
        return len(drafts)

    def close(self) -> None:
        self._drafter.close()
