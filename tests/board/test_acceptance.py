"""`make test-npu`: one message without a board; with one, every stage, and one report whatever they find."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from aerie.board import acceptance
from aerie.board.__main__ import main
from aerie.board.acceptance import StageResult, run_stages, run_suite
from aerie.runtime import BackendError

JUNIT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b">{}</testcase><testcase name="c"><skipped message="x"/></testcase>
</testsuite></testsuites>"""


def test_without_a_board(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none(choice: str) -> Any:
        raise BackendError(f"backend '{choice}' cannot be used here: pyxrt is missing")

    monkeypatch.setattr(acceptance, "select_backend", none)
    assert main(["test-npu"]) == 2
    assert capsys.readouterr().err == (
        "error: there is no NPU to test here (make doctor has the details): backend 'npu' cannot be used "
        "here: "
        "pyxrt is missing\n"
    )


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine on which every stage passes; what was called."""
    called: list[str] = []

    def stage(name: str) -> Any:
        def run(*_: Any) -> StageResult:
            called.append(name)
            return StageResult(True, "3 passed")

        return run

    monkeypatch.setattr(acceptance, "select_backend", lambda choice: called.append(choice))
    for name in ("comparison", "lit", "pytest_cases"):
        monkeypatch.setattr(acceptance, name, stage(name))
    monkeypatch.setattr(acceptance, "write_report", lambda path: called.append(path.suffix))
    return called


def test_all_stages_and_one_report(board: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["test-npu"]) == 0
    assert board == ["npu", "comparison", "lit", "pytest_cases", ".zip"]
    assert (
        capsys.readouterr().out == "comparison: 3 passed\nlit: 3 passed\npytest: 3 passed\n[test-npu] PASS\n"
    )


def test_a_failure_is_printed_and_the_report_written(
    board: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(acceptance, "comparison", lambda first: StageResult(False, "1 differs"))
    assert main(["test-npu"]) == 1
    assert board == ["npu", "lit", "pytest_cases", ".zip"]
    assert capsys.readouterr().out.endswith("[test-npu] FAIL\n")


def test_after_a_lost_device_no_stage_is_run() -> None:
    results = run_stages(
        {"comparison": lambda: StageResult(False, "hung", lost=True), "lit": lambda: StageResult(True, "")}
    )
    assert results["lit"] == StageResult(False, "not run: the device answers no more")


@pytest.mark.parametrize(
    ("inside", "code", "result"),
    [
        ("", 0, StageResult(True, "2 passed, 1 skipped")),
        ("<failure/>", 1, StageResult(False, "1 passed, 1 failed, 1 skipped")),
        ("<error/>", 1, StageResult(False, "1 passed, 1 failed, 1 skipped")),
        ("", 3, StageResult(False, "2 passed, 1 skipped")),
    ],
)
def test_a_suite_is_counted(tmp_path: Path, inside: str, code: int, result: StageResult) -> None:
    results = tmp_path / "results.xml"
    program = f"import sys; open({str(results)!r}, 'w').write({JUNIT.format(inside)!r}); sys.exit({code})"
    assert run_suite([sys.executable, "-c", program], results) == result


def test_a_suite_in_which_all_is_skipped_is_not_right(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    text = '<testsuite><testcase name="a"><skipped/></testcase></testsuite>'
    program = f"open({str(results)!r}, 'w').write({text!r})"
    assert run_suite([sys.executable, "-c", program], results) == StageResult(False, "1 skipped")


def test_a_suite_that_is_killed_while_it_writes(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    program = f"open({str(results)!r}, 'w').write('<testsuite><testcase'); raise SystemExit(1)"
    result = run_suite([sys.executable, "-c", program], results)
    assert not result.passed
    assert result.summary.startswith("ended with exit code 1 and results that cannot be read (")


def test_a_suite_that_leaves_no_results(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    results.write_text("of an earlier run")
    assert run_suite([sys.executable, "-c", "raise SystemExit(4)"], results) == StageResult(
        False, "ended with exit code 4 and no results"
    )
    started = run_suite(["/no/such/tool"], results)
    assert not started.passed
    assert started.summary.startswith("could not be started (")
