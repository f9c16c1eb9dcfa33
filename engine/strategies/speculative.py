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
from aerie.engine.strategies.strategy import Due, Making, Row

MOST_DRAFTS = 15
"""Tokens tried in a pass: with the one before them, rows of the second smallest program."""
LEAST_SHARE = 2
"""Fewer in each of many answers do not pay: where 8 answers share a pass, one guess in one of them takes all
of them to the next larger program. By tests/benchmarks/test_drafts_pay.py, on its texts."""


def _share(rows: int) -> int:
    """Guesses that an answer may have which can take so many rows of a pass: those under way share the rows
    of the second smallest program, for 32 rows take more than twice the time of 8."""
    share = min(MOST_DRAFTS, rows // 2 - 1)
    return share if share >= LEAST_SHARE else 0


class Speculative(Autoregressive):
    """Tries what `drafter` guesses, as many as `length` says that it pays to try."""

    def __init__(self, making: Making, drafter: Drafter, length: Adaptive) -> None:
        super().__init__(making)
        self._drafter, self._length = drafter, length

    def due(self, length: int, rows: int) -> Due:
        due, making = super().due(length, rows), self._making
        if not (due.is_answer and due.wanted and making.token_ids):
            return due
        room = making.positions - length - 1
        most = min(_share(rows), making.left - 1, room, self._length.length())
        drafts = self._drafter(ids_among(making.tokens), most) if most > 0 else ()
        return Due((*due.tokens, *drafts[:most]), 1 + len(drafts[:most]), 1, is_answer=True)

    def took(self, due: Due, rows: Sequence[Row]) -> int:
        stays = self._say(due.tried, rows)
        done = self.passes
        done.passes, done.drafted = done.passes + 1, done.drafted + len(due.tried)
        done.accepted += stays
        self._length.took(len(due.tried), stays)
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
