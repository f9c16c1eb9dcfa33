"""The comparison for people: a table, then every difference in words, then one verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import ASCII, HEAVY_HEAD
from rich.console import Console
from rich.table import Table

from board.compare.items import PROGRAM
from board.compare.records import Outcome, Status, Verdict

PIPED_WIDTH = 132  # columns, where the reader is no terminal


def print_outcomes(outcomes: Sequence[Outcome], backend: str, console: Console | None = None) -> None:
    """The table, the differences, and the verdict as the last line."""
    console = console or Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    console.print(_table(outcomes, backend, console.is_terminal))
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


def _table(outcomes: Sequence[Outcome], backend: str, terminal: bool) -> Table:
    box = HEAVY_HEAD if terminal else ASCII
    table = Table(title=f"{backend} against the virtual NPU, on the same numbers", box=box)
    for name in ("item", "shape", "verdict", "nearest to", "at fault"):
        table.add_column(name)
    for name in ("share, exact", "share, bfp16"):
        table.add_column(name, justify="right")
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
