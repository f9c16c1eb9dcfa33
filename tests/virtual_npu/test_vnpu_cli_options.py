"""aerie vnpu: arguments made up, JSON, what goes together, and how fast it starts."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie.virtual_npu import arrays, console
from aerie.virtual_npu.__main__ import main
from aerie.virtual_npu.element_types import NUMPY_NAMES
from aerie.virtual_npu.library import ArgumentType, EntryPoint
from tests.virtual_npu.air_texts import with_constants

PROGRAM = with_constants("""
func.func @double(%x: memref<2x4xbf16>, %y: memref<2x4xbf16>, %n: memref<3xi32>) {
  %a = vector.load %x[%c0, %c0] : memref<2x4xbf16>, vector<4xbf16>
  %b = arith.addf %a, %a : vector<4xbf16>
  vector.store %b, %y[%c0, %c0] : memref<2x4xbf16>, vector<4xbf16>
  return
}
""")
STUCK = with_constants("""
air.channel @c [1]
func.func @stuck(%x: memref<4xf32>) {
  air.launch () in () args(%a=%x) : memref<4xf32> {
    air.channel.get @c[%c0] (%a[] [] []) : (memref<4xf32>)
  }
  return
}
""")
NOTHING = "func.func @nothing() {\n  return\n}\n"
TALL = with_constants("""
func.func @tall() {
  air.launch () in () {
    air.segment @s {
      %one = arith.constant 1 : index
      %nine = arith.constant 9 : index
      air.herd @h tile (%x, %y) in (%nx=%nine, %ny=%nine) {
        %l1 = memref.alloc() : memref<40000xf32, 2>
        memref.dealloc %l1 : memref<40000xf32, 2>
      }
    }
  }
  return
}
""")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("VNPU_OPT", "0")
    monkeypatch.chdir(tmp_path)
    for name, text in (("double", PROGRAM), ("stuck", STUCK), ("nothing", NOTHING), ("tall", TALL)):
        (tmp_path / f"{name}.mlir").write_text(text)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], words: str, status: int = 0) -> str:
    assert main(words.split()) == status
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], words: str, status: int = 0) -> Any:
    assert main([*words.split(), "--json"]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    (line,) = captured.out.splitlines()
    return json.loads(line)


# ---- arguments ----


def test_a_summary_if_no_file_is_requested(capsys):
    text = printed(capsys, "run double.mlir --zeros")
    assert re.sub(" +", " ", text).splitlines() == [
        "@double after the run",
        "argument shape dtype min mean max crc32",
        "arg0 2x4 bf16 0 0 0 ecbb4b55",
        "arg1 2x4 bf16 0 0 0 ecbb4b55",
        "arg2 3 i32 0 0 0 7bd5c66f",
    ]


def test_arguments_at_random(capsys, folder):
    first, again, other = (printed(capsys, f"run double.mlir --random {seed}") for seed in (1, 1, 2))
    assert first == again != other
    printed(capsys, "run double.mlir --random 1 --out out.npz")
    with np.load(folder / "out.npz") as out:
        x, y = (out[name].view(ml_dtypes.bfloat16).astype(np.float32) for name in ("arg0", "arg1"))
        assert out["arg2"].dtype == np.int32
    np.testing.assert_array_equal(y[0], 2 * x[0])


def test_every_type_can_be_drawn():
    entry = EntryPoint("f", tuple(ArgumentType((1000,), dtype) for dtype in NUMPY_NAMES))
    for argument, array in zip(entry.arguments, arrays.random_arrays(entry, 3), strict=True):
        assert array.dtype == NUMPY_NAMES[argument.dtype]
        values = arrays.array_numbers(array, argument).astype(float)
        assert np.unique(values).size > (1 if argument.dtype == "i1" else 7)
        assert np.abs(values).max() <= 7
    scalar = EntryPoint("f", (ArgumentType((), "f32"),))
    assert arrays.random_arrays(scalar, 3)[0].shape == ()


def test_no_arguments_need_no_file(capsys):
    assert "@nothing after the run" in printed(capsys, "run nothing.mlir")


def test_bfloat16_arrays_as_ml_dtypes_saves_them(capsys, folder):
    x = np.ones((2, 4), ml_dtypes.bfloat16)
    np.savez(folder / "in.npz", arg0=x, arg1=np.zeros_like(x), arg2=np.zeros(3, np.int32))
    printed(capsys, "run double.mlir --args in.npz --out out.npz")
    with np.load(folder / "out.npz") as out:
        assert out["arg1"][0].tolist() == [0x4000] * 4


def test_numbers_that_are_not_finite(capsys, folder):
    x = np.full((2, 4), np.nan, ml_dtypes.bfloat16)
    np.savez(folder / "in.npz", arg0=x, arg1=x, arg2=np.zeros(3, np.int32))
    assert "bf16 (8 not finite)" in printed(capsys, "run double.mlir --args in.npz")
    (row, *_) = as_json(capsys, "run double.mlir --args in.npz")["outputs"]
    assert (row["min"], row["not_finite"]) == (None, 8)


# ---- what goes together ----


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--no-checks --perturb 3 --zeros",
            "--perturb needs a program built with checks: leave out --no-checks",
        ),
        (
            "--no-checks --races note --zeros",
            "--races note needs a program built with checks: leave out --no",
        ),
        ("--no-checks --stats --zeros", "--stats needs a program built with checks: leave out --no-checks"),
        (
            "--no-checks --trace t.json --zeros",
            "--trace needs a program built with checks: leave out --no-ch",
        ),
        ("--perturb 0 --zeros", "--perturb 0 runs nothing: give the number of schedules, 1 or more"),
        ("--seed 3 --zeros", "--seed chooses the schedules of --perturb N and what --garbage N draws: give"),
        ("--garbage 0 --zeros", "--garbage 0 runs nothing: give the number of runs, 1 or more"),
        ("--garbage 1 --no-checks --zeros", "--garbage needs a program built with checks: leave out"),
        ("--perturb 2 --seed 0 --zeros", "--seed 0 is no seed of a schedule: give a whole number from 1 on"),
        ("--random -1", "--random -1 is negative: give a seed of 0 or more"),
        ("", "double takes 3 arguments: give them with --args NPZ, or try it with --random SEED or --zeros"),
        (
            "--zeros --random 1",
            "argument --random: not allowed with argument --zeros (see aerie vnpu",
        ),
        ("--numerics fp8", "argument --numerics: invalid choice: 'fp8' (choose from"),
        ("--zeros --trace gone/t.json", "cannot write gone/t.json: the folder"),
    ],
)
def test_refusals(capsys, words, message):
    assert main(["run", "double.mlir", *words.split()]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith(f"error: {message}")


# ---- JSON ----


def test_a_result_as_json(capsys):
    found = as_json(capsys, "run double.mlir --random 1 --perturb 2 --stats --trace t.json")
    assert (found["ok"], found["entry"], found["out"], found["schedules"]) == (True, "double", None, 3)
    assert [row["name"] for row in found["outputs"]] == ["arg0", "arg1", "arg2"]
    assert found["outputs"][0]["shape"] == [2, 4]
    assert found["trace"] == "t.json"
    assert set(found["stats"]) == {"tiles", "channels"}
    assert "traceEvents" in json.loads(Path("t.json").read_text())


@pytest.mark.parametrize(
    ("words", "status", "kind", "line", "op"),
    [
        ("run stuck.mlir --zeros", 1, "deadlock", 5, None),
        ("run gone.mlir", 2, "input", None, None),
        ("run double.mlir --args gone.npz", 2, "arguments", None, None),
        ("run", 2, "usage", None, None),
        ("run bad.mlir --zeros", 2, "parse", 2, None),
        ("run tensor.mlir --zeros", 2, "unsupported", 2, "tensor.empty"),
        ("run link.mlir --zeros", 2, "kernel_source", 3, None),
    ],
)
def test_an_error_as_json(capsys, folder, words, status, kind, line, op):
    (folder / "bad.mlir").write_text("func.func @f() {\n  oops\n}")
    (folder / "tensor.mlir").write_text(
        "func.func @f() {\n  %t = tensor.empty() : tensor<4xf32>\n  return\n}"
    )
    (folder / "link.mlir").write_text(
        'func.func private @k() attributes {link_with = "k.o"}\n'
        "func.func @f() {\n  func.call @k() : () -> ()\n  return\n}"
    )
    found = as_json(capsys, words, status)
    assert found["ok"] is False
    error = found["error"]
    assert (error["kind"], error["line"]) == (kind, line)
    assert op is None or error["op"] == op
    assert error["message"]


def test_a_defect_is_one_line_too(capsys, monkeypatch):
    def broken(_options, _path):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("aerie.virtual_npu.commands.common.program", broken)
    assert main(["run", "double.mlir"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "error: a defect of the virtual NPU: RuntimeError: two lines (test_vnpu_cli_options.py:"
    )
    assert "please report it" in line


# ---- statistics, traces, schedules ----


def test_statistics_as_tables(capsys):
    text = printed(capsys, "run double.mlir --zeros --stats --perturb 2")
    assert "per tile\n" in text
    assert re.search(r"^tile or body +line +bytes in +bytes out", text, re.MULTILINE)
    assert text.endswith("3 schedules, same results\n")


def test_a_trace_of_a_deadlock(capsys, folder):
    assert main(["run", "stuck.mlir", "--zeros", "--trace", "t.json"]) == 1
    events = json.loads((folder / "t.json").read_text())["traceEvents"]
    assert any(event.get("args", {}).get("unfinished") for event in events)
    assert "deadlock" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    console.print_table("title", ("name", "n"), [["[a]", "1"]], "<>", stream)
    text = stream.getvalue()
    assert "┃" in text
    assert "[a]" in text
    assert max(map(len, re.sub("\x1b[^m]*m", "", text).splitlines())) <= 60


# ---- start-up ----


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["--help"], {"xdsl", "numpy", "rich"}),
        (["run"], {"xdsl", "numpy", "rich"}),
        (["run", "gone.mlir"], {"xdsl", "rich"}),
        (["ops"], {"numpy", "rich"}),
    ],
)
def test_what_is_not_needed_is_not_loaded(words, unwanted):
    script = (
        "import sys; from aerie.virtual_npu.__main__ import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, env=environment, check=False
    )
    assert not unwanted & set(done.stderr.split())


def test_a_program_that_does_not_fit_the_device_gets_one_line(folder, capsys):
    def device_line(words: str) -> str:
        assert main(f"run tall.mlir {words}".split()) == 0
        return capsys.readouterr().err

    line = (
        r"note: this cannot be built for {}: line \d+: air.\w+: tall/0/s\S*: \w.* takes \d+, {} has \d+; .*"
        r", and \d more; `aerie vnpu check` shows all, --device none looks for nothing\n"
    )
    assert re.fullmatch(line.format("npu2", "npu2"), device_line(""))
    assert re.fullmatch(line.format("npu1", "npu1"), device_line("--device npu1"))
    assert re.fullmatch(line.format("npu2", "npu2"), device_line("--no-checks --device npu2"))
    assert device_line("--device none") == device_line("--no-checks") == ""
    found = as_json(capsys, "run tall.mlir")
    assert found["device"] == "npu2"
    assert len(found["misfits"]) > 1
    assert "L1 bytes takes" in " ".join(found["misfits"])
    found = as_json(capsys, "run tall.mlir --device none")
    assert (found["device"], found["misfits"]) == ("none", [])


def test_a_known_program_is_not_checked_for_the_device_again(folder, capsys, monkeypatch):
    assert main(["run", "tall.mlir"]) == 0
    line = capsys.readouterr().err

    def never(*_arguments, **_options):
        pytest.fail("checked again")

    with monkeypatch.context() as patch:
        patch.setattr("aerie.virtual_npu.program.Program.check", never)
        assert main(["run", "tall.mlir"]) == 0
    assert capsys.readouterr().err == line
    assert "takes" in line
    calls = []

    def check(*_):
        calls.append(0)
        return SimpleNamespace(faults=("other",))

    monkeypatch.setattr(
        "aerie.virtual_npu.program.Program.check",
        check,
    )
    assert main(["run", "tall.mlir", "--no-cache"]) == 0
    assert "cannot be built for npu2: other;" in capsys.readouterr().err
    assert calls == [0]
