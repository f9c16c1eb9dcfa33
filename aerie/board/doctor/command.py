"""`aerie doctor`: the results as a page for people or as one JSON record.

The page begins with what works. Layers that only an NPU needs, and that were never set up, are shown as not
set up. SCHEMA of the record changes whenever an entry is renamed, dropped or changes its meaning; new entries
may be added without. docs/how-to/install.md describes them. No text in it names the user, the machine or the
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

from aerie.board.doctor.checks import (
    CHECKS,
    GOALS,
    DoctorCheck,
    Goal,
    Results,
    is_usable,
    not_set_up,
    run_checks,
)
from aerie.board.doctor.machine import CheckResult, CheckStatus, ExaminedMachine
from aerie.board.report.redaction import Redactor
from aerie.cli.checkpoints import DEMO
from aerie.common import folders
from aerie.common.errors import own_command

STYLES = {
    CheckStatus.OK: "green",
    CheckStatus.WARNING: "yellow",
    CheckStatus.FAILED: "red",
    CheckStatus.UNKNOWN: "magenta",
    CheckStatus.SKIPPED: "dim",
}
NOT_SET_UP = "not set up"
STATUS_WIDTH = max(len(NOT_SET_UP), *(len(status.value) for status in CheckStatus))
TITLE_WIDTH = max(len(check.title) for check in CHECKS)
GOAL_WIDTH = max(len(goal.title) for goal in GOALS)
LAYER_WIDTH = max(len(check.layer) for check in CHECKS)
MIN_COLUMNS = 20
"""Minimum columns of a text, however narrow the console is."""
BEFORE_ADVICE = " " * (2 + STATUS_WIDTH + 2)
HOW_TO_START = "docs/how-to/install.md, Ryzen AI on Linux; for the compilers alone, make setup-npu"
"""Where to start if no layer of the NPU is set up."""


def print_page(results: Results, console: Console, verbose: bool = False) -> None:
    """Print what works now, what to do next, and every check by layer. No line is wider than the console.

    verbose: print every check and its fix, also of layers that are not set up.
    """
    unset = not_set_up(results)
    _print(console, Text("what works now", style="bold"))
    for goal in GOALS:
        _print_cells(console, *_verdict(goal, results, unset))
    _print(console, Text("\nnext", style="bold"))
    for step in next_steps(results):
        _print_cells(console, Text("  "), step)
    _print(console, Text())
    shown = [check for check in CHECKS if verbose or check.name not in unset]
    for layer, checks in groupby(shown, key=lambda check: check.layer):
        _print(console, Text(layer, style="bold"))
        for check in checks:
            _print_check(console, check, results[check.name], check.name in unset)
    if unset and not verbose:
        _print_not_set_up(console, [check for check in CHECKS if check.name in unset])


def next_steps(results: Results) -> Iterator[str]:
    """The command of the farthest goal that works, then what prevents each of the others."""
    unset = not_set_up(results)
    broken = [(goal, obstacle) for goal in GOALS if (obstacle := goal.first_blocker(results))]
    working = [goal for goal in GOALS if goal.first_blocker(results) is None]
    farthest = [goal for goal in working if goal.runs] or working
    if farthest:
        yield farthest[-1].command
    fixes: dict[str, list[str]] = {}
    for goal, obstacle in broken:
        begins = obstacle.name in unset and not is_usable(results["node"])
        fix = HOW_TO_START if begins else results[obstacle.name].fix or f"mend: {obstacle.title}"
        fixes.setdefault(fix, []).append(goal.title)
    for fix, titles in fixes.items():
        yield f"to {' and to '.join(titles)}: {fix}"


def _print_check(console: Console, check: DoctorCheck, finding: CheckResult, is_unset: bool) -> None:
    state = NOT_SET_UP if is_unset else finding.status.value
    mark = Text(f"  {state.ljust(STATUS_WIDTH)}  ", style="dim" if is_unset else STYLES[finding.status])
    _print_cells(console, mark + Text(f"{check.title.ljust(TITLE_WIDTH)}  ", style="default"), finding.actual)
    if finding.status is not CheckStatus.OK and finding.required:
        _print_cells(console, Text(f"{BEFORE_ADVICE}wanted: ", style="dim"), finding.required, "dim")
    if finding.fix:
        _print_cells(console, Text(f"{BEFORE_ADVICE}fix: "), finding.fix)


def _print_not_set_up(console: Console, checks: Sequence[DoctorCheck]) -> None:
    """One line per layer, and how to start."""
    _print(console, Text(f"{NOT_SET_UP}, and needed for a board only", style="bold"))
    for layer, of_layer in groupby(checks, key=lambda check: check.layer):
        titles = ", ".join(check.title for check in of_layer)
        _print_cells(console, Text(f"  {layer.ljust(LAYER_WIDTH)}  ", style="dim"), titles)
    _print_cells(
        console,
        Text("  to begin: "),
        f"{HOW_TO_START}. {own_command('aerie', 'aerie')} doctor --all shows each part",
    )


def _verdict(goal: Goal, results: Results, unset: Collection[str]) -> tuple[Text, str]:
    obstacle = goal.first_blocker(results)
    title = Text(f"  {goal.title.ljust(GOAL_WIDTH)}  ")
    if obstacle is None:
        return title + Text("yes", style="green"), ""
    if obstacle.name in unset:
        return title + Text(NOT_SET_UP, style="dim"), ""
    return title + Text("no   ", style="red"), f"{obstacle.title}: {results[obstacle.name].actual}"


def _print_cells(console: Console, before: Text, text: str, style: str = "default") -> None:
    """Print `text` after a prefix, wrapped and indented to the prefix's width."""
    width = max(MIN_COLUMNS, console.width - len(before))
    lines = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    _print(console, before + Text(lines[0].rstrip(), style=style))
    for line in lines[1:]:
        _print(console, Text(f"{' ' * len(before)}{line}", style=style))


def _print(console: Console, line: Text) -> None:
    line.rstrip()
    console.print(line, soft_wrap=True, highlight=False)


SCHEMA = 1


def record(results: Results) -> dict[str, Any]:
    """The record {"schema", "checks": [...], "goals": [...]}: all checks and goals of the tables,
    in order.
    """
    checks = [
        {
            "name": check.name,
            "layer": check.layer,
            "status": results[check.name].status.value,
            "found": results[check.name].actual,
            "wanted": results[check.name].required,
            "fix": results[check.name].fix,
        }
        for check in CHECKS
    ]
    goals = [_goal(goal, results) for goal in GOALS]
    document = {"schema": SCHEMA, "checks": checks, "goals": goals}
    scrubbed: dict[str, Any] = Redactor.for_this_machine().redact_record(document)
    return scrubbed


def _goal(goal: Goal, results: Results) -> dict[str, Any]:
    obstacle = goal.first_blocker(results)
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
        "--all", action="store_true", help="also show the parts that are not set up, and how to set them up"
    )


def doctor(arguments: argparse.Namespace) -> int:
    """Check every layer between Python and the NPU, and print what works now.

    The exit code is 0 if a model can run, on the NPU or on the virtual one, and 1 if not. A script reads
    details by name from the record.
    """
    machine = ExaminedMachine(model=arguments.model, cache_dir=folders.cache_folder())
    with Console(stderr=True).status("looking at every layer ..."):
        results = run_checks(CHECKS, machine)
    if arguments.json:
        print(json.dumps(record(results), indent=2))
    else:
        print_page(results, Console(), arguments.all)
    return exit_code(results)


def exit_code(results: Results) -> int:
    """0 if a model can run, else 1."""
    runs = [goal for goal in GOALS if goal.runs and goal.first_blocker(results) is None]
    return WORKS if runs else NOTHING_RUNS
