"""What was found, as data: what goes into the JSON record and the tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import Any

from board.compare.items import Item


class Verdict(str, Enum):
    """How one result of one launch stands to the virtual NPU's."""

    SAME = "same"  # within the kernel's own tolerance, which only the order of a sum and a last rounding fill
    NEAR = "near"  # beyond that, and within what is known of the core's approximations (allowances.py)
    DIFFERS = "differs"


class Status(str, Enum):
    """How one item ended. All but SAME and NEAR make the comparison fail."""

    SAME = "same"
    NEAR = "near"
    DIFFERS = "differs"
    UNSTEADY = "unsteady"  # two runs on the same numbers gave different results
    NOT_COMPILED = "not compiled"
    FAILED = "failed"  # it was started, and did not complete
    HUNG = "hung"  # it had to be killed
    CRASHED = "crashed"
    NOT_RUN = "not run"

    @property
    def is_right(self) -> bool:
        return self in (Status.SAME, Status.NEAR)


@dataclass(frozen=True)
class Distance:
    """From the virtual NPU in one numerics.

    share: mean |got - want| / mean |want|, infinite where one side alone is not finite. excess: in the
    kernel's tolerances. differing: elements that are not the same number.
    """

    share: float
    excess: float
    differing: int


@dataclass(frozen=True)
class Worst:
    """The element farthest off: where it is, what was got, and what the nearest numerics wants there."""

    index: tuple[int, ...]
    got: float
    want: float

    def __str__(self) -> str:
        return f"{list(self.index)}: got {self.got:.6g}, wanted {self.want:.6g}"


@dataclass(frozen=True)
class Finding:
    """One result of one launch, judged on the numbers that the launch read itself.

    launch, argument: as the program names them; position counts its launches from 0. nearest: which of
    `distances` is smallest. wrong: how many of `size` elements are outside of what is allowed. place,
    writers, pattern: sentences on where these are, which tiles wrote them, and what they look like.
    """

    launch: str
    position: int
    kernel: str
    argument: str
    verdict: Verdict
    nearest: str
    distances: dict[str, Distance]
    size: int
    wrong: int = 0
    worst: Worst | None = None
    place: str = ""
    writers: str = ""
    pattern: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For a result that differs: everything that was found, in one line."""
        nearest = f"nearest is {self.nearest}, share {self.distances[self.nearest].share:.1e}"
        said = (
            f"{self.wrong} of {self.size} elements are wrong ({self.place})",
            f"worst at {self.worst}" if self.worst else "",
            nearest,
            *self.pattern,
            self.writers,
        )
        return f"{self.argument}: {'; '.join(part for part in said if part)}"


@dataclass(frozen=True)
class Outcome:
    """How one item ended, and what was found.

    message: why it did not end as it should, one line. log: the file with all that its process printed.
    clobbered: arguments that were only to be read, and changed. lost: the device answers no more, so nothing
    after it was run. compile_seconds, run_seconds: host time, and no measure of the NPU's speed.
    """

    item: Item
    status: Status
    findings: tuple[Finding, ...] = ()
    message: str = ""
    log: str = ""
    clobbered: tuple[str, ...] = ()
    lost: bool = False
    compile_seconds: float = 0.0
    run_seconds: float = 0.0

    @property
    def guilty(self) -> Finding | None:
        """The first launch at fault; what comes after it is judged on its own inputs."""
        return next((f for f in self.findings if f.verdict is Verdict.DIFFERS), None)

    @property
    def numerics(self) -> str:
        """Which numerics the results are nearest to, those that tell the two apart."""
        told = {f.nearest for f in self.findings if len(set(f.distances.values())) > 1}
        return " and ".join(sorted(told)) or "both"


def as_json(value: Any) -> Any:
    """Records as JSON has them; a number that is not finite is a text."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Item):
        return {"kind": value.kind, "name": str(value), "parameters": value.parameters}
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: as_json(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(inner) for inner in value]
    if is_dataclass(value):
        return {name: as_json(inner) for name, inner in vars(value).items()}
    return value
