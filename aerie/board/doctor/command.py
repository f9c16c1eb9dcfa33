"""`aerie doctor`: what was found, as a page for people or as one record of JSON.

The page begins with what works, and says of what only a board needs and nobody set up that it is not set up.
SCHEMA of the record changes whenever an entry is renamed, dropped or given another meaning; new entries may
join without. docs/how-to/install.md describes them. No text in it names the user, the machine or the
home folder.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from aerie.board.doctor.checks import CHECKS, GOALS, Check, Goal, Results, examine_all, not_set_up, works
from aerie.board.doctor.machine import Finding, Machine, Status
from aerie.board.report.scrubbing import Scrubber
from aerie.cli.checkpoints import DEMO
from aerie.common import folders
from aerie.common.errors import own_command

STYLES = {
    Status.OK: "green",
    Status.WARNING: "yellow",
    Status.FAILED: "red",
    Status.UNKNOWN: "magenta",
    Status.SKIPPED: "dim",
}
NOT_SET_UP = "not set up"
STATUS_WIDTH = max(len(NOT_SET_UP), *(len(status.value) for status in Status))
TITLE_WIDTH = max(len(check.title) for check in CHECKS)
GOAL_WIDTH = max(len(goal.title) for goal in GOALS)
LAYER_WIDTH = max(len(check.layer) for check in CHECKS)
SHORTEST = 20
"""Columns that a text has at least, however narrow the console is."""
BEFORE_ADVICE = " " * (2 + STATUS_WIDTH + 2)
BEGIN = "docs/how-to/install.md, Ryzen AI on Linux; for the compilers alone, make setup-npu"
"""How to begin where nothing of a board is set up."""


def print_page(results: Results, console: Console, whole: bool = False) -> None:
    """What works now, what to do next, every check by layer. No line is longer than the console is wide.

    whole: with what was found of each check, and how to mend it, where a layer is not set up too.
    """
    unset = not_set_up(results)
    _print(console, Text("what works now", style="bold"))
    for goal in GOALS:
        _print_cells(console, *_verdict(goal, results, unset))
    _print(console, Text("\nnext", style="bold"))
    for step in next_steps(results):
        _print_cells(console, Text("  "), step)
    _print(console, Text())
    shown = [check for check in CHECKS if whole or check.name not in unset]
    for layer, checks in groupby(shown, key=lambda check: check.layer):
        _print(console, Text(layer, style="bold"))
        for check in checks:
            _print_check(console, check, results[check.name], check.name in unset)
    if unset and not whole:
        _print_not_set_up(console, [check for check in CHECKS if check.name in unset])


def next_steps(results: Results) -> Iterator[str]:
    """The command of the farthest goal that works, then what stands in the way of each other one."""
    unset = not_set_up(results)
    broken = [(goal, obstacle) for goal in GOALS if (obstacle := goal.obstacle(results))]
    working = [goal for goal in GOALS if goal.obstacle(results) is None]
    farthest = [goal for goal in working if goal.runs] or working
    if farthest:
        yield farthest[-1].command
    fixes: dict[str, list[str]] = {}
    for goal, obstacle in broken:
        begins = obstacle.name in unset and not works(results["node"])
        fix = BEGIN if begins else results[obstacle.name].fix or f"mend: {obstacle.title}"
        fixes.setdefault(fix, []).append(goal.title)
    for fix, titles in fixes.items():
        yield f"to {' and to '.join(titles)}: {fix}"


def _print_check(console: Console, check: Check, finding: Finding, is_unset: bool) -> None:
    said = NOT_SET_UP if is_unset else finding.status.value
    mark = Text(f"  {said.ljust(STATUS_WIDTH)}  ", style="dim" if is_unset else STYLES[finding.status])
    _print_cells(console, mark + Text(f"{check.title.ljust(TITLE_WIDTH)}  ", style="default"), finding.found)
    if finding.status is not Status.OK and finding.wanted:
        _print_cells(console, Text(f"{BEFORE_ADVICE}wanted: ", style="dim"), finding.wanted, "dim")
    if finding.fix:
        _print_cells(console, Text(f"{BEFORE_ADVICE}fix: "), finding.fix)


def _print_not_set_up(console: Console, checks: Sequence[Check]) -> None:
    """One line for each layer, and how to begin."""
    _print(console, Text(f"{NOT_SET_UP}, and needed for a board only", style="bold"))
    for layer, of_layer in groupby(checks, key=lambda check: check.layer):
        titles = ", ".join(check.title for check in of_layer)
        _print_cells(console, Text(f"  {layer.ljust(LAYER_WIDTH)}  ", style="dim"), titles)
    _print_cells(
        console,
        Text("  to begin: "),
        f"{BEGIN}. {own_command('aerie', 'aerie')} doctor --all shows each part",
    )


def _verdict(goal: Goal, results: Results, unset: Collection[str]) -> tuple[Text, str]:
    obstacle = goal.obstacle(results)
    title = Text(f"  {goal.title.ljust(GOAL_WIDTH)}  ")
    if obstacle is None:
        return title + Text("yes", style="green"), ""
    if obstacle.name in unset:
        return title + Text(NOT_SET_UP, style="dim"), ""
    return title + Text("no   ", style="red"), f"{obstacle.title}: {results[obstacle.name].found}"


def _print_cells(console: Console, before: Text, text: str, style: str = "default") -> None:
    """`text` after what comes before it, in as many lines as it takes, all below its beginning."""
    room = max(SHORTEST, console.width - len(before))
    lines = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    _print(console, before + Text(lines[0].rstrip(), style=style))
    for line in lines[1:]:
        _print(console, Text(f"{' ' * len(before)}{line}", style=style))


def _print(console: Console, line: Text) -> None:
    line.rstrip()
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
    parser.add_argument(
        "--all", action="store_true", help="show each part of what is not set up too, and how to set it up"
    )


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
        print_page(results, Console(), arguments.all)
    return exit_code(results)


def exit_code(results: Results) -> int:
    """Whether a model can be run at all."""
    runs = [goal for goal in GOALS if goal.runs and goal.obstacle(results) is None]
    return WORKS if runs else NOTHING_RUNS
