"""The Python API: virtual_npu.Program."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aerie.device.errors import ParseError
from aerie.virtual_npu import (
    BuildOptions,
    OptionError,
    Program,
    ProgramError,
    VirtualNpuDeadlock,
    VirtualNpuRuntimeError,
    VnpuArgumentError,
)
from aerie.virtual_npu.errors import ScheduleError
from aerie.virtual_npu.library import RunResult
from tests.virtual_npu.air_texts import with_constants

ADD = with_constants("""
func.func @add(%x: memref<8xbf16>, %y: memref<8xbf16>) {
  %a = vector.load %x[%c0] : memref<8xbf16>, vector<8xbf16>
  %b = arith.addf %a, %a : vector<8xbf16>
  vector.store %b, %y[%c0] : memref<8xbf16>, vector<8xbf16>
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
UNCHECKED = BuildOptions()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv("VNPU_OPT", "0")


def test_outputs_are_new_arrays_of_the_dtypes_given():
    program = Program.from_text(ADD)
    x, y = np.arange(8).astype(ml_dtypes.bfloat16), np.zeros(8, ml_dtypes.bfloat16)
    result = program.run(x, y)
    assert result.outputs[1].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result.outputs[1].astype(int), 2 * np.arange(8))
    np.testing.assert_array_equal(y.astype(int), np.zeros(8))
    bits = program.run(x.view(np.uint16), y.view(np.uint16)).outputs
    assert [array.dtype for array in bits] == [np.uint16, np.uint16]
    np.testing.assert_array_equal(bits[1], result.outputs[1].view(np.uint16))


UNRANKED = """
func.func @second(%x: memref<*xf32>, %y: memref<*xf32>, %row: i32) {
  %width = arith.constant 4 : index
  %n = arith.index_cast %row : i32 to index
  %at = arith.muli %n, %width : index
  %in = memref.reinterpret_cast %x to offset: [%at], sizes: [4], strides: [1] : memref<*xf32> to memref<4xf32, strided<[1], offset: ?>>
  %out = memref.reinterpret_cast %y to offset: [0], sizes: [4], strides: [1] : memref<*xf32> to memref<4xf32, strided<[1]>>
  memref.copy %in, %out : memref<4xf32, strided<[1], offset: ?>> to memref<4xf32, strided<[1]>>
  return
}
"""  # noqa: E501 - MLIR has long lines


def test_arguments_without_a_shape_take_arrays_of_any():
    program = Program.from_text(UNRANKED)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for y in (np.zeros((2, 2), np.float32), np.zeros(9, np.float32)):
        result = program.run(x, y, np.array(1, np.int32))
        assert result.outputs[1].shape == y.shape
        assert result.outputs[1].reshape(-1)[:4].tolist() == [4, 5, 6, 7]
    with pytest.raises(ProgramError, match=r"memref<\*xf32> has no shape: run it with arrays \(--args\)"):
        program.entry()
    with pytest.raises(VirtualNpuRuntimeError, match=r"line 6: .* elements 12 to 15 of a buffer that has"):
        program.run(x, np.zeros(9, np.float32), np.array(3, np.int32))


def test_from_file(tmp_path):
    (tmp_path / "add.mlir").write_text(ADD)
    program = Program.from_file(tmp_path / "add.mlir")
    assert program.source.options.checks
    assert program.entry().name == "add"
    with pytest.raises(ProgramError, match=r"cannot read .*gone.mlir: No such file"):
        Program.from_file(tmp_path / "gone.mlir")


def test_a_program_that_does_not_fit_is_reported():
    program = Program.from_text(ADD)
    zeros = np.zeros(8, np.uint16)
    with pytest.raises(VnpuArgumentError, match="add takes 2 arguments, arg0 and arg1: arg1 is missing"):
        program.run(zeros)
    with pytest.raises(VnpuArgumentError, match="arg1 of add is bf16, held as uint16; the array is float32"):
        program.run(zeros, zeros.astype(np.float32))
    with pytest.raises(ProgramError, match="no public function @sub: the program has add"):
        program.run(zeros, zeros, entry="sub")
    with pytest.raises(ParseError, match=r"^new\.mlir:1:"):
        Program.from_text("func.func @f( {", filename="new.mlir").entry()


def test_failures_carry_their_kind():
    with pytest.raises(VirtualNpuDeadlock, match="no put") as caught:
        Program.from_text(STUCK).run(np.zeros(4, np.float32))
    assert caught.value.kind == "deadlock"


@pytest.mark.parametrize(("asked", "named"), [({"perturb": 2}, "perturb"), ({"trace": True}, "trace")])
def test_what_needs_checks(asked, named):
    program = Program.from_text(ADD, options=UNCHECKED)
    zeros = np.zeros(8, np.uint16)
    with pytest.raises(OptionError, match=f"^{named} needs a program built with checks"):
        program.run(zeros, zeros, **asked)
    with pytest.raises(OptionError, match=r"^stats and trace need a program built with checks"):
        program.run(zeros, zeros, stats=True, trace=True)


def test_the_static_check():
    report = Program.from_text(ADD).check()
    assert report.ok
    assert report.device.name == "npu2"
    assert Program.from_text(ADD).check("npu1").device.name == "npu1"
    with pytest.raises(OptionError, match="device 'gpu' is not known; choose one of: npu2, npu1"):
        Program.from_text(ADD).check("gpu")


def test_sanitized_programs_do_not_end_this_process():
    program = Program.from_text(ADD, options=BuildOptions(sanitize=True))
    with pytest.raises(OptionError, match=r"use `aerie vnpu run --sanitize`, or .*LD_PRELOAD=/"):
        program.entry()


def test_schedules_that_agree():
    zeros = np.zeros(8, np.uint16)
    assert Program.from_text(ADD).run(zeros, zeros, perturb=3).schedules == 4


RACE = with_constants("""
air.channel @to [2]
func.func @f(%in: memref<8xf32>, %out: memref<4xf32>) {
  air.launch () in () args(%a=%in, %b=%out) : memref<8xf32>, memref<4xf32> {
    %p0 = air.channel.put async @to[%c0] (%a[%c0] [%c4] [%c1]) : (memref<8xf32>)
    %p1 = air.channel.put async @to[%c1] (%a[%c4] [%c4] [%c1]) : (memref<8xf32>)
    %t = air.wait_all async [%p0, %p1]
    %g0 = air.channel.get async [%t] @to[%c0] (%b[] [] []) : (memref<4xf32>)
    %g1 = air.channel.get async [%t] @to[%c1] (%b[] [] []) : (memref<4xf32>)
  }
  return
}
""")


def test_schedules_of_a_race():
    """Two gets fill one buffer: which one comes last is drawn, the same for the same seed."""
    program, x, y = Program.from_text(RACE), np.arange(8, dtype=np.float32), np.zeros(4, np.float32)
    assert program.run(x, y, races="note").notes
    found = []
    for _ in range(2):
        with pytest.raises(ScheduleError, match=r"arg1\[0\] is 0.0 instead of 4.0 \(4 of 4") as caught:
            program.run(x, y, races="note", perturb=20)
        found.append(str(caught.value))
    assert found[0] == found[1]


def test_schedules_that_differ(monkeypatch):
    """A library whose result depends on the seed, as a program with a race that no check sees would be."""

    def racing(library, entry, values, options):
        values[1][3] = 7 if options.seed == 5 else 0
        return RunResult()

    monkeypatch.setattr("aerie.virtual_npu.arrays.run_entry", racing)
    program, zeros = Program.from_text(ADD), np.zeros(8, np.uint16)
    assert program.run(zeros, zeros, perturb=4).schedules == 5
    with pytest.raises(
        ScheduleError, match=r"the result depends on the schedule: arg1\[3\] is .* with seed 5"
    ):
        program.run(zeros, zeros, perturb=5)
    with pytest.raises(ScheduleError, match="repeat it with --perturb 1 --seed 5") as caught:
        program.run(zeros, zeros, perturb=1, seed=5)
    assert "(1 of 8 elements differ)" in str(caught.value)


def test_a_failure_under_a_schedule_names_its_seed(monkeypatch):
    def failing(library, entry, values, options):
        if options.seed:
            raise VirtualNpuDeadlock("line 3: deadlock")
        return RunResult()

    monkeypatch.setattr("aerie.virtual_npu.arrays.run_entry", failing)
    zeros = np.zeros(8, np.uint16)
    with pytest.raises(VirtualNpuDeadlock, match=r"under the schedule of seed 7 .*--perturb 1 --seed 7"):
        Program.from_text(ADD).run(zeros, zeros, perturb=1, seed=7)
