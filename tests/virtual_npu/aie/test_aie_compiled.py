"""What the compiler makes of AIR programs of ours gives their bits, before routing and after it.

The modules in compiled/ were made from each folder's source.mlir by mlir-air e972f294 and mlir-aie 7e00b579.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aerie.kernel_builder.spec import Array
from aerie.kernel_builder.weight_blocks import random_weight
from aerie.virtual_npu.arrays import random_arrays
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.program import Program, Result

FOLDER = Path(__file__).parent / "compiled"
STAGES = sorted(path.relative_to(FOLDER) for path in FOLDER.glob("*/[0-9]_*.mlir"))


def _run(path: Path, seed: int) -> Result:
    program = Program.from_file(path, options=BuildOptions())
    entry = list(program.library.entries.values())[-1]
    arrays = [_as_blocks(array, seed) for array in random_arrays(entry, seed)]
    return program.run(*arrays, entry=entry.name)


def _as_blocks(array: Array, seed: int) -> Array:
    """Blocks of numbers in the place of random bytes, whose scales would be NaN."""
    if array.dtype != np.int8:
        return array
    return random_weight({"weight": "q4"}, np.random.default_rng(seed), 64, 64).view(np.int8)


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_bits_of_its_source(stage: Path) -> None:
    path = FOLDER / stage
    want, got = _run(path.parent / "source.mlir", 7), _run(path, 7)
    assert all(np.isfinite(each).all() for each in want.outputs)
    for one, other in zip(want.outputs, got.outputs, strict=True):
        assert np.array_equal(one.view(np.uint8), other.view(np.uint8))
