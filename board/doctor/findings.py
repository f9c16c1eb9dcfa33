"""What a check says: a status, what was found, what was wanted, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

LONGEST = 400
"""Characters of a text in a finding; tools may say anything."""


class Status(str, Enum):
    """How a layer stands. Only FAILED and UNKNOWN keep something from working."""

    OK = "ok"
    WARNING = "warning"  # works, and may disappoint
    FAILED = "failed"  # missing, too old, or broken
    UNKNOWN = "unknown"  # it could not be told; never taken for a yes
    SKIPPED = "skipped"  # not looked at, because a layer below failed


@dataclass(frozen=True)
class Finding:
    """One layer, as it was found. `fix` is empty where there is nothing to mend."""

    status: Status
    found: str
    wanted: str
    fix: str = ""

    def printable(self) -> Finding:
        """The same with nothing that a terminal would act on, and no text longer than LONGEST characters."""
        return Finding(self.status, *map(_printable, (self.found, self.wanted, self.fix)))


def _printable(text: str) -> str:
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]} ..."
