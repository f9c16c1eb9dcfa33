"""`python -m board compare`, on the virtual NPU in the place of a board."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from board.__main__ import main
from board.compare import command, processes
from board.compare.items import Item
from board.compare.processes import compare_all, compile_ahead
from board.compare.records import Outcome, Status, details, print_outcomes, verdict_line
from multi_launch_builder.building import build_program
from multi_launch_builder.program import Program, ProgramPlan

ITEM = Item("kernel", "narrow", 1)
OTHER = Item("kernel", "eltwise_add", 3)


def test_a_comparison(programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--backend", "virtual", "--cache-dir", str(programs), "--out", str(tmp_path)]
    assert main(["compare", "narrow[1]", *arguments]) == 0
    printed = capsys.readouterr()
    assert "virtual against the virtual NPU, on the same numbers" in printed.out
    assert printed.out.endswith("[compare] PASS: 1 same\n")
    assert "compiled: 1 of 1" in printed.err
    assert "narrow[1]: same (share 0.0e+00 from exact, 0.0e+00 from bfp16)" in printed.err
    record = json.loads((tmp_path / "compare.json").read_text())
    assert (record["backend"], record["right"], len(record["items"])) == ("virtual", True, 1)
    assert (tmp_path / "logs" / "kernel-narrow-1.log").is_file()


def test_without_a_board(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.backend.missing_device", lambda: ["pyxrt opens no device"])
    assert main(["compare"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: backend 'npu' cannot be used here: pyxrt opens no device")


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["compare", "narrow[1]", "--backend", "virtual", "--out", str(tmp_path / "file")]) == 2
    assert "name another folder with --out" in capsys.readouterr().err


def test_a_cache_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No item is to blame for it, and none is run."""
    (tmp_path / "file").touch()
    arguments = ["--cache-dir", str(tmp_path / "file"), "--out", str(tmp_path / "out")]
    assert main(["compare", "narrow", "--backend", "virtual", *arguments]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line.endswith("choose a writable one")
    assert not (tmp_path / "out" / "compare.json").exists()


def test_a_knob_that_makes_no_sense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIE_NPU_TIMEOUT", "x")
    assert main(["compare", "narrow", "--backend", "virtual", "--out", str(tmp_path / "out")]) == 2
    assert "error: AERIE_NPU_TIMEOUT='x' cannot be used: give a whole number" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_record_that_cannot_be_written(
    tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("verify.report.store", SimpleNamespace(write_whole=full))
    monkeypatch.setattr(command, "in_processes", lambda *_: lambda item, __: Outcome(item, Status.SAME))
    arguments = ["--backend", "virtual", "--cache-dir", str(programs), "--out", str(tmp_path)]
    assert main(["compare", "narrow[1]", *arguments]) == 2
    assert "compare.json (No space left on device); name another folder with --out" in capsys.readouterr().err


def test_what_cannot_be_compiled_is_known_before_anything_runs(
    faulty_npu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders: set[threading.Thread] = set()

    def noting(plan: ProgramPlan) -> Program:
        builders.add(threading.current_thread())
        return build_program(plan)

    monkeypatch.setattr(processes, "build_program", noting)
    told: list[tuple[Item, int]] = []
    backend = faulty_npu.failing_backend()
    failed = compile_ahead([ITEM, OTHER], backend, tmp_path, lambda item, done: told.append((item, done)))
    assert {item: outcome.status for item, outcome in failed.items()} == dict.fromkeys(
        (ITEM, OTHER), Status.NOT_COMPILED
    )
    assert sorted(done for _, done in told) == [1, 2]
    assert builders == {threading.current_thread()}  # xDSL's builders disturb each other in threads
    known, other = compare_all(
        [ITEM, OTHER], lambda item, _: Outcome(item, Status.SAME), print, {ITEM: failed[ITEM]}
    )
    assert known.message.startswith("program 'narrow' was not compiled: aircc: out of shim channels")
    assert other.status is Status.SAME


def test_who_is_interrupted_ends_the_compilers(
    faulty_npu: ModuleType, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = faulty_npu.healthy_backend()
    stopped: list[bool] = []
    monkeypatch.setattr(type(backend.toolchain), "stop", lambda _: stopped.append(True))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_ahead([ITEM], backend, programs, interrupt)
    assert stopped == [True]


def test_every_outcome_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [
        Outcome(ITEM, Status.HUNG, message="no end of running", lost=True),
        Outcome(OTHER, Status.NOT_RUN, message="narrow[1] left a device that answers no more"),
    ]
    assert verdict_line(outcomes) == "[compare] FAIL: 1 hung, 1 not run"
    assert list(details(outcomes)) == ["narrow[1]: no end of running"]
    print_outcomes(outcomes, "npu")
    assert "| narrow[1]" in capsys.readouterr().out
