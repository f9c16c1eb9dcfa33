"""What a check says: a status, what was found, what was wanted, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
