"""The outcomes of a comparison: as data, as a JSON record, and as a table, sentences and one verdict."""

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

from aerie.board.compare.items import PROGRAM, ComparisonItem
from aerie.common.text_tables import compact_table, print_tables
from aerie.verify.report import write_report


class ResultVerdict(StrEnum):
    """How one result of one launch compares with the virtual NPU's."""

    SAME = "same"  # within the kernel's own tolerance, which only the order of a sum and a last rounding fill
    NEAR = "near"  # beyond that, and within what is known of the core's approximations (its allowance)
    DIFFERS = "differs"


class ItemStatus(StrEnum):
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
        return self in (ItemStatus.SAME, ItemStatus.NEAR)


@dataclass(frozen=True)
class ResultDistance:
    """The distance from the virtual NPU in one numerics.

    share: mean |actual - expected| / mean |expected|, infinite if only one side is not finite. excess: in
    units of the kernel's tolerance. differing: the number of elements that are not equal.
    """

    share: float
    excess: float
    differing: int


@dataclass(frozen=True)
class Worst:
    """The element with the largest error: its index, its value, and the value that the nearest numerics
    expects.
    """

    index: tuple[int, ...]
    got: float
    want: float

    def __str__(self) -> str:
        return f"{list(self.index)}: got {self.got:.6g}, wanted {self.want:.6g}"


@dataclass(frozen=True)
class ResultFinding:
    """One result of one launch, checked on the inputs that the launch itself read.

    launch, argument: the program's names; position counts its launches from 0. nearest: the numerics with the
    smallest of `distances`. wrong: how many of `size` elements are outside the allowed error. place, writers,
    pattern: sentences on where these are, which tiles wrote them, and which pattern they have.
    """

    launch: str
    position: int
    kernel: str
    argument: str
    verdict: ResultVerdict
    nearest: str
    distances: dict[str, ResultDistance]
    size: int
    wrong: int = 0
    worst: Worst | None = None
    place: str = ""
    writers: str = ""
    pattern: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For a result that differs: everything that was found, in one line."""
        nearest = f"nearest is {self.nearest}, share {self.distances[self.nearest].share:.1e}"
        text = (
            f"{self.wrong} of {self.size} elements are wrong ({self.place})",
            f"worst at {self.worst}" if self.worst else "",
            nearest,
            *self.pattern,
            self.writers,
        )
        return f"{self.argument}: {'; '.join(part for part in text if part)}"


@dataclass(frozen=True)
class ItemOutcome:
    """How one item ended, and what was found.

    message: why it failed, one line. log: the file with everything that its process printed. clobbered:
    read-only arguments that changed. lost: the device no longer answers, so nothing was run after it.
    compile_seconds, run_seconds: host time, which is no measure of the NPU's speed. times_us: of further
    runs, each from its start to its end on the host's clock, in microseconds.
    """

    item: ComparisonItem
    status: ItemStatus
    findings: tuple[ResultFinding, ...] = ()
    message: str = ""
    log: str = ""
    clobbered: tuple[str, ...] = ()
    lost: bool = False
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    times_us: tuple[float, ...] = ()

    @property
    def first_failure(self) -> ResultFinding | None:
        """The first failed launch. Later launches are checked on their own inputs."""
        return next((f for f in self.findings if f.verdict is ResultVerdict.DIFFERS), None)

    @property
    def numerics(self) -> str:
        """The numerics that the results are nearest to, among results that can tell the two apart."""
        numerics = {f.nearest for f in self.findings if len(set(f.distances.values())) > 1}
        return " and ".join(sorted(numerics)) or "both"


def as_json(value: Any) -> Any:
    """A record as JSON values. A number that is not finite becomes a text."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, ComparisonItem):
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


def save(outcomes: Sequence[ItemOutcome], backend: str, path: Path) -> None:
    """Write the record as JSON, in one step. Raises UserError if it cannot be written."""
    record = {
        "backend": backend,
        "against": "the virtual NPU, exact and bfp16",
        "right": all(outcome.status.is_right for outcome in outcomes),
        "items": [_entry(outcome) for outcome in outcomes],
    }
    write_report(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def _entry(outcome: ItemOutcome) -> dict[str, object]:
    entry: dict[str, object] = as_json(outcome)
    guilty = outcome.first_failure
    return {**entry, "numerics": outcome.numerics, "first_at_fault": guilty.launch if guilty else None}


def print_outcomes(outcomes: Sequence[ItemOutcome], backend: str, console: Console | None = None) -> None:
    """Print the table, the differences, and the verdict as the last line."""
    console = console or Console(highlight=False, markup=False)
    print_tables(console, _table(outcomes, backend))
    for line in details(outcomes):
        console.print(line, soft_wrap=True)
    console.print(verdict_line(outcomes), soft_wrap=True)


def line_of(outcome: ItemOutcome) -> str:
    """One item in one line, as it ends."""
    what = outcome.message or _numbers(outcome)
    return f"{outcome.item}: {outcome.status.value}{f' ({what})' if what else ''}"


def details(outcomes: Sequence[ItemOutcome]) -> Iterator[str]:
    """The findings of each item that failed; for a program, the first failed launch first."""
    for outcome in outcomes:
        if outcome.message and outcome.status is not ItemStatus.NOT_RUN:
            yield f"{outcome.item}: {outcome.message}"
        for finding in outcome.findings:
            if finding.verdict is ResultVerdict.DIFFERS:
                first = (
                    "first at fault, "
                    if finding is outcome.first_failure and len(outcome.findings) > 1
                    else ""
                )
                place = f" {first}launch {finding.position} {finding.launch} ({finding.kernel})"
                yield f"{outcome.item}:{place if outcome.item.kind == PROGRAM else ''} {finding}"


def verdict_line(outcomes: Sequence[ItemOutcome]) -> str:
    """How many outcomes of each kind. Scripts read the first word."""
    counts = {status: sum(outcome.status is status for outcome in outcomes) for status in ItemStatus}
    right = all(outcome.status.is_right for outcome in outcomes)
    counted = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    return f"[compare] {'PASS' if right else 'FAIL'}: {counted}"


def _table(outcomes: Sequence[ItemOutcome], backend: str) -> Table:
    title = f"{backend} against the virtual NPU, on the same numbers"
    texts = ("item", "shape", "verdict", "nearest to", "at fault")
    table = compact_table(title, texts, ("share, exact", "share, bfp16"))
    for outcome in outcomes:
        guilty = outcome.first_failure
        at_fault = "" if guilty is None else f"{guilty.launch}: {guilty.argument}"
        nearest = outcome.numerics if outcome.findings else "-"
        shares = [_share(outcome, name) for name in ("exact", "bfp16")]
        table.add_row(
            str(outcome.item), outcome.item.parameters, outcome.status.value, nearest, at_fault, *shares
        )
    return table


def _share(outcome: ItemOutcome, numerics: str) -> str:
    shares = [finding.distances[numerics].share for finding in outcome.findings]
    return f"{max(shares):.1e}" if shares else "-"


def _numbers(outcome: ItemOutcome) -> str:
    if not outcome.findings:
        return ""
    guilty = outcome.first_failure
    at_fault = f"{guilty.launch}: {guilty.argument}, " if guilty else ""
    return f"{at_fault}share {_share(outcome, 'exact')} from exact, {_share(outcome, 'bfp16')} from bfp16"
