"""`aerie vnpu time --calibrate`: a board whose parameters are known is found again; bad files are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerie.kernel_builder.kernels import all_kernels
from aerie.multi_launch_builder.builder import build_kernel
from aerie.multi_launch_builder.program import LaunchPlan
from aerie.virtual_npu.__main__ import main
from aerie.virtual_npu.errors import OptionError
from aerie.virtual_npu.timing import DEFAULT, calibration, predict
from aerie.virtual_npu.timing.calibration import (
    calibrate,
    parameters_to_json,
    read_measured,
    read_parameters,
)
from aerie.virtual_npu.timing.fit import ParameterRange, fit

BOARD = replace(DEFAULT, clock_ghz=1.2, dispatch_us=200.0)
"""A made-up board: slower than the table's, with a dearer dispatch."""


def _text(kernel: str, case: int) -> str:
    parameters = all_kernels()[kernel].cases[case]
    return build_kernel(LaunchPlan(kernel, kernel, parameters, {}), kernel).text


TEXTS = {f"{kernel}[{case}]": _text(kernel, case) for kernel, case in (("eltwise_add", 3), ("gemv", 0))}


def _record(backend: str = "npu", **changes: Any) -> dict[str, Any]:
    programs = [
        {"name": name, "text": text, "measured_us": 3 * [predict(text, BOARD).total_us]}
        for name, text in TEXTS.items()
    ]
    return {"format": 2, "backend": backend, "programs": programs, **changes}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(record: Any) -> Path:
        path = tmp_path / "times.jsonl"
        lines = [record]
        if isinstance(record, dict) and "programs" in record:
            lines = [{key: value for key, value in record.items() if key != "programs"}, *record["programs"]]
        written = "".join(f"{json.dumps(line)}\n" for line in lines)
        path.write_text(record if isinstance(record, str) else written)
        return path

    return write


def test_a_boards_times_are_met(write: Any) -> None:
    lines: list[str] = []
    found = calibrate(read_measured(write(_record())), lines.append)
    for row in found.rows:
        assert row.before_us < 0.6 * row.measured_us
        assert row.after_us == pytest.approx(row.measured_us, rel=0.03)
    assert found.changed["dispatch_us"][1] == pytest.approx(200, rel=0.1)
    assert lines[0].startswith("start: mean error ")


def test_the_command_writes_parameters_that_predict(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, program = tmp_path / "board.json", tmp_path / "program.mlir"
    program.write_text(TEXTS["gemv[0]"])
    assert main(["time", "--calibrate", str(write(_record())), "--out", str(out), "--json"]) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert main(["time", str(program), "--parameters-from", str(out), "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert predicted["total_us"] == pytest.approx(predict(TEXTS["gemv[0]"], BOARD).total_us, rel=0.03)
    assert predicted["clock_ghz"] == fitted["parameters"]["clock_ghz"]
    assert main(["time", "--calibrate", str(write(_record()))]) == 0
    printed = capsys.readouterr().out
    assert "measured on the board, and predicted" in printed
    assert "2 programs for 24 parameters" in printed


def test_a_program_that_cannot_be_followed_is_left_out(write: Any) -> None:
    record = _record()
    record["programs"].append({"name": "empty", "text": "module {}", "measured_us": [1.0]})
    found = calibrate(read_measured(write(record)), lambda _: None)
    assert set(found.left_out) == {"empty"}
    assert "has no air.launch" in found.left_out["empty"]


def test_a_line_that_a_crash_cut_short_loses_no_other(write: Any) -> None:
    path = write(_record())
    whole = path.read_text()
    path.write_text(whole + whole.splitlines()[-1][:100])
    assert [one.name for one in read_measured(path)] == list(TEXTS)
    path.write_text(whole + "{\n")
    with pytest.raises(OptionError, match="is no JSON: give a file that Aerie wrote"):
        read_measured(path)


def test_a_program_with_wrong_results_is_left_out(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "fit", lambda _rows, _predict, start, *_: (dict(start), 0.0))
    record = _record()
    record["programs"][0]["status"] = "near"
    record["programs"].append({**record["programs"][0], "name": "wrong", "status": "differs"})
    found = calibrate(read_measured(write(record)), lambda _: None)
    assert [row.name for row in found.rows] == list(TEXTS)
    assert found.left_out == {
        "wrong": "its results were wrong (differs), so its time is that of a mistake",
    }


EMPTY = {"format": 2, "backend": "npu", "programs": [{"name": "a", "text": "module {}", "measured_us": [1]}]}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "is no JSON: give a file that Aerie wrote"),
        ([], "has format 'None', and 2 is what is read here"),
        ({"format": 1}, "has format '1', and 2 is what is read here"),
        ({"format": 2, "backend": "virtual"}, "has times of the backend 'virtual', not of 'npu'"),
        ({"format": 2, "backend": "npu", "programs": []}, "has no programs"),
        ({"format": 2, "backend": "npu", "programs": [{"name": "a"}]}, "program 0 is no name, text and"),
        (
            {"format": 2, "backend": "npu", "programs": [{"name": "a", "text": "", "measured_us": [0]}]},
            "a list of positive numbers",
        ),
        (EMPTY, "none of these programs can be fitted to; the first: "),
    ],
)
def test_bad_files_of_times(
    record: Any, message: str, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["time", "--calibrate", str(write(record))]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "has no parameters"),
        ({"speed": 1}, "'speed' is no parameter"),
        ({"clock_ghz": "fast"}, "clock_ghz is 'fast': give a number"),
        ({"clock_ghz": 9}, "clock_ghz = 9 GHz is outside 0.4 to 2"),
    ],
)
def test_bad_files_of_parameters(
    values: Any, message: str, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write({"format": 1, "parameters": values})
    assert main(["time", "--parameters", "--parameters-from", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_what_cannot_be_written_is_said_first(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none" / "board.json"
    assert main(["time", "--calibrate", str(write(_record())), "--out", str(missing)]) == 2
    captured = capsys.readouterr()
    assert "name another --out" in captured.err
    assert "mean error" not in captured.err
    assert main(["time", "--out", str(missing)]) == 2
    assert "add --calibrate FILE" in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["time", "--calibrate", str(tmp_path / "none.json")]) == 2
    assert "cannot be read (No such file or directory)" in capsys.readouterr().err


def test_parameters_are_read_as_they_were_written(write: Any) -> None:
    assert read_parameters(write(parameters_to_json(BOARD))) == BOARD


def test_rows_that_a_parameter_does_not_change_are_predicted_once_a_step() -> None:
    asked: list[tuple[str, float, float]] = []

    class Row:
        def __init__(self, series: str) -> None:
            self.series, self.value = series, 100.0

    def predictor(row: Row, values: Any) -> float:
        asked.append((row.series, values["a"], values["b"]))
        return 50.0 * (values["a"] if row.series == "a" else values["b"])

    ranges = [ParameterRange("a", 0.1, 10), ParameterRange("b", 0.1, 10)]
    values, least = fit([Row("a"), Row("b")], predictor, {"a": 1.0, "b": 1.0}, ranges, lambda _: None)
    assert values == {"a": pytest.approx(2, rel=0.03), "b": pytest.approx(2, rel=0.03)}
    assert least < 0.03
    assert len(asked) < 60
