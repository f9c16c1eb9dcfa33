"""`aerie compare`, on the virtual NPU in the place of a board; and a process per item: a hang, a
crash and a defect are outcomes, and after a lost device nothing is run."""

from __future__ import annotations

import functools
import json
import math
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from aerie.board.__main__ import main
from aerie.board.compare import command, processes, times
from aerie.board.compare.item_run import RUNNING, TIMED_RUNS
from aerie.board.compare.items import ComparisonItem, plan_item
from aerie.board.compare.processes import (
    LIMITS_S,
    STARTING,
    compare_all,
    compare_in_subprocess,
    compile_ahead,
    limits_s,
    subprocess_comparer,
)
from aerie.board.compare.records import (
    ItemOutcome,
    ItemStatus,
    ResultDistance,
    ResultFinding,
    ResultVerdict,
    Worst,
    details,
    print_outcomes,
    save,
    verdict_line,
)
from aerie.common.errors import UserError
from aerie.multi_launch_builder.builder import build_program
from aerie.multi_launch_builder.program import Program, ProgramPlan
from aerie.virtual_npu.timing import TimingError, predict
from aerie.virtual_npu.timing.calibration import RIGHT

ITEM = ComparisonItem("kernel", "narrow", 1)
"""3 x 48 numbers, one launch."""
OTHER = ComparisonItem("kernel", "eltwise_add", 3)


def _lines(path: Path) -> list[dict[str, Any]]:
    """The head of a file of times, then its entries."""
    return [json.loads(line) for line in path.read_text().splitlines()]


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
    written, timed = _lines(tmp_path / "times.jsonl")
    assert (written["backend"], timed["name"], timed["status"]) == ("virtual", "narrow[1]", "same")
    assert len(timed["measured_us"]) == TIMED_RUNS
    assert min(timed["measured_us"]) <= timed["median_us"] <= max(timed["measured_us"])
    assert timed["predicted_us"] == round(predict(timed["text"]).total_us, 1)
    assert timed["text"] == build_program(plan_item(ITEM)).text


def test_a_program_without_a_prediction_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str, filename: str) -> None:
        raise TimingError(f"{filename} has no air.launch")

    monkeypatch.setattr(times, "predict", refuse)
    times._prediction.cache_clear()
    outcome = ItemOutcome(ITEM, ItemStatus.SAME, times_us=(3.0, 1.0, 2.0))
    file = times.TimesFile("npu", tmp_path / "times.jsonl")
    file.add(outcome)
    file.add(ItemOutcome(OTHER, ItemStatus.FAILED))
    times._prediction.cache_clear()
    _, entry = _lines(tmp_path / "times.jsonl")
    assert (entry["median_us"], entry["predicted_us"]) == (2.0, None)
    assert entry["not_predicted"] == "narrow[1] has no air.launch"


def test_the_file_of_times_is_complete_after_each_item(tmp_path: Path) -> None:
    path, count = tmp_path / "times.jsonl", 3
    file = times.TimesFile("npu", path)
    file.add(ItemOutcome(OTHER, ItemStatus.FAILED))
    assert len(_lines(path)) == 1
    for i in range(1, count + 1):
        file.add(ItemOutcome(ITEM, ItemStatus.SAME, times_us=(float(i),)))
        assert [each["median_us"] for each in _lines(path)[1:]] == [*range(1, i + 1)]


def test_a_file_of_times_that_went_away(tmp_path: Path) -> None:
    file = times.TimesFile("npu", tmp_path / "times.jsonl")
    file.add(ItemOutcome(OTHER, ItemStatus.FAILED))
    (tmp_path / "times.jsonl").unlink()
    with pytest.raises(UserError, match=r"cannot write .*times.jsonl .*; name another folder with --out"):
        file.add(ItemOutcome(ITEM, ItemStatus.SAME, times_us=(1.0,)))


def test_a_calibration_knows_which_results_are_right() -> None:
    assert {status.value for status in ItemStatus if status.is_right} == set(RIGHT)


def test_without_a_board(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerie.runtime.backend.missing_device", lambda: ["pyxrt opens no device"])
    assert main(["compare"]) == 2
    refusal, missing, *_ = capsys.readouterr().err.splitlines()
    assert refusal.startswith("error: backend 'npu' cannot be used here; BACKEND=virtual runs the same")
    assert missing == "  - pyxrt opens no device"


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
    advice = "written with AERIE_CACHE=/path/to/folder, or for one command with --cache-dir"
    assert line.endswith(advice)
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

    monkeypatch.setattr("aerie.verify.report.store", SimpleNamespace(write_atomic=full))
    monkeypatch.setattr(
        command, "subprocess_comparer", lambda *_: lambda item, __: ItemOutcome(item, ItemStatus.SAME)
    )
    arguments = ["--backend", "virtual", "--cache-dir", str(programs), "--out", str(tmp_path)]
    assert main(["compare", "narrow[1]", *arguments]) == 2
    assert "compare.json (No space left on device); name another folder with --out" in capsys.readouterr().err


def test_compile_errors_come_before_any_run(
    faulty_npu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builders: set[threading.Thread] = set()

    def noting(plan: ProgramPlan) -> Program:
        builders.add(threading.current_thread())
        return build_program(plan)

    monkeypatch.setattr(processes, "build_program", noting)
    progress: list[tuple[ComparisonItem, int]] = []
    backend = faulty_npu.failing_backend()
    failed = compile_ahead([ITEM, OTHER], backend, tmp_path, lambda item, done: progress.append((item, done)))
    assert {item: outcome.status for item, outcome in failed.items()} == dict.fromkeys(
        (ITEM, OTHER), ItemStatus.NOT_COMPILED
    )
    assert sorted(done for _, done in progress) == [1, 2]
    assert builders == {threading.current_thread()}  # xDSL's builders disturb each other in threads
    known, other = compare_all(
        [ITEM, OTHER], lambda item, _: ItemOutcome(item, ItemStatus.SAME), print, {ITEM: failed[ITEM]}
    )
    assert known.message.startswith("program 'narrow' was not compiled: aircc: out of shim channels")
    assert other.status is ItemStatus.SAME


def test_an_interrupt_ends_the_compilers(
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


def test_every_outcome_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [
        ItemOutcome(ITEM, ItemStatus.HUNG, message="no end of running", lost=True),
        ItemOutcome(OTHER, ItemStatus.NOT_RUN, message="narrow[1] left a device that answers no more"),
    ]
    assert verdict_line(outcomes) == "[compare] FAIL: 1 hung, 1 not run"
    assert list(details(outcomes)) == ["narrow[1]: no end of running"]
    print_outcomes(outcomes, "npu")
    assert "\nnarrow[1]" in capsys.readouterr().out


def apart(make: Any, programs: Path, tmp_path: Path, **limits: float) -> tuple[ItemOutcome, list[str], str]:
    phases: list[str] = []
    log = tmp_path / "item.log"
    outcome = compare_in_subprocess(ITEM, make, programs, log, phases.append, {**LIMITS_S, **limits})
    return outcome, phases, log.read_text() if log.exists() else ""


def faulty(faulty_npu: ModuleType, fault: str) -> Any:
    table = plan_item(ITEM).arguments
    slot = table.slot("out")
    return functools.partial(
        faulty_npu.faulty_backend, "narrow", slot, table["out"], getattr(faulty_npu, fault)
    )


def test_one_that_is_right(faulty_npu: ModuleType, programs: Path, tmp_path: Path) -> None:
    outcome, phases, log = apart(faulty_npu.healthy_backend, programs, tmp_path)
    assert outcome.status is ItemStatus.SAME
    assert phases[0] == STARTING
    assert "] compiling" in log
    assert "] judging" in log


def test_a_hang_is_ended_and_loses_the_device(faulty_npu: ModuleType, programs: Path, tmp_path: Path) -> None:
    outcome, phases, _ = apart(faulty(faulty_npu, "hang"), programs, tmp_path, running=0.5)
    assert (outcome.status, outcome.lost, phases[-1]) == (ItemStatus.HUNG, True, RUNNING)
    assert outcome.message == (
        "no end of running within 0.5 s, so its process was killed; the device may answer no more until it "
        "is reset"
    )


def test_a_compiler_that_hangs_loses_no_device(
    faulty_npu: ModuleType, programs: Path, tmp_path: Path
) -> None:
    outcome, _, _ = apart(faulty_npu.healthy_backend, programs, tmp_path, starting=0.001)
    assert (outcome.status, outcome.lost) == (ItemStatus.HUNG, False)
    assert outcome.message == "no end of starting within 0.001 s, so its process was killed"


def test_a_crash_is_an_outcome(faulty_npu: ModuleType, programs: Path, tmp_path: Path) -> None:
    outcome, _, _ = apart(faulty(faulty_npu, "crash"), programs, tmp_path)
    assert (outcome.status, outcome.lost) == (ItemStatus.CRASHED, False)
    assert outcome.message == "its process ended by SIGSEGV while running"


def test_a_defect_of_ours_keeps_its_traceback_in_the_log(
    faulty_npu: ModuleType, programs: Path, tmp_path: Path
) -> None:
    outcome, _, log = apart(faulty_npu.broken_backend, programs, tmp_path)
    assert outcome.message == "its process ended with exit code 1 while starting; its log has the reason"
    assert "KeyError: 'a defect of ours'" in log


def test_a_run_may_take_what_the_runtime_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIE_NPU_TIMEOUT", "100")
    assert limits_s() == {**LIMITS_S, RUNNING: LIMITS_S[RUNNING] + 300}


def test_after_a_lost_device_nothing_is_run() -> None:
    items = [ComparisonItem("kernel", "gemm", case) for case in range(4)]
    asked: list[ComparisonItem] = []

    def compare_one(item: ComparisonItem, on_phase: Any) -> ItemOutcome:
        on_phase(RUNNING)
        asked.append(item)
        return ItemOutcome(item, ItemStatus.FAILED if item.case else ItemStatus.SAME, lost=item.case == 1)

    lines: list[str] = []
    outcomes = list(compare_all(items, compare_one, lambda item, phase: lines.append(f"{item} {phase}"), {}))
    assert asked == items[:2]
    assert lines == ["gemm[0] running", "gemm[1] running"]
    assert [outcome.status.value for outcome in outcomes] == ["same", "failed", "not run", "not run"]
    assert outcomes[3].message == "gemm[1] left a device that answers no more"


def test_a_crash_does_not_end_the_comparison() -> None:
    def compare_one(item: ComparisonItem, _: Any) -> ItemOutcome:
        return ItemOutcome(item, ItemStatus.SAME if item.case else ItemStatus.CRASHED)

    items = [ComparisonItem("kernel", "gemm", case) for case in range(2)]
    assert [o.status for o in compare_all(items, compare_one, print, {})] == [
        ItemStatus.CRASHED,
        ItemStatus.SAME,
    ]


def test_the_log_is_named_in_the_outcome(faulty_npu: ModuleType, programs: Path, tmp_path: Path) -> None:
    outcome = subprocess_comparer(faulty(faulty_npu, "wedge"), programs, tmp_path)(ITEM, print)
    assert (outcome.status, outcome.lost, outcome.log) == (ItemStatus.FAILED, True, "kernel-narrow-1.log")
    assert (tmp_path / outcome.log).is_file()


def test_the_record_is_json_whatever_was_found(tmp_path: Path) -> None:
    distances = {"exact": ResultDistance(math.inf, math.inf, 3), "bfp16": ResultDistance(math.nan, 2.0, 3)}
    worst = Worst((1, 2), math.nan, 1.0)
    finding = ResultFinding("q_gemm", 1, "gemm", "q", ResultVerdict.DIFFERS, "bfp16", distances, 8, 3, worst)
    save([ItemOutcome(ITEM, ItemStatus.DIFFERS, (finding,))], "npu", tmp_path / "compare.json")
    record = json.loads((tmp_path / "compare.json").read_text())
    assert record["right"] is False
    (entry,) = record["items"]
    assert entry["item"] == {"kind": "kernel", "name": "narrow[1]", "parameters": "rows=3 cols=48"}
    assert (entry["status"], entry["first_at_fault"]) == ("differs", "q_gemm")
    assert entry["findings"][0]["distances"]["exact"] == {"share": "inf", "excess": "inf", "differing": 3}
    assert entry["findings"][0]["worst"] == {"index": [1, 2], "got": "nan", "want": 1.0}
