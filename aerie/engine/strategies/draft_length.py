"""How many tokens are guessed in a pass: as many as pay, by what was right lately.

A pass costs what the program of its rows does, however few of them are tokens: where eight answers share
one, a guess more takes all of them to the next larger program. So guesses are taken by their chance of being
right, whichever answer they are of, up to the number that brings most tokens in the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aerie.engine.strategies.strategy import DraftEstimate

PASS_COST_BY_ROWS = {8: 1.0, 16: 1.57, 32: 3.1}
"""What a pass of up to so many rows takes, beside one of a single row, which is a program of 8 rows as well:
every weight is read once. Those of AVX-512; of AVX512-BF16 they are 1.33 and 2.2, where more guesses would
pay than are made (docs/dev/performance-notes.md, few rows)."""
ACCEPTANCE_DECAY = 0.9
"""What an older pass counts of a newer one."""
FIRST_REST, LAST_REST = 8, 64
"""Passes without guesses before some are tried again: twice as many each time these do not pay."""
ACCEPTANCE_DISCOUNT = 0.95
"""What a guess counts of its chance, which is one of few passes: what barely pays may well not."""
PROBE_DRAFTS = 3
"""Tokens that are guessed where it is tried again whether that pays."""


def allocate_drafts(answers: int, estimates: Sequence[DraftEstimate]) -> list[int]:
    """How many of their guesses are tried where so many answers share a pass, those that guess nothing among
    them: as many as bring most tokens in the time. One by itself tries all that it could: it knows best."""
    if answers == 1:
        return [one.max_drafts for one in estimates]
    return _best_allocation(answers, estimates)


def _best_allocation(answers: int, estimates: Sequence[DraftEstimate]) -> list[int]:
    likeliest = sorted(
        (
            (one.acceptance_rate**place, number)
            for number, one in enumerate(estimates)
            for place in range(1, one.max_drafts + 1)
        ),
        key=lambda guess: -guess[0],
    )
    said, cost, taken = float(answers), 0.0, [0] * len(estimates)
    best, best_worth = list(taken), said / _cost(answers)
    for rows, (chance, number) in enumerate(likeliest[: max(PASS_COST_BY_ROWS) - answers], start=answers + 1):
        one = estimates[number]
        said, cost = (
            said + ACCEPTANCE_DISCOUNT * chance,
            cost + (0 if one.cost_is_total and taken[number] else one.cost),
        )
        taken[number] += 1
        if (worth := said / (_cost(rows) + cost)) > best_worth:
            best, best_worth = list(taken), worth
    return best


def _cost(rows: int) -> float:
    return next(cost for most, cost in PASS_COST_BY_ROWS.items() if rows <= most)


@dataclass
class AdaptiveDraftLength:
    """most: tokens at most. per_draft: what a guess itself costs, in passes of the model; at_once: what all
    of a pass do together.

    What it says depends on what it was told alone, not on any clock.
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
        """How likely a guess is right where those before it were."""
        return self._right / (self._right + self._wrong)

    def length(self) -> int:
        """How many to guess now: 0 while it rests, after which a few are tried, pay or not."""
        return 0 if self._resting else self._best() or min(PROBE_DRAFTS, self.max_drafts)

    def estimate(self, max_count: int) -> DraftEstimate:
        """What there could be now, where there is room for so many."""
        return self._estimate(max(0, min(max_count, self.length())))

    def _estimate(self, max_drafts: int) -> DraftEstimate:
        return DraftEstimate(max_drafts, self.acceptance_rate, self.draft_cost, self.cost_is_total)

    def _best(self) -> int:
        """The count that gives most tokens in the time of a pass that the answer has by itself."""
        return _best_allocation(1, [self._estimate(self.max_drafts)])[0]

    def update(self, drafted: int, accepted: int) -> None:
        """A pass had so many guesses, the first `accepted` of which were right."""
        if not drafted:
            self._resting = max(0, self._resting - 1)
            return
        self._right = ACCEPTANCE_DECAY * self._right + accepted
        self._wrong = ACCEPTANCE_DECAY * self._wrong + (accepted < drafted)
        if self._best():
            self._rest = FIRST_REST
        else:
            self._resting, self._rest = self._rest, min(LAST_REST, 2 * self._rest)
