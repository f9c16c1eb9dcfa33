"""How many tokens are guessed in a pass: as many as pay, by what was right lately."""

from __future__ import annotations

from dataclasses import dataclass, field

COSTS = {8: 1.0, 16: 1.25}
"""What a pass of up to so many rows takes, beside one of a single row, which is a program of 8 rows as well:
every weight is read once."""
MEMORY = 0.9
"""What an older pass counts of a newer one."""
FIRST_REST, LAST_REST = 8, 64
"""Passes without guesses before some are tried again: twice as many each time these do not pay."""
COUNTS, PROBED = (0, 1, 3, 7, 15), 3
"""Tokens that are guessed at once, and as many where it is tried again whether that pays."""


@dataclass
class Adaptive:
    """most: tokens at most. per_draft: what a guess itself costs, in passes of the model; at_once: what all
    of a pass do together.

    What it says depends on what it was told alone, not on any clock.
    """

    most: int = 15
    per_draft: float = 0.0
    at_once: bool = False
    _right: float = field(default=1.0, init=False)
    _wrong: float = field(default=0.5, init=False)
    _resting: int = field(default=0, init=False)
    _rest: int = field(default=FIRST_REST, init=False)

    @property
    def rate(self) -> float:
        """How likely a guess is right where those before it were."""
        return self._right / (self._right + self._wrong)

    def length(self) -> int:
        """How many to guess now: 0 while it rests, after which a few are tried, pay or not."""
        return 0 if self._resting else self._best() or min(PROBED, self.most)

    def _best(self) -> int:
        """The count that gives most tokens in the time of a pass."""
        counts = [count for count in COUNTS if count <= self.most]
        return max(counts, key=self._worth)

    def _worth(self, count: int) -> float:
        tokens = sum(self.rate**number for number in range(count + 1))
        cost = next(cost for rows, cost in COSTS.items() if count < rows)
        return tokens / (cost + (min(count, 1) if self.at_once else count) * self.per_draft)

    def took(self, drafted: int, accepted: int) -> None:
        """A pass had so many guesses, the first `accepted` of which were right."""
        if not drafted:
            self._resting = max(0, self._resting - 1)
            return
        self._right = MEMORY * self._right + accepted
        self._wrong = MEMORY * self._wrong + (accepted < drafted)
        if self._best():
            self._rest = FIRST_REST
        else:
            self._resting, self._rest = self._rest, min(LAST_REST, 2 * self._rest)
