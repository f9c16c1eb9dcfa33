"""`aerie doctor`: what was found, as a page for people or as one record of JSON.

Lines of the page are not wrapped: a command in them can be copied, from a terminal and out of a pipe. SCHEMA
of the record changes whenever an entry is renamed, dropped or given another meaning; new entries may join
without. docs/install.md describes them. No text in it names the user, the machine or the home folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from aerie.board.doctor.checks import CHECKS, GOALS, Check, Goal, Results, examine_all
from aerie.board.doctor.machine import Finding, Machine, Status
from aerie.board.report.scrubbing import Scrubber
from aerie.llama32_1b.checkpoint import DEMO
from aerie.virtual_npu import folders

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


SCHEMA = 1


def record(results: Results) -> dict[str, Any]:
    """{"schema", "checks": [...], "goals": [...]}; every check and goal of the tables, in their order."""
    checks = [
        {
            "name": check.name,
            "layer": check.layer,
            "status": results[check.name].status.value,
            "found": results[check.name].found,
            "wanted": results[check.name].wanted,
            "fix": results[check.name].fix,
        }
        for check in CHECKS
    ]
    goals = [_goal(goal, results) for goal in GOALS]
    whole = {"schema": SCHEMA, "checks": checks, "goals": goals}
    scrubbed: dict[str, Any] = Scrubber.of_this_machine().record(whole)
    return scrubbed


def _goal(goal: Goal, results: Results) -> dict[str, Any]:
    obstacle = goal.obstacle(results)
    return {"name": goal.name, "works": obstacle is None, "obstacle": obstacle.name if obstacle else None}


WORKS, NOTHING_RUNS = 0, 1


def add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        default=DEMO,
        help="the checkpoint to look at: a folder, a Hugging Face id, or 'demo' (default: %(default)s); "
        "nothing is fetched",
    )
    parser.add_argument("--json", action="store_true", help="one record of JSON instead of the page")


def doctor(arguments: argparse.Namespace) -> int:
    """Check every layer between Python and the NPU, and say what will work now.

    The exit code is 0 where a model can be run, on the NPU or on the virtual one, and 1 where it cannot: a
    script asks for more by name, in the record.
    """
    machine = Machine(model=arguments.model, cache_dir=folders.home())
    with Console(stderr=True).status("looking at every layer ..."):
        results = examine_all(CHECKS, machine)
    if arguments.json:
        print(json.dumps(record(results), indent=2))
    else:
        print_page(results, Console())
    return exit_code(results)


def exit_code(results: Results) -> int:
    """Whether a model can be run at all."""
    runs = [goal for goal in GOALS if goal.runs and goal.obstacle(results) is None]
    return WORKS if runs else NOTHING_RUNS
