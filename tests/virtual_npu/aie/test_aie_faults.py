"""What is said of designs with faults, and of those that leave something behind."""

from __future__ import annotations

import re

import numpy as np
import pytest

from aerie.board import why
from aerie.virtual_npu import library
from aerie.virtual_npu.errors import VirtualNpuDeadlock, VirtualNpuRuntimeError
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.program import Program, Result
from tests.virtual_npu.aie.fault_designs import MODULE


@pytest.fixture(scope="module")
def program() -> Program:
    return Program.from_text(MODULE, "faults.mlir", options=BuildOptions(checks=True))


def _run(program: Program, entry: str, *sizes: int, time_limit: float = 0) -> Result:
    return program.run(*(np.ones(size, np.int32) for size in sizes), entry=entry, time_limit=time_limit)


def test_what_is_left_is_noted(program: Program) -> None:
    notes = "\n".join(_run(program, "left", 16, 16).notes)
    assert "at the end of the run 5 words wait in the stream before S2MM 0 of core tile (0, 2)" in notes
    assert "MM2S 0 of shim (0, 0) has 3 words that nobody took: the next run would begin with them" in notes
    assert "S2MM 0 of shim (0, 0) still waits for 8 words of a descriptor that it has begun" in notes
    assert "S2MM 0 of shim (0, 0) has a task to do, and 0 in its queue: wait for a token" in notes
    assert "1 steps wait in the cascade into core (0, 2)" in notes


def test_a_chain_that_nobody_starts_again(program: Program) -> None:
    with pytest.raises(VirtualNpuDeadlock, match=r"S2MM 0 of core tile \(0, 2\) has come to the end of its"):
        _run(program, "not_armed", 4096)


def test_more_descriptors_than_a_shim_has(program: Program) -> None:
    with pytest.raises(
        VirtualNpuRuntimeError, match=r"shim \(0, 0\) would have 17 descriptors in use, and has 16"
    ):
        _run(program, "pool", 4096)


def test_a_descriptor_that_is_overwritten(program: Program) -> None:
    with pytest.raises(
        VirtualNpuRuntimeError, match=r"descriptor 5 of shim \(0, 0\) is in use by the task of l"
    ):
        _run(program, "overwritten", 8192)


@pytest.mark.parametrize(("entry", "what"), [("jumps", "cf.br"), ("loops", "scf.while")])
def test_a_core_without_end(program: Program, entry: str, what: str) -> None:
    with pytest.raises(
        VirtualNpuDeadlock, match=r"the runtime sequence at line .* waits for a token"
    ) as error:
        _run(program, entry, 8, time_limit=0.05)
    text = str(error.value)
    lines = MODULE.splitlines()
    found = re.search(r"core \(0, 2\) at line (\d+) computes for longer than --time-limit says", text)
    assert found is not None
    assert what in lines[int(found[1]) - 1]
    assert "waits for lock never of tile (0, 3) to be at least 1; it is 0" in text


def test_a_core_without_end_where_no_limit_is_given(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "AIE_TIME_LIMIT", 0.05)
    with pytest.raises(VirtualNpuDeadlock, match="computes for longer than --time-limit says"):
        program.run(np.ones(8, np.int32), entry="loops")


def test_a_core_that_takes_its_own_lock_without_end(program: Program) -> None:
    with pytest.raises(VirtualNpuRuntimeError, match="nothing but cores has moved in 0 s of comp") as error:
        _run(program, "spins", 8, time_limit=0.05)
    text = str(error.value)
    assert "the runtime sequence at line" in text
    assert re.search(r"core \(0, 2\) at line \d+ goes on", text)
    assert "waits for lock never of tile (0, 3) to be at least 1; it is 0" in text


def test_a_core_may_go_on_when_the_host_has_ended(program: Program) -> None:
    _run(program, "goes_on", 8, time_limit=0.05)


def test_credits_that_are_released_twice(program: Program) -> None:
    notes = "\n".join(_run(program, "credits", 32).notes)
    assert "aie.use_lock: locks free and full of tile (0, 2) have 2 credits, and began with 1" in notes


def test_512_bits_that_lie_wrong(program: Program) -> None:
    notes = [note for note in _run(program, "credits", 32).notes if "accesses 512 bits 32 bytes" in note]
    assert [note.split(": ")[1] for note in notes] == ["vector.load", "vector.store"]


def test_a_broadcast_to_a_receiver_with_too_few_buffers(program: Program) -> None:
    _run(program, "deep", 32, 8)
    with pytest.raises(VirtualNpuDeadlock, match="nothing can go on") as error:
        _run(program, "shallow", 32, 8)
    text = str(error.value)
    assert re.search(r"MM2S 0 of shim \(0, 0\) .*room at S2MM 0 of core tile \(0, 3\)", text)
    assert _waits("\n".join(why.explain(text[text.index("registers of") :]))) == _waits(text)


@pytest.mark.parametrize(
    ("entry", "blocks"),
    [("arrivals", "02"), ("slot_by_slot", "12"), ("too_early", "233"), ("after_reading", "123")],
)
def test_a_lock_that_guards_something_else(program: Program, entry: str, blocks: str) -> None:
    # Blocks of 1s, 2s and 3s go in. A slot that is sent before it comes is 0; the next block lies over one
    # that is given back before it is read.
    sent = np.repeat(np.arange(1, len(blocks) + 1, dtype=np.int32), 8)
    got = program.run(sent, np.zeros_like(sent), entry=entry).outputs[1]
    assert got[::8].tolist() == [int(block) for block in blocks]
    assert np.array_equal(got, np.repeat(got[::8], 8))


def _waits(text: str) -> set[tuple[str, str]]:
    """Who waits for a lock or for words; the host and what has no status register are left out."""
    waits = re.findall(r"^ *([\w ]*\(\d, \d\)).*? waits for (?:\d+ |a )?(lock|words)", text, re.MULTILINE)
    return set(waits)
