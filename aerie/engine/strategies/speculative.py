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

from aerie.engine.embeddings import Token, ids_only
from aerie.engine.strategies.autoregressive import AutoregressiveStrategy
from aerie.engine.strategies.draft_length import AdaptiveDraftLength
from aerie.engine.strategies.drafters import Drafter
from aerie.engine.strategies.strategy import PassInput, RequestState, Row

MAX_DRAFTS = 15
"""Tokens tried in a pass: with the one before them, rows of the second smallest program."""


class SpeculativeStrategy(AutoregressiveStrategy):
    """Tries what `drafter` guesses, as many as `length` says that it pays to try, and others leave room for.

    Guesses that cost nothing are made before it is known how many of them are tried, so that an answer that
    has none takes no room. Others are made when it is known, and none in vain.
    """

    def __init__(self, request: RequestState, drafter: Drafter, length: AdaptiveDraftLength) -> None:
        super().__init__(request)
        self._drafter, self._length = drafter, length
        self._drafts: Sequence[int] = ()

    def next_input(self, length: int, draft_count: int = 0) -> PassInput:
        due, making = super().next_input(length), self._request
        if not (due.is_decode and due.logits_count and making.token_ids):
            return due
        could = self._length.estimate(min(making.remaining_tokens, making.free_positions) - 1)
        if draft_count:
            drafts = self._make_drafts(draft_count) if could.cost else self._drafts[:draft_count]
            return PassInput((*due.tokens, *drafts), 1 + len(drafts), 1, is_decode=True)
        if not could.cost:
            self._drafts = self._make_drafts(could.max_drafts) if could.max_drafts else ()
            could = could._replace(max_drafts=len(self._drafts))
        return due._replace(drafts=could)

    def _make_drafts(self, most: int) -> Sequence[int]:
        return self._drafter(ids_only(self._request.tokens), most)[:most]

    def update(self, pass_input: PassInput, rows: Sequence[Row]) -> int:
        stays = self._accept_drafts(pass_input.tentative_tokens, rows)
        done = self.pass_counts
        done.passes, done.drafted = done.passes + 1, done.drafted + len(pass_input.tentative_tokens)
        done.accepted += stays
        self._length.update(len(pass_input.tentative_tokens), stays)
        return stays

    def _accept_drafts(self, drafts: Sequence[Token], rows: Sequence[Row]) -> int:
        """Draw row after row for as long as the draft before it was right; how many were."""
        for number, row in enumerate(rows):
            token = self._request.sample(row)
            goes_on = self._request.append_token(token)
            if number == len(drafts) or token != drafts[number]:
                return number
            if not goes_on:
                return number + 1
        return len(drafts)

    def close(self) -> None:
        self._drafter.close()
