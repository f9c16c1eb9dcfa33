"""The host AIE API with the CPU's own instructions (VNPU_FAST) gives the bits that it gives without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

SOURCE = Path(__file__).with_name("fast_paths.cc")


@pytest.fixture(scope="module")
def plain(build_cc: Any) -> Any:
    return build_cc(SOURCE)


@pytest.fixture(scope="module")
def fast(build_cc: Any) -> Any:
    return build_cc(SOURCE, {"VNPU_FAST": 1})


def every_kind_of_float() -> np.ndarray[Any, Any]:
    """f32 of every exponent and both signs, with ties, subnormal numbers, infinities and NaNs.

    32 of an exponent in a row, then all of them mixed.
    """
    rng = np.random.default_rng(7)
    exponents = np.arange(512, dtype=np.uint32).repeat(32) << 23
    fractions = rng.integers(0, 1 << 23, exponents.size, dtype=np.uint32)
    fractions[::8] &= 0x7F8000
    fractions[1::8] |= 0x8000
    fractions[::64] = 0
    values = (exponents | fractions).view(np.float32)
    return np.concatenate([values, rng.permutation(values)])


def bits(function: Any, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.zeros(values.size, bfloat16)
    function(values, out, values.size)
    return out.view(np.uint16)


@pytest.mark.parametrize("name", ["round_16_to_bf16", "round_32_to_bf16"])
def test_rounding_to_bf16(plain: Any, fast: Any, name: str) -> None:
    values = every_kind_of_float()
    np.testing.assert_array_equal(bits(getattr(fast, name), values), bits(getattr(plain, name), values))


@pytest.mark.parametrize("name", ["exp2_of_16", "exp2_of_32"])
def test_exp2(plain: Any, fast: Any, name: str) -> None:
    edges = np.array([-128, -127, -126.5, -126, -125.5, 127.5, 128, 129, np.nan, np.inf, -np.inf])
    near = np.float32(
        [np.nextafter(np.float32(edges), np.float32(to)) for to in (-1e9, 1e9)] + [edges]
    ).ravel()
    lone = np.tile(np.linspace(-30, 1, 32, dtype=np.float32), (near.size, 1))
    lone[:, 5] = near  # one lane outside, all others inside
    spread = np.linspace(-140, 140, 32 * 400, dtype=np.float32)
    values = np.concatenate([every_kind_of_float(), lone.ravel(), spread])
    np.testing.assert_array_equal(bits(getattr(fast, name), values), bits(getattr(plain, name), values))


def blocks(seed: int) -> tuple[np.ndarray[Any, Any], ...]:
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((8, 8)).astype(bfloat16) for _ in range(2))
    return a, b, rng.standard_normal((8, 8)).astype(np.float32)


def test_a_block_is_summed_in_the_order_of_its_halves(fast: Any) -> None:
    a, b, start = blocks(1)
    whole = start.copy()
    fast.block_8x8(a, b, whole)
    for columns in (slice(0, 4), slice(4, 8)):
        half = np.ascontiguousarray(start[:, columns])
        fast.block_8x4(a, np.ascontiguousarray(b[:, columns]), half)
        np.testing.assert_array_equal(half, whole[:, columns])


@pytest.mark.parametrize("seed", range(3))
def test_blocks_differ_from_sums_one_by_one_in_last_bits_alone(plain: Any, fast: Any, seed: int) -> None:
    a, b, start = blocks(seed)
    one_by_one, in_pairs = start.copy(), start.copy()
    plain.block_8x8(a, b, one_by_one)
    fast.block_8x8(a, b, in_pairs)
    np.testing.assert_allclose(in_pairs, one_by_one, rtol=0, atol=16 * 2.0**-22)
    if not fast.has_dots():
        np.testing.assert_array_equal(in_pairs, one_by_one)


def test_vectors_are_joined_in_order(plain: Any, fast: Any) -> None:
    values = np.arange(32, dtype=np.float32)
    for api in (plain, fast):
        four, two = np.zeros(32, np.float32), np.zeros(32, np.float32)
        api.join(values, four, two)
        np.testing.assert_array_equal(four, values)
        np.testing.assert_array_equal(two, values)
