"""What was found: as data, as the JSON record, and for people as a table, sentences and one verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from aerie.board.compare.items import PROGRAM, Item
from aerie.common.text_tables import compact_table, print_tables
from aerie.verify.report import write_report


class Verdict(StrEnum):
    """How one result of one launch stands to the virtual NPU's."""

    SAME = "same"  # within the kernel's own tolerance, which only the order of a sum and a last rounding fill
    NEAR = "near"  # beyond that, and within what is known of the core's approximations (its allowance)
    DIFFERS = "differs"


class Status(StrEnum):
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


def save(outcomes: Sequence[Outcome], backend: str, path: Path) -> None:
    """The record as JSON, in one step. Raises UserError where it cannot be written."""
    record = {
        "backend": backend,
        "against": "the virtual NPU, exact and bfp16",
        "right": all(outcome.status.is_right for outcome in outcomes),
        "items": [_entry(outcome) for outcome in outcomes],
    }
    write_report(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def _entry(outcome: Outcome) -> dict[str, object]:
    entry: dict[str, object] = as_json(outcome)
    guilty = outcome.guilty
    return {**entry, "numerics": outcome.numerics, "first_at_fault": guilty.launch if guilty else None}


def print_outcomes(outcomes: Sequence[Outcome], backend: str, console: Console | None = None) -> None:
    """The table, the differences, and the verdict as the last line."""
    console = console or Console(highlight=False, markup=False)
    print_tables(console, _table(outcomes, backend))
    for line in details(outcomes):
        console.print(line, soft_wrap=True)
    console.print(verdict_line(outcomes), soft_wrap=True)


def line_of(outcome: Outcome) -> str:
    """One item in one line, as it ends."""
    what = outcome.message or _numbers(outcome)
    return f"{outcome.item}: {outcome.status.value}{f' ({what})' if what else ''}"


def details(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What is known of each item that is not right: of a program, the first launch at fault first."""
    for outcome in outcomes:
        if outcome.message and outcome.status is not Status.NOT_RUN:
            yield f"{outcome.item}: {outcome.message}"
        for finding in outcome.findings:
            if finding.verdict is Verdict.DIFFERS:
                first = "first at fault, " if finding is outcome.guilty and len(outcome.findings) > 1 else ""
                place = f" {first}launch {finding.position} {finding.launch} ({finding.kernel})"
                yield f"{outcome.item}:{place if outcome.item.kind == PROGRAM else ''} {finding}"


def verdict_line(outcomes: Sequence[Outcome]) -> str:
    """How many of each kind; the first word is for scripts."""
    counts = {status: sum(outcome.status is status for outcome in outcomes) for status in Status}
    right = all(outcome.status.is_right for outcome in outcomes)
    told = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    return f"[compare] {'PASS' if right else 'FAIL'}: {told}"


def _table(outcomes: Sequence[Outcome], backend: str) -> Table:
    title = f"{backend} against the virtual NPU, on the same numbers"
    texts = ("item", "shape", "verdict", "nearest to", "at fault")
    table = compact_table(title, texts, ("share, exact", "share, bfp16"))
    for outcome in outcomes:
        guilty = outcome.guilty
        at_fault = "" if guilty is None else f"{guilty.launch}: {guilty.argument}"
        nearest = outcome.numerics if outcome.findings else "-"
        shares = [_share(outcome, name) for name in ("exact", "bfp16")]
        table.add_row(
            str(outcome.item), outcome.item.parameters, outcome.status.value, nearest, at_fault, *shares
        )
    return table


def _share(outcome: Outcome, numerics: str) -> str:
    shares = [finding.distances[numerics].share for finding in outcome.findings]
    return f"{max(shares):.1e}" if shares else "-"


def _numbers(outcome: Outcome) -> str:
    if not outcome.findings:
        return ""
    guilty = outcome.guilty
    at_fault = f"{guilty.launch}: {guilty.argument}, " if guilty else ""
    return f"{at_fault}share {_share(outcome, 'exact')} from exact, {_share(outcome, 'bfp16')} from bfp16"
