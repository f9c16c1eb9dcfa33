"""Speculative decoding: several tokens in a pass of an autoregressive model. The next tokens are drafted, and
the model verifies them.

Each row of a pass sees what it would see if the drafts before it had been sampled. A draft is accepted if it
is the very token that the sampler draws from the logits before it; the drafts after the first rejected one
are dropped. So an answer has the tokens, the logits' bits and the random draws that it has without drafts,
greedy or sampled. For a deterministic draft this is the rejection rule of speculative sampling (Leviathan et
al. 2023, arXiv 2211.17192, with a q that is 1 for one token): it is accepted with the probability that the
model gives it, and replaced by a draw from the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from aerie.engine.embeddings import Token, ids_only
from aerie.engine.strategies.autoregressive import AutoregressiveStrategy
from aerie.engine.strategies.draft_length import AdaptiveDraftLength
from aerie.engine.strategies.drafters import Drafter
from aerie.engine.strategies.strategy import PassInput, RequestState, Row

MAX_DRAFTS = 15
"""Maximum drafts in a pass: with the token before them, rows of the second smallest program."""


class SpeculativeStrategy(AutoregressiveStrategy):
    """Verifies the drafts of `drafter`, as many as `length` says pay off and the step has rows for.

    Drafts without cost are made before it is known how many of them are verified, so that an answer without
    any takes no rows. Others are made when it is known, and none in vain.
    """

    def __init__(self, request: RequestState, drafter: Drafter, length: AdaptiveDraftLength) -> None:
        super().__init__(request)
        self._drafter, self._length = drafter, length
        self._drafts: Sequence[int] = ()

    def next_input(self, length: int, draft_count: int = 0) -> PassInput:
        pass_input, request = super().next_input(length), self._request
        if not (pass_input.is_decode and pass_input.logits_count and request.token_ids):
            return pass_input
        estimate = self._length.estimate(min(request.remaining_tokens, request.free_positions) - 1)
        if draft_count:
            drafts = self._make_drafts(draft_count) if estimate.cost else self._drafts[:draft_count]
            return PassInput((*pass_input.tokens, *drafts), 1 + len(drafts), 1, is_decode=True)
        if not estimate.cost:
            self._drafts = self._make_drafts(estimate.max_drafts) if estimate.max_drafts else ()
            estimate = estimate._replace(max_drafts=len(self._drafts))
        return pass_input._replace(drafts=estimate)

    def _make_drafts(self, max_drafts: int) -> Sequence[int]:
        return self._drafter(ids_only(self._request.tokens), max_drafts)[:max_drafts]

    def update(self, pass_input: PassInput, rows: Sequence[Row]) -> int:
        accepted = self._accept_drafts(pass_input.tentative_tokens, rows)
        counts = self.pass_counts
        counts.passes, counts.drafted = counts.passes + 1, counts.drafted + len(pass_input.tentative_tokens)
        counts.accepted += accepted
        self._length.update(len(pass_input.tentative_tokens), accepted)
        return accepted

    def _accept_drafts(self, drafts: Sequence[Token], rows: Sequence[Row]) -> int:
        """Sample row after row while the draft before it is accepted. Returns the number of accepted
        drafts."""
        for number, row in enumerate(rows):
            token = self._request.sample(row)
            continues = self._request.append_token(token)
            if number == len(drafts) or token != drafts[number]:
                return number
            if not continues:
                return number + 1
        return len(drafts)

    def close(self) -> None:
        self._drafter.close()
