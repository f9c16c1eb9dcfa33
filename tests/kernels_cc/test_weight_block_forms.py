"""Blocks of quantised weights by each instruction set: the bits that vectors of the API give, by block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from aerie.common.errors import KnobError
from aerie.kernel_builder.weight_blocks import WEIGHT_BLOCKS
from tests.kernels_cc.host_compiler import KERNELS

SOURCE, ROWS, COLUMNS, UNPACKED = KERNELS / "weight_blocks.cc", 32, 256, 64
SCALES = {
    "usual": 0x3880,
    "zero": 0,
    "subnormal": 0x0001,
    "smallest": 0x0400,
    "small": 0x0800,
    "great": 0x7280,
    "greatest": 0x7C00,
}
"""The least bf16 of a block's scales and minima; others follow, of both signs."""


def one_block(kind: str, least: int, seed: int) -> np.ndarray[Any, Any]:
    """Bytes of a block with every code, and scales of 256 neighbouring numbers."""
    rng, block = np.random.default_rng(seed), WEIGHT_BLOCKS[kind]
    codes = rng.integers(0, 256, ROWS * COLUMNS * block.bits // 8, dtype=np.uint8)
    codes[::5] = 0
    numbers = (least + rng.integers(0, 256 if least else 1, (block.nbytes - codes.size) // 2)).astype(
        np.uint16
    )
    numbers |= rng.integers(0, 2, numbers.size, dtype=np.uint16) << 15
    return np.concatenate([numbers.view(np.uint8), codes])


def some_x(seed: int, scale: float) -> np.ndarray[Any, Any]:
    x = (np.random.default_rng(seed).standard_normal(2 * COLUMNS) * scale).astype(bfloat16)
    x[3::7] = 0
    return x


def results(api: Any, blocks: np.ndarray[Any, Any], x: np.ndarray[Any, Any], k: int) -> list[bytes]:
    """The product of two blocks side by side, and the first block's weights."""
    sums, y = np.full((ROWS, 64), np.nan, np.float32), np.zeros(ROWS, bfloat16)
    api.matvec_blocks_f32(2, 0, k, blocks, x, sums)
    api.matvec_block_rows_bf16(sums, y)
    made = [np.zeros(ROWS * UNPACKED, bfloat16) for _ in range(0, COLUMNS, UNPACKED)]
    for number, to in enumerate(made):
        api.unpack_blocks_bf16(number * UNPACKED, blocks, to)
    return [each.tobytes() for each in (y, *made)]


@pytest.mark.parametrize("march", ["x86-64-v3", "x86-64-v4", "native"])
@pytest.mark.parametrize("kind", ["q4", "q8"])
def test_forms_give_the_same_bits(build_cc: Any, kind: str, march: str) -> None:
    bits = {"WEIGHT_BITS": WEIGHT_BLOCKS[kind].bits}
    plain = build_cc(SOURCE, bits)
    try:
        fast = build_cc(SOURCE, {**bits, "VNPU_FAST": 1}, march)
    except KnobError as error:
        pytest.skip(str(error))
    for number, least in enumerate(SCALES.values()):
        blocks = np.concatenate([one_block(kind, each, number) for each in (SCALES["usual"], least)])
        for k, scale in ((512, 1), (320, 1), (512, 1e-20), (512, 1e-38)):
            x = some_x(number, scale)
            for pair in (blocks, np.roll(blocks, blocks.size // 2)):
                assert results(fast, pair, x, k) == results(plain, pair, x, k), (least, k, scale)
