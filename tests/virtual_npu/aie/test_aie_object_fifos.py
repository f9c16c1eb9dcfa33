"""What comes out of designs with object FIFOs of the rarer forms."""

from __future__ import annotations

import numpy as np
import pytest

from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.program import Program
from tests.virtual_npu.aie.fifo_designs import MODULE


@pytest.fixture(scope="module")
def program() -> Program:
    return Program.from_text(MODULE, "fifos.mlir", options=BuildOptions(checks=True))


def _out(program: Program, entry: str, size: int, back: int) -> np.ndarray:
    """The second argument after a run; the first one counts from 1."""
    arrays = np.arange(1, size + 1, dtype=np.int32), np.full(back, -1, np.int32)
    return program.run(*arrays, entry=entry).outputs[1]


def test_by_dma_where_memory_is_shared(program: Program) -> None:
    assert np.array_equal(_out(program, "via_dma", 32, 32), np.arange(1, 33) + 110)
    assert "between_cons_buff_2" in program_text(program)


def program_text(program: Program) -> str:
    """The C++ of the program."""
    from aerie.virtual_npu.toolchain import emit

    return emit(MODULE).text


def test_initial_values_come_first(program: Program) -> None:
    want = [*range(1, 9), *[9] * 8, *range(51, 67)]
    assert np.array_equal(_out(program, "initial", 16, 32), want)


def test_dimensions_from_a_stream(program: Program) -> None:
    sent = np.arange(1, 17).reshape(2, 2, 4)  # objects, then what goes to every second place
    held = sent.transpose(0, 2, 1).reshape(2, 2, 4)
    assert np.array_equal(_out(program, "from_stream", 16, 16), held.transpose(0, 2, 1).reshape(-1))


def test_offsets_that_do_not_rise(program: Program) -> None:
    whole = np.arange(1, 49).reshape(2, 24)
    left, right = whole[:, 16:] + 1, whole[:, :8] + 2
    assert np.array_equal(_out(program, "crossed", 48, 32), np.concatenate([right, left], axis=1).reshape(-1))


def test_without_locks_nobody_waits(program: Program) -> None:
    assert np.array_equal(_out(program, "unlocked", 8, 8), np.zeros(8))
