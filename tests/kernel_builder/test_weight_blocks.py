"""Weight blocks: where codes, scales and minima lie, what they stand for, and that packing loses nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie.kernel_builder.weight_blocks import GROUP, Q4, Q8, GroupedWeights, WeightBlock, unpack

SIZES = [(32, 256), (64, 512), (1, 1), (33, 257), (576, 576), (192, 1536), (5, 896)]


def _drawn(block: WeightBlock, rows: int, columns: int) -> GroupedWeights:
    rng = np.random.default_rng(rows * 1000 + columns)
    low, high = block.code_range
    dtype: Any = np.uint8 if block.bits == 4 else np.int8
    groups = rows, -(-columns // GROUP)
    minima = rng.standard_normal(groups).astype(ml_dtypes.bfloat16) if block.has_minima else None
    codes = rng.integers(low, high + 1, (rows, columns)).astype(dtype)
    return GroupedWeights(block, codes, rng.standard_normal(groups).astype(ml_dtypes.bfloat16), minima)


def test_blocks_have_the_sizes_that_are_published() -> None:
    assert (Q4.nbytes, Q8.nbytes) == (5120, 8704)


@pytest.mark.parametrize("block", [Q4, Q8], ids=lambda block: block.name)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_unpack_gives_what_pack_was_given(block: WeightBlock, rows: int, columns: int) -> None:
    weights = _drawn(block, rows, columns)
    packed = weights.pack()
    assert packed.shape == block.shape(rows, columns)
    back = unpack(block, packed, rows, columns)
    assert np.array_equal(back.codes, weights.codes)
    assert back.codes.dtype == weights.codes.dtype
    assert np.array_equal(back.scales.view(np.uint16), weights.scales.view(np.uint16))
    assert (back.minima is None) == (weights.minima is None)
    assert np.array_equal(back.to_bf16().view(np.uint16), weights.to_bf16().view(np.uint16))


def test_padding_is_zero() -> None:
    packed = _drawn(Q4, 5, 300).pack()
    whole = unpack(Q4, packed, 32, 512).to_bf16().astype(np.float32)
    assert not whole[5:].any()
    assert not whole[:, 320:].any()  # 300 columns end in a group that goes on to 320


def test_a_code_lies_where_the_block_says() -> None:
    """Row 21, column 70 of the second block across: plane 1, byte 2, its high nibble; group 2."""
    weights = GroupedWeights(
        Q4,
        np.zeros((32, 512), np.uint8),
        np.zeros((32, 16), ml_dtypes.bfloat16),
        np.zeros((32, 16), ml_dtypes.bfloat16),
    )
    weights.codes[21, 256 + 70] = 9
    weights.scales[21, 8 + 2] = 0.5
    assert weights.minima is not None
    weights.minima[21, 8 + 2] = -2.0
    packed = weights.pack()[0, 1]
    codes = packed[1024:].reshape(2, 256, 8)
    assert codes[1, 70, 2] == 9 << 4
    assert np.count_nonzero(codes) == 1
    groups = packed[:1024].view(ml_dtypes.bfloat16).reshape(2, 8, 32)
    assert groups[0, 2, 21] == 0.5
    assert groups[1, 2, 21] == -2.0
    assert weights.to_bf16()[21, 256 + 70] == 2.5


def test_a_product_is_not_rounded_before_its_minimum_is_added() -> None:
    """scale * code has 12 significant bits: rounded to bf16 before, the sum would be another."""
    scales, minima = np.array([[1.0078125]]), np.array([[-15.0]])
    weights = GroupedWeights(
        Q4,
        np.array([[15]], np.uint8),
        scales.astype(ml_dtypes.bfloat16),
        minima.astype(ml_dtypes.bfloat16),
    )
    assert weights.to_bf16()[0, 0] == 0.1171875
