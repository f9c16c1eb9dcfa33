"""`aerie test-npu`: every test that needs an NPU, and one report at the end.

First the comparison, which finds the faulty part; then the lit and pytest cases that need an NPU; then the
report. If the comparison leaves a device that no longer answers, the rest is not run.

Exit codes: 0 everything passed, 1 something failed, 2 there is nothing to test on: one line says what is
missing.
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
from aerie.board.report.redaction import PROJECT
from aerie.common import folders
from aerie.common.errors import UserError
from aerie.runtime import BackendError, select_backend

RIGHT, WRONG = 0, 1
BOARD = "npu"


@dataclass(frozen=True)
class StageResult:
    """The result of one stage, in one line. lost: the device no longer answers."""

    passed: bool
    summary: str
    lost: bool = False


Stage = Callable[[], StageResult]


def add_acceptance(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--first", action="store_true", help="of each kernel, compare its first case alone")


def run_acceptance(arguments: argparse.Namespace) -> int:
    """Run every test that needs an NPU, and write one report to send."""
    try:
        select_backend(BOARD)
    except BackendError as error:
        raise UserError(f"there is no NPU to test here (make doctor has the details): {error}") from error
    stages = {
        "comparison": lambda: comparison(arguments.first),
        "lit": lit,
        "pytest": pytest_cases,
    }
    results = run_stages(stages)
    write_report(default_path())
    for name, result in results.items():
        print(f"{name}: {result.summary}")
    right = all(result.passed for result in results.values())
    print(f"[test-npu] {'PASS' if right else 'FAIL'}")
    return RIGHT if right else WRONG


def run_stages(stages: dict[str, Stage]) -> dict[str, StageResult]:
    """Run all stages. After a lost device, the remaining results say that the stage was not run."""
    results: dict[str, StageResult] = {}
    for name, stage in stages.items():
        lost = any(result.lost for result in results.values())
        results[name] = StageResult(False, "not run: the device answers no more") if lost else stage()
    return results


def comparison(first: bool) -> StageResult:
    """Compare kernel by kernel and program by program with the virtual NPU."""
    outcomes = compare_and_print(choose([], first), BOARD, folders.programs_folder(), board_folder())
    right = all(outcome.status.is_right for outcome in outcomes)
    return StageResult(right, verdict_line(outcomes), lost=any(outcome.lost for outcome in outcomes))


def lit() -> StageResult:
    """Run the texts of tests/lit/board."""
    results = board_folder() / "lit.xml"
    lit_tool = str(Path(sys.executable).parent / "lit")
    return run_suite([lit_tool, "-v", f"--xunit-xml-output={results}", "tests/lit/board"], results)


def pytest_cases() -> StageResult:
    """Run the pytest cases that are marked `board`."""
    results = board_folder() / "pytest.xml"
    return run_suite(
        [sys.executable, "-m", "pytest", "-m", "board", f"--junitxml={results}", "tests/board"], results
    )


def run_suite(command: Sequence[str], results: Path) -> StageResult:
    """Run a suite that writes its results as JUnit XML. A suite in which no test passed fails."""
    results.unlink(missing_ok=True)
    try:
        code = subprocess.run(command, cwd=PROJECT, check=False).returncode
    except OSError as error:
        return StageResult(False, f"could not be started ({error})")
    if not results.is_file():
        return StageResult(False, f"ended with exit code {code} and no results")
    try:
        counts = _counts(results)
    except ET.ParseError as error:
        return StageResult(False, f"ended with exit code {code} and results that cannot be read ({error})")
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "no tests"
    return StageResult(code == 0 and counts["passed"] > 0, summary)


def _counts(results: Path) -> dict[str, int]:
    """The number of cases per outcome."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ET.parse(results).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        else:
            counts["passed" if case.find("skipped") is None else "skipped"] += 1
    return counts
