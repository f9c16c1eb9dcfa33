"""What the doctor found, for people: a line per check, more where something is wrong, and the verdict.

Lines are not wrapped: a command in them can be copied, from a terminal and out of a pipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.text import Text

from board.doctor.checks import CHECKS, GOALS, Goal
from board.doctor.examination import Check, Results
from board.doctor.findings import Finding, Status

STYLES = {
    Status.OK: "green",
    Status.WARNING: "yellow",
    Status.FAILED: "red",
    Status.UNKNOWN: "magenta",
    Status.SKIPPED: "dim",
}
STATUS_WIDTH = max(len(status.value) for status in Status)
TITLE_WIDTH = max(len(check.title) for check in CHECKS)
GOAL_WIDTH = max(len(goal.title) for goal in GOALS)
INDENT = " " * (2 + STATUS_WIDTH + 2 + TITLE_WIDTH + 2)


def print_page(results: Results, console: Console) -> None:
    """Every check by layer, then what will work now, then what to do next."""
    for layer, checks in groupby(CHECKS, key=lambda check: check.layer):
        _print(console, Text(layer, style="bold"))
        for check in checks:
            for line in _lines(check, results[check.name]):
                _print(console, line)
    _print(console, Text("\nwhat will work now", style="bold"))
    for goal in GOALS:
        _print(console, _verdict(goal, results))
    _print(console, Text("\nnext", style="bold"))
    for step in next_steps(results):
        _print(console, Text(f"  {step}"))


def next_steps(results: Results) -> Iterator[str]:
    """The command of the farthest goal that works, then what stands in the way of each other one."""
    broken = [(goal, obstacle) for goal in GOALS if (obstacle := goal.obstacle(results))]
    working = [goal for goal in GOALS if goal.obstacle(results) is None]
    farthest = [goal for goal in working if goal.runs] or working
    if farthest:
        yield farthest[-1].command
    fixes: dict[str, list[str]] = {}
    for goal, obstacle in broken:
        fixes.setdefault(results[obstacle.name].fix or f"mend: {obstacle.title}", []).append(goal.title)
    for fix, titles in fixes.items():
        yield f"to {' and to '.join(titles)}: {fix}"


def _lines(check: Check, finding: Finding) -> Iterator[Text]:
    mark = Text(f"  {finding.status.value.ljust(STATUS_WIDTH)}  ", style=STYLES[finding.status])
    yield mark + Text(f"{check.title.ljust(TITLE_WIDTH)}  {finding.found}", style="default")
    if finding.status is not Status.OK and finding.wanted:
        yield Text(f"{INDENT}wanted: {finding.wanted}", style="dim")
    if finding.fix:
        yield Text(f"{INDENT}fix: {finding.fix}")


def _verdict(goal: Goal, results: Results) -> Text:
    obstacle = goal.obstacle(results)
    title = f"  {goal.title.ljust(GOAL_WIDTH)}  "
    if obstacle is None:
        return Text(title) + Text("yes", style="green")
    return (
        Text(title) + Text("no ", style="red") + Text(f"  {obstacle.title}: {results[obstacle.name].found}")
    )


def _print(console: Console, line: Text) -> None:
    console.print(line, soft_wrap=True, highlight=False)
