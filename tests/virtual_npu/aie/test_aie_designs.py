"""Runs designs of the AIE level: what comes out, and what is said of those that hang."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from aerie import air_dialect, virtual_npu
from aerie.virtual_npu import pyxrt
from aerie.virtual_npu.errors import OptionError, VirtualNpuDeadlock, VirtualNpuRuntimeError
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.program import Program
from tests.virtual_npu.aie.designs import MODULE
from tests.virtual_npu.aie.entries import run_entry


@pytest.fixture(scope="module")
def program() -> Program:
    return Program.from_text(MODULE, "designs.mlir", options=BuildOptions(checks=True))


def test_dimensions_and_padding(program: Program) -> None:
    got = run_entry(program, "turn", 32, 45).outputs[1].reshape(9, 5)
    want = np.zeros((9, 5), np.int32)
    want[1:, :4] = np.arange(1, 33).reshape(4, 8).T
    assert np.array_equal(got, want)


def test_object_fifos(program: Program) -> None:
    assert np.array_equal(run_entry(program, "fifos", 32, 32).outputs[1], np.arange(1, 33) + 110)


def test_distribute_and_join(program: Program) -> None:
    got = run_entry(program, "parts", 64, 64).outputs[1].reshape(4, 2, 8)
    want = np.arange(1, 65).reshape(4, 2, 8) + np.array([1, 2]).reshape(1, 2, 1)
    assert np.array_equal(got, want)


def test_repeats(program: Program) -> None:
    got = run_entry(program, "repeats", 16, 48).outputs[1].reshape(2, 3, 8)
    assert np.array_equal(got, np.repeat(np.arange(1, 17).reshape(2, 1, 8), 3, axis=1))


def test_cascade_parameter_and_lock(program: Program) -> None:
    got = program.run(np.zeros(16, np.int32), entry="cascade").outputs[0]
    want = np.full(16, 10)
    want[3] = 14
    assert np.array_equal(got, want)


def test_registers(program: Program) -> None:
    got = run_entry(program, "registers", 32, 8).outputs[1]
    want = np.arange(2, 18, 2)
    want[0] += 1000
    assert np.array_equal(got, want)


def test_a_core_that_never_waits(program: Program) -> None:
    program.run(np.zeros(8, np.int32), entry="busy")


def test_any_order_gives_the_same(program: Program) -> None:
    arrays = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    assert program.run(*arrays, entry="parts", perturb=3).schedules == 4


def test_five_words_fit_behind_an_arbiter(program: Program) -> None:
    assert (program.run(np.zeros(8, np.int32), entry="overrun_5").outputs[0] == 2).all()


def test_a_sixth_word_holds_the_arbiter(program: Program) -> None:
    with pytest.raises(VirtualNpuDeadlock) as error:
        program.run(np.zeros(8, np.int32), entry="overrun_6")
    text = str(error.value)
    assert "MM2S 1 of memtile (0, 1)" in text
    assert re.search(r"waits for arbiter 2 of the switch of tile \(0, 2\), which a packet of MM2S 0 of", text)
    assert "has 1 words to send and waits for room at S2MM 0 of core tile (0, 2), where 5 words wait" in text
    assert "S2MM 0 of core tile (0, 2) has come to the end of its chain" in text
    assert re.search(r"tile \(0, 1\) DMA_MM2S_Status_1 0xa0684 = 0x\d\d080013", text)


def test_eight_words_fit_at_the_head_of_a_line(program: Program) -> None:
    run_entry(program, "line_9", 9, 4, 4)
    with pytest.raises(VirtualNpuDeadlock, match=r"of that 5 words wait for room at S2MM 0 of core tile"):
        run_entry(program, "line_10", 10, 4, 4)


def test_wrong_lock_count(program: Program) -> None:
    with pytest.raises(VirtualNpuDeadlock) as error:
        run_entry(program, "lock_count", 4096)
    text = str(error.value)
    assert "core (0, 2) at line" in text
    assert "waits for lock full of tile (0, 2) to be at least 2; it is 1" in text
    assert "waits for lock free of tile (0, 2) to be at least 1; it is 0" in text
    assert "core (0, 2) Core_Status 0x32004 = 0x000201" in text


def test_full_queue(program: Program) -> None:
    with pytest.raises(VirtualNpuDeadlock, match=r"room in the queue of MM2S 0 of shim.*which has 4 tasks"):
        run_entry(program, "queue", 4096)


def test_token_before_the_data(program: Program) -> None:
    run_entry(program, "early_token", 1024)


def test_lock_has_six_bits(program: Program) -> None:
    with pytest.raises(VirtualNpuRuntimeError, match=r"lock 1 \(many\) of tile \(1, 2\) is 63 and would"):
        run_entry(program, "lock_value", 8)


def test_channel_without_flow(program: Program) -> None:
    with pytest.raises(VirtualNpuRuntimeError, match=r"MM2S 1 of shim \(0, 0\) has no flow: add aie.flow"):
        run_entry(program, "no_flow", 8)


def test_descriptor_outside(program: Program) -> None:
    with pytest.raises(
        VirtualNpuRuntimeError, match="reaches bytes 4 to 35 of a buffer that has bytes 0 to 31"
    ):
        run_entry(program, "outside", 8)


def test_no_garbage_at_this_level(program: Program) -> None:
    with pytest.raises(OptionError, match=r"garbage is not there for modules with aie\.device"):
        program.run(np.zeros(8, np.int32), entry="no_flow", garbage=1)


def test_pyxrt_runs_a_sequence(tmp_path: Path) -> None:
    virtual_npu.build(MODULE, tmp_path / "designs.elf")
    device = pyxrt.device(0)
    context = pyxrt.hw_context(device, pyxrt.elf(str(tmp_path / "designs.elf")))
    buffers = [pyxrt.ext.bo(device, 128) for _ in range(2)]
    first, second = (np.frombuffer(buffer.map(), np.int32) for buffer in buffers)
    first[:] = np.arange(32)
    buffers[0].sync(pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE)
    run = pyxrt.run(pyxrt.ext.kernel(context, "main:fifos"))
    for number, buffer in enumerate(buffers):
        run.set_arg(number, buffer)
    run.start()
    run.wait2()
    buffers[1].sync(pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE)
    assert np.array_equal(second, np.arange(32) + 110)


def test_text_is_printed_as_it_was_read() -> None:
    printed = air_dialect.print_module(air_dialect.parse(MODULE))
    assert air_dialect.print_module(air_dialect.parse(printed)) == printed


BAD_INDEX = """
module {
  aie.device(npu2) {
    %core = aie.tile(0, 2)
    %buffer = aie.buffer(%core) {sym_name = "buffer"} : memref<8xi32>
    aie.core(%core) {
      %c0 = arith.constant 0 : index
      %x = memref.load %buffer[%c0] : memref<8xi32>
      %i = arith.index_cast %x : i32 to index
      %j = arith.addi %i, %i : index
      memref.store %x, %buffer[%j] : memref<8xi32>
      aie.end
    }
    aie.runtime_sequence @index(%a: memref<8xi32>) {
      %five = arith.constant 5 : i32
      aiex.npu.rtp_write(@buffer, 0, %five) : i32
    }
  }
}
"""


def test_index_outside_of_a_buffer() -> None:
    late = BAD_INDEX.replace(
        "%c0 = arith.constant 0 : index",
        """%c0 = arith.constant 0 : index
      %one = arith.constant 1 : i32
      aie.use_lock(%go, AcquireGreaterEqual, %one)""",
    )
    late = late.replace("aie.core(", "%go = aie.lock(%core, 0) {init = 0 : i32}\n    aie.core(")
    late = late.replace("@buffer, 0, %five) : i32", "@buffer, 0, %five) : i32\n      aiex.set_lock(%go, 1)")
    program = Program.from_text(late)
    with pytest.raises(VirtualNpuRuntimeError, match="index 10 of dimension 0, and 1 elements from it on"):
        program.run(np.zeros(8, np.int32))
