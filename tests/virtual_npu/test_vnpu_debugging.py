# ruff: noqa: E501 - MLIR has long lines
"""Where a run differs from what was expected and what wrote it, where a stopped run stands, and `aerie.vnpu`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aerie import vnpu
from aerie.virtual_npu import RunOptions, VnpuArgumentError, arrays
from aerie.virtual_npu.__main__ import main
from aerie.virtual_npu.errors import ErrorReport
from tests.virtual_npu.air_texts import with_constants

pytest_plugins = ["aerie.vnpu_pytest"]

ADD_ONE = """
module {
  air.channel @in []
  air.channel @out [2]
  func.func @add_one(%x: memref<2x16xi8>, %y: memref<2x16xi8>) {
    %n = arith.constant 2 : index
    air.launch (%i) in (%s=%n) args(%a=%x, %b=%y) : memref<2x16xi8>, memref<2x16xi8> {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c16 = arith.constant 16 : index
      air.channel.put @in[] (%a[%i, %c0] [%c1, %c16] [%c16, %c1]) : (memref<2x16xi8>)
      air.channel.get @out[%c1] (%b[%i, %c0] [%c1, %c16] [%c16, %c1]) : (memref<2x16xi8>)
      air.segment @s {
        %c1_0 = arith.constant 1 : index
        air.herd @h tile (%tx, %ty) in (%sx=%c1_0, %sy=%c1_0) {
          %c1_1 = arith.constant 1 : index
          %c0_1 = arith.constant 0 : index
          %one = arith.constant dense<1> : vector<16xi8>
          %l = memref.alloc() : memref<16xi8, 2>
          air.channel.get @in[] (%l[] [] []) : (memref<16xi8, 2>)
          %v = vector.load %l[%c0_1] : memref<16xi8, 2>, vector<16xi8>
          %w = arith.addi %v, %one : vector<16xi8>
          vector.store %w, %l[%c0_1] : memref<16xi8, 2>, vector<16xi8>
          air.channel.put @out[%c1_1] (%l[] [] []) : (memref<16xi8, 2>)
          memref.dealloc %l : memref<16xi8, 2>
        }
      }
    }
    return
  }
}
"""
PUT_LINE, GET_LINE = (1 + ADD_ONE[: ADD_ONE.index(text)].count("\n") for text in ("put @out", "get @out"))
WRITER = f"line {GET_LINE}: air.channel.get @out in launch (1), a block from line {PUT_LINE}: air.channel.put @out in herd @h (0, 0)"


@pytest.fixture
def x():
    return np.arange(32, dtype=np.uint8).reshape(2, 16) + 200


def test_signless_integers_are_taken_and_given_back_unsigned(x):
    outputs = vnpu.run(ADD_ONE, x, np.zeros_like(x)).outputs
    assert outputs[1].dtype == np.uint8
    assert np.array_equal(outputs[1], x + 1)
    assert vnpu.run(ADD_ONE, x.view(np.int8), x.view(np.int8)).outputs[1].dtype == np.int8


def test_an_array_of_another_width_is_refused(x):
    with pytest.raises(VnpuArgumentError, match="arg0 of add_one is i8, held as int8; the array is uint16"):
        vnpu.run(ADD_ONE, x.astype(np.uint16), x)


def test_module_objects_and_files_are_taken_as_they_are(x, tmp_path):
    class Module:
        def __str__(self) -> str:
            return ADD_ONE

    (tmp_path / "add_one.mlir").write_text(ADD_ONE)
    for module in (Module(), tmp_path / "add_one.mlir", vnpu.program(ADD_ONE)):
        assert np.array_equal(vnpu.run(module, x, np.zeros_like(x)).outputs[1], x + 1)


def test_the_first_difference_names_what_wrote_it(x):
    wanted = x + 1
    assert vnpu.run(ADD_ONE, x, x, expect={1: wanted})
    wanted[1, 3:5] += 7
    with pytest.raises(vnpu.ExpectationError) as caught:
        vnpu.run(ADD_ONE, x, x, expect={1: wanted})
    error = caught.value
    assert (
        str(error)
        == f"add_one: arg1[1, 3] is -36 instead of -29 (2 of 32 elements differ); written by {WRITER}"
    )
    assert (error.kind, error.writer, error.difference.index) == ("expect", WRITER, (1, 3))
    line, op, place = error.report.line, error.report.op, error.report.place
    assert f"line {line}: {op}" + (f" in {place}" if place else "") == WRITER


def test_an_argument_that_no_launch_wrote(x):
    with pytest.raises(vnpu.ExpectationError, match=r"arg0\[0, 0\] is .*; no launch wrote it$"):
        vnpu.run(ADD_ONE, x, x, expect={0: x + 1})
    unchecked = vnpu.BuildOptions()
    with pytest.raises(vnpu.ExpectationError, match=r"\(32 of 32 elements differ\)$"):
        vnpu.run(ADD_ONE, x, x, expect={0: x + 1}, options=unchecked)


HALF = with_constants("""
func.func @half(%x: memref<4xbf16>) {
  %h = arith.constant 0.5 : bf16
  %v = memref.load %x[%c0] : memref<4xbf16>
  %w = arith.mulf %v, %h : bf16
  memref.store %w, %x[%c0] : memref<4xbf16>
  return
}
""")


def test_a_tolerance_is_relative_and_for_floats():
    x = np.full(4, 64, ml_dtypes.bfloat16)
    near, far = x.copy(), x.copy()
    near[0], far[0] = 32.25, 36
    assert vnpu.run(HALF, x, expect={0: near}, tolerance=0.01)
    with pytest.raises(vnpu.ExpectationError, match=r"is 32.0 instead of 36.0 .*, with a tolerance of 0.01"):
        vnpu.run(HALF, x, expect={0: far}, tolerance=0.01)


def test_the_command_expects(x, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("p.mlir").write_text(ADD_ONE)
    np.savez("in.npz", arg0=x, arg1=x)
    np.savez("good.npz", arg1=x + 1)
    np.savez("bad.npz", arg1=x)
    np.savez("other.npz", y=x)
    words = ["run", "p.mlir", "--args", "in.npz", "--device", "none"]
    assert main([*words, "--expect", "good.npz"]) == 0
    assert main([*words, "--expect", "bad.npz"]) == 1
    assert (
        f"arg1[0, 0] is -55 instead of -56 (32 of 32 elements differ); written by {WRITER.replace('(1)', '(0)')}"
        in capsys.readouterr().err
    )
    assert main([*words, "--expect", "bad.npz", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "expect"
    assert main([*words, "--expect", "other.npz"]) == 2
    assert (
        "other.npz has y: name what is expected after the run 2 arguments, arg0 and arg1"
        in capsys.readouterr().err
    )
    assert main([*words, "--tolerance", "0.1"]) == 2
    assert "--tolerance 0.1 is how far floats may be from --expect NPZ: give both" in capsys.readouterr().err


def test_a_report_has_the_parts_of_its_message():
    message = "f: line 7: air.channel.get @c in herd @h (1, 0) of launch (3): takes 4: too many"
    assert ErrorReport.of("mismatch", message) == ErrorReport(
        "mismatch", "f", 7, "air.channel.get @c", "herd @h (1, 0) of launch (3)", "takes 4: too many"
    )
    assert ErrorReport.of("deadlock", "f: deadlock: nothing\n  herd") == ErrorReport(
        "deadlock", "f", 0, "", "", "deadlock: nothing\n  herd"
    )


def test_an_error_carries_its_report(x):
    stuck = ADD_ONE.replace("air.channel.put @out[%c1_1]", "air.channel.put @out[%c0_1]")
    with pytest.raises(vnpu.VirtualNpuDeadlock) as caught:
        vnpu.run(stuck, x, x)
    assert (caught.value.report.kind, caught.value.report.entry) == ("deadlock", "add_one")


def test_the_fixture_runs_with_the_options_of_the_command_line(vnpu_run, x):
    assert np.array_equal(vnpu_run(ADD_ONE, x, x).outputs[1], x + 1)
    assert vnpu_run(ADD_ONE, x, x, perturb=2).schedules == 3


# ---- where a run stands that is stopped ----

ENDLESS = ADD_ONE.replace(
    "%w = arith.addi %v, %one : vector<16xi8>",
    """%huge = arith.constant 1000000000000000 : index
          scf.for %k = %c0_1 to %huge step %c1_1 {
            %u = vector.load %l[%c0_1] : memref<16xi8, 2>, vector<16xi8>
            vector.store %u, %l[%c0_1] : memref<16xi8, 2>, vector<16xi8>
          }
          %w = arith.addi %v, %one : vector<16xi8>""",
)
STANDS = rf"""where it stands:
  launch \(0\), line {GET_LINE}: get @out\[1\] \(0 put so far, 0 in flight\), waits until a put comes
(?:  .*\n)*  segment @s, line \d+: air.herd @h, runs: 1 body has not ended"""


def test_at_the_time_limit_it_says_where_everything_stands(x):
    with pytest.raises(vnpu.VirtualNpuRuntimeError, match=STANDS) as caught:
        vnpu.run(ENDLESS, x, x, time_limit=0.2)
    assert "it seems to have no end" in str(caught.value)


def test_what_a_signal_handler_raises_says_where_everything_stands(x):
    program = vnpu.program(ENDLESS)
    assert program.library

    def stop(*_):
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt) as caught:
            program.run(x, x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    (note,) = caught.value.__notes__
    assert note.startswith("stopped\nwhere it stands:")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_ctrl_c_on_the_command_says_where_everything_stands(tmp_path, x):
    (tmp_path / "p.mlir").write_text(ENDLESS)
    assert vnpu.program(ENDLESS).library
    # The program itself sends the signal, once it runs for certain: its parent is the command.
    text = (
        "import signal, sys, threading, os, time\n"
        "from aerie.virtual_npu import arrays\n"
        "run = arrays.run_entry\n"
        "def slow(*a, **k):\n"
        "    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    return run(*a, **k)\n"
        "arrays.run_entry = slow\n"
        "from aerie.virtual_npu.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", text, "run", "p.mlir", "--zeros", "--device", "none", "--time-limit", "0"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("stopped\nwhere it stands:\n  launch (0), line")


def test_a_traced_element_is_of_one_run(program, x):
    library = program(ADD_ONE, options=vnpu.BuildOptions(checks=True))
    y = np.zeros((2, 16), np.int8)
    values = [x.view(np.int8).copy(), y]
    (entry,) = library.entries.values()
    assert arrays.run_entry(library, entry, values, RunOptions(traced=y.ctypes.data + 16)).writer == WRITER
    assert arrays.run_entry(library, entry, values).writer == ""
