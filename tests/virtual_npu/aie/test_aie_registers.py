"""Runs designs about order on the way, tokens, resets, ports of cores and registers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aerie.virtual_npu.errors import VirtualNpuDeadlock, VirtualNpuRuntimeError
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.program import Program
from tests.virtual_npu.aie.entries import run_entry
from tests.virtual_npu.aie.register_designs import MODULE


@pytest.fixture(scope="module")
def program() -> Program:
    return Program.from_text(MODULE, "registers.mlir", options=BuildOptions(checks=False))


def test_two_packets_hold_what_the_other_one_needs(program: Program) -> None:
    with pytest.raises(VirtualNpuDeadlock) as error:
        run_entry(program, "crossing", 32)
    text = str(error.value)
    for sender, switch, other in ((1, 3, 4), (4, 2, 1)):
        assert re.search(
            rf"MM2S 0 of core tile \({sender}, 3\) at line \d+ has 32 words to send and waits for "
            rf"arbiter 0 of the switch of tile \({switch}, 3\), which a packet of MM2S 0 of "
            rf"core tile \({other}, 3\) holds",
            text,
        )


def test_with_an_arbiter_each_they_pass(program: Program) -> None:
    assert (run_entry(program, "apart", 32).outputs[0] == 1).all()


def test_a_token_waits_behind_a_packet(program: Program) -> None:
    with pytest.raises(VirtualNpuDeadlock) as error:
        run_entry(program, "token_behind", 64, 64)
    text = str(error.value)
    assert (
        "the port for tokens of shim (0, 0) has 1 words to send and waits for arbiter 5 of the switch of"
        in text
    )
    assert "S2MM 0 of shim (1, 0) has no task: its queue is empty" in text


def test_a_token_with_an_arbiter_of_its_own(program: Program) -> None:
    assert np.array_equal(run_entry(program, "token_beside", 64, 64).outputs[1], np.arange(1, 65))


def test_resets_of_a_channel_and_of_a_core(program: Program) -> None:
    assert run_entry(program, "resets", 8).outputs[0].tolist() == [0] * 4 + [1] * 4


def test_words_from_core_to_core(program: Program) -> None:
    assert np.array_equal(run_entry(program, "streams", 32).outputs[0], np.arange(1, 33))


def test_a_core_that_waits_for_one_word_more(program: Program) -> None:
    with pytest.raises(VirtualNpuDeadlock) as error:
        run_entry(program, "starved", 32)
    text = str(error.value)
    assert re.search(r"core \(0, 4\) at line \d+ waits for a word at its port Core : 0, which has none", text)
    assert "core (0, 4) Core_Status 0x32004 = 0x000401" in text


def test_descriptors_of_tiles_by_their_registers(program: Program) -> None:
    got = run_entry(program, "tile_registers", 32, 32).outputs[1]
    assert got[:16].tolist() == [*range(1, 17, 2), *range(2, 18, 2)]


def test_logical_tiles_padding_and_tasks_that_loops_carry(program: Program) -> None:
    got = run_entry(program, "logical", 20, 32).outputs[1].reshape(4, 8)
    want = np.full((4, 8), 42)
    want[:, 2:7] = np.arange(1, 21).reshape(4, 5)
    assert np.array_equal(got, want)


def _header(address: int, beats: int, operation: int = 0, answer: int = 0) -> int:
    return address | (beats - 1) << 20 | operation << 22 | answer << 24


def test_control_packets_write_locks_and_buffers_and_read(program: Program) -> None:
    first = 1024  # a core's stack lies before its first buffer
    words = [_header(first + 4, 2), 77, 78, _header(0x1F030, 1), 2]
    read = [_header(first, 4, operation=1, answer=2)]
    arrays = np.array(words, np.int32), np.array(read, np.int32), np.zeros(4, np.int32)
    got = program.run(*arrays, entry="control_packets").outputs[2]
    assert list(got) == [5, 77, 78, 4]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            _header(0x1D000, 1),
            "a control packet goes to address 0x1d000 of core tile (0, 3): only buffers and",
        ),
        (
            _header(0x1F000, 1, operation=1),
            "reads tile (0, 3), which has no way for the answer: add an aie.pac",
        ),
        (_header(0, 1, operation=2), "operation 2 of a control packet is not supported: 0 writes, 1 reads"),
    ],
)
def test_what_control_packets_do_not_do(program: Program, word: int, message: str) -> None:
    with pytest.raises(VirtualNpuRuntimeError, match=re.escape(message)):
        program.run(np.array([word, 0], np.int32), entry="no_answer")


def test_a_task_that_is_not_there(program: Program) -> None:
    with pytest.raises(VirtualNpuRuntimeError, match="there is no task 7: 0 were configured"):
        run_entry(program, "no_task", 8)
