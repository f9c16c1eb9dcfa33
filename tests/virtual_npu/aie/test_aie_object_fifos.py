"""What comes out of designs with object FIFOs of the rarer forms."""

from __future__ import annotations

import numpy as np
import pytest

from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.program import Program
from aerie.virtual_npu.toolchain import emit
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
    assert "between_cons_buff_2" in emit(MODULE).text


def test_initial_values_come_first(program: Program) -> None:
    want = [*range(1, 9), *[9] * 8, *range(51, 67)]
    assert np.array_equal(_out(program, "initial", 16, 32), want)


def test_dimensions_from_a_stream(program: Program) -> None:
    # Words 0 1 2 3 4 5 6 7 are written to 0 2 4 6 1 3 5 7, and read from there as 0 4 1 5 2 6 3 7.
    memory = np.empty((2, 8), np.int32)
    memory[:, [0, 2, 4, 6, 1, 3, 5, 7]] = np.arange(1, 17).reshape(2, 8)
    want = memory[:, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(-1)
    assert np.array_equal(_out(program, "from_stream", 16, 16), want)


def test_without_locks_nobody_waits(program: Program) -> None:
    assert np.array_equal(_out(program, "unlocked", 8, 8), np.zeros(8))
