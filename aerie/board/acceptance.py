"""`aerie test-npu`: everything that wants a board, and one report at the end.

First the comparison, which pinpoints; then the lit and pytest cases that need a board; then the report. Where
the comparison leaves a device that answers no more, the rest is not run.

Exit codes: 0 all is right, 1 something is not, 2 there is nothing to test on: one line says what is missing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.board.compare.command import board_folder, compare_and_print
from aerie.board.compare.items import choose
from aerie.board.compare.records import verdict_line
from aerie.board.report.command import default_path, write_report
from aerie.board.report.scrubbing import PROJECT
from aerie.common import folders
from aerie.common.errors import UserError
from aerie.runtime import BackendError, select_backend

RIGHT, WRONG = 0, 1
BOARD = "npu"


@dataclass(frozen=True)
class Result:
    """How a stage went, in one line. `lost`: the device answers no more."""

    right: bool
    said: str
    lost: bool = False


Stage = Callable[[], Result]


def add_acceptance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--first", action="store_true", help="of each kernel, compare its first case alone")


def acceptance(arguments: argparse.Namespace) -> int:
    """Run every test that wants an NPU, and write one report to send."""
    try:
        select_backend(BOARD)
    except BackendError as error:
        raise UserError(f"there is no board to test here (make doctor says more): {error}") from error
    stages = {
        "comparison": lambda: comparison(arguments.first),
        "lit": lit,
        "pytest": pytest_cases,
    }
    results = run_stages(stages)
    write_report(default_path())
    for name, result in results.items():
        print(f"{name}: {result.said}")
    right = all(result.right for result in results.values())
    print(f"[test-npu] {'PASS' if right else 'FAIL'}")
    return RIGHT if right else WRONG


def run_stages(stages: dict[str, Stage]) -> dict[str, Result]:
    """Every stage's result; after a lost device, that it was not run."""
    results: dict[str, Result] = {}
    for name, stage in stages.items():
        lost = any(result.lost for result in results.values())
        results[name] = Result(False, "not run: the device answers no more") if lost else stage()
    return results


def comparison(first: bool) -> Result:
    """Kernel by kernel and program by program."""
    outcomes = compare_and_print(choose([], first), BOARD, folders.programs_folder(), board_folder())
    right = all(outcome.status.is_right for outcome in outcomes)
    return Result(right, verdict_line(outcomes), lost=any(outcome.lost for outcome in outcomes))


def lit() -> Result:
    """The texts of tests/lit/board."""
    results = board_folder() / "lit.xml"
    lit_tool = str(Path(sys.executable).parent / "lit")
    return run_suite([lit_tool, "-v", f"--xunit-xml-output={results}", "tests/lit/board"], results)


def pytest_cases() -> Result:
    """What is marked `board`."""
    results = board_folder() / "pytest.xml"
    return run_suite(
        [sys.executable, "-m", "pytest", "-m", "board", f"--junitxml={results}", "tests/board"], results
    )


def run_suite(command: Sequence[str], results: Path) -> Result:
    """Run a suite that writes its results as JUnit's XML. One in which nothing passed is not right."""
    results.unlink(missing_ok=True)
    try:
        code = subprocess.run(command, cwd=PROJECT, check=False).returncode
    except OSError as error:
        return Result(False, f"could not be started ({error})")
    if not results.is_file():
        return Result(False, f"ended with exit code {code} and no results")
    try:
        counts = _counts(results)
    except ET.ParseError as error:
        return Result(False, f"ended with exit code {code} and results that cannot be read ({error})")
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "no tests"
    return Result(code == 0 and counts["passed"] > 0, said)


def _counts(results: Path) -> dict[str, int]:
    """Cases by how they ended."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ET.parse(results).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        else:
            counts["passed" if case.find("skipped") is None else "skipped"] += 1
    return counts
