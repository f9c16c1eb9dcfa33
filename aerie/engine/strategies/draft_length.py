"""The number of draft tokens in a forward pass: as many as pay off, by the recent acceptance rate.

The cost of a pass is that of the program for its rows, even if few rows are tokens. If eight requests share a
program, one more draft can move all of them to the next larger program. So drafts of all requests are ranked
by their chance of acceptance, and as many are taken as give the most tokens per time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aerie.engine.strategies.strategy import DraftEstimate

PASS_COST_BY_ROWS = {8: 1.0, 16: 1.57, 32: 3.1}
"""The time of a pass of up to this number of rows, relative to a single row, which also uses a program of 8
rows and reads every weight once. Measured with AVX-512. With AVX512-BF16 they are 1.33 and 2.2; more drafts
would pay off there (docs/dev/performance-notes.md, few rows)."""
ACCEPTANCE_DECAY = 0.9
"""The weight of an older pass relative to a newer one."""
FIRST_REST, LAST_REST = 8, 64
"""Passes without drafts before drafts are tried again; the number doubles each time they do not pay off."""
ACCEPTANCE_DISCOUNT = 0.95
"""Factor on the acceptance rate, which is estimated from few passes: what barely pays off may not."""
PROBE_DRAFTS = 3
"""Number of drafts in a pass that tries again whether they pay off."""


def allocate_drafts(answers: int, estimates: Sequence[DraftEstimate]) -> list[int]:
    """The number of drafts for each request that gives the most tokens per time, if `answers` requests, those
    without drafts included, share a pass. A request alone gets all its drafts."""
    if answers == 1:
        return [estimate.max_drafts for estimate in estimates]
    return _best_allocation(answers, estimates)


def _best_allocation(answers: int, estimates: Sequence[DraftEstimate]) -> list[int]:
    candidates = sorted(
        (
            (estimate.acceptance_rate**position, number)
            for number, estimate in enumerate(estimates)
            for position in range(1, estimate.max_drafts + 1)
        ),
        key=lambda draft: -draft[0],
    )
    tokens, cost, counts = float(answers), 0.0, [0] * len(estimates)
    best, best_rate = list(counts), tokens / _cost(answers)
    for rows, (probability, number) in enumerate(
        candidates[: max(PASS_COST_BY_ROWS) - answers], start=answers + 1
    ):
        estimate = estimates[number]
        tokens += ACCEPTANCE_DISCOUNT * probability
        cost += 0 if estimate.cost_is_total and counts[number] else estimate.cost
        counts[number] += 1
        if (rate := tokens / (_cost(rows) + cost)) > best_rate:
            best, best_rate = list(counts), rate
    return best


def _cost(rows: int) -> float:
    return next(cost for max_rows, cost in PASS_COST_BY_ROWS.items() if rows <= max_rows)


@dataclass
class AdaptiveDraftLength:
    """The number of drafts for one request.

    max_drafts: maximum per pass. draft_cost: time of a draft, relative to a pass of the model; cost_is_total:
    it is the time of all drafts of a pass. The result depends on the recorded passes only, not on a clock.
    """

    max_drafts: int = 15
    draft_cost: float = 0.0
    cost_is_total: bool = False
    _right: float = field(default=1.0, init=False)
    _wrong: float = field(default=0.5, init=False)
    _resting: int = field(default=0, init=False)
    _rest: int = field(default=FIRST_REST, init=False)

    @property
    def acceptance_rate(self) -> float:
        """The probability that a draft is accepted if those before it are."""
        return self._right / (self._right + self._wrong)

    def length(self) -> int:
        """Number of drafts now: 0 while it rests, then a few to try again."""
        return 0 if self._resting else self._best() or min(PROBE_DRAFTS, self.max_drafts)

    def estimate(self, max_count: int) -> DraftEstimate:
        """The drafts that are possible now, at most `max_count`."""
        return self._estimate(max(0, min(max_count, self.length())))

    def _estimate(self, max_drafts: int) -> DraftEstimate:
        return DraftEstimate(max_drafts, self.acceptance_rate, self.draft_cost, self.cost_is_total)

    def _best(self) -> int:
        """The number of drafts that gives the most tokens per time if the request is alone."""
        return _best_allocation(1, [self._estimate(self.max_drafts)])[0]

    def update(self, drafted: int, accepted: int) -> None:
        """Record a pass with `drafted` drafts, the first `accepted` of which were accepted."""
        if not drafted:
            self._resting = max(0, self._resting - 1)
            return
        self._right = ACCEPTANCE_DECAY * self._right + accepted
        self._wrong = ACCEPTANCE_DECAY * self._wrong + (accepted < drafted)
        if self._best():
            self._rest = FIRST_REST
        else:
            self._resting, self._rest = self._rest, min(LAST_REST, 2 * self._rest)
