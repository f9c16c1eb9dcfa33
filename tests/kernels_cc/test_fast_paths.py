"""The host AIE API with the CPU's own instructions (VNPU_FAST) gives the bits that it gives without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from aerie.common.errors import KnobError

SOURCE = Path(__file__).with_name("fast_paths.cc")

SETS = ("none", "x86-64-v3", "x86-64-v4")
"""Instruction sets without products of bf16 in pairs."""


@pytest.fixture(scope="module")
def plain(build_cc: Any) -> Any:
    return build_cc(SOURCE)


@pytest.fixture(scope="module")
def fast(build_cc: Any) -> Any:
    return build_cc(SOURCE, {"VNPU_FAST": 1})


@pytest.fixture(scope="module", params=SETS)
def of_a_set(request: Any, build_cc: Any) -> Any:
    """The same of one instruction set, where the CPU has it."""
    try:
        return build_cc(SOURCE, {"VNPU_FAST": 1}, request.param)
    except KnobError as error:
        pytest.skip(str(error))


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


def arguments_of_exp2() -> np.ndarray[Any, Any]:
    """f32 of every kind, and those around where results end to be normal numbers, alone among others."""
    edges = np.array([-128, -127, -126.5, -126, -125.5, 127.5, 128, 129, np.nan, np.inf, -np.inf])
    narrow = edges.astype(np.float32)
    near = np.concatenate([*(np.nextafter(narrow, np.float32(to)) for to in (-1e9, 1e9)), narrow])
    lone = np.tile(np.linspace(-30, 1, 32, dtype=np.float32), (near.size, 1))
    lone[:, 5] = near  # one lane outside, all others inside
    spread = np.linspace(-140, 140, 32 * 400, dtype=np.float32)
    return np.concatenate([every_kind_of_float(), lone.ravel(), spread])


@pytest.mark.parametrize("name", ["exp2_of_16", "exp2_of_32"])
def test_exp2(plain: Any, fast: Any, name: str) -> None:
    values = arguments_of_exp2()
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


def every_result(api: Any) -> list[np.ndarray[Any, Any]]:
    """What the functions of fast_paths.cc give, as bits."""
    floats = every_kind_of_float()
    results = [bits(getattr(api, f"round_{lanes}_to_bf16"), floats) for lanes in (16, 32)]
    results += [bits(getattr(api, f"exp2_of_{lanes}"), arguments_of_exp2()) for lanes in (16, 32)]
    a, b, sums = blocks(5)
    api.block_8x8(a, b, sums)
    turned = np.zeros_like(a)
    api.turn(a, turned)
    many = np.random.default_rng(6).standard_normal((2, 192)).astype(bfloat16)
    lanes, folded, chosen = np.zeros(64, np.float32), np.zeros(3, np.float32), np.zeros(64, np.float32)
    api.lanes_of_64(many[0], many[1], lanes, folded, chosen)
    return [*results, turned.view(np.uint16), *(x.view(np.uint32) for x in (sums, lanes, folded, chosen))]


def test_the_bits_are_the_same_on_every_instruction_set_that_sums_one_by_one(
    plain: Any, of_a_set: Any
) -> None:
    for ours, expected in zip(every_result(of_a_set), every_result(plain), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_lanes_are_turned_summed_and_chosen_as_numpy_does_it(plain: Any) -> None:
    a, _, _ = blocks(5)
    many = np.random.default_rng(6).standard_normal((2, 192)).astype(bfloat16)
    *_, turned, _, lanes, folded, chosen = every_result(plain)
    np.testing.assert_array_equal(turned, a.T.view(np.uint16))
    first, second, third = (many.astype(np.float32).prod(0)[i : i + 64] for i in (0, 64, 128))
    expected = first + second + third
    np.testing.assert_array_equal(lanes.view(np.float32), expected)
    found = folded.view(np.float32)
    np.testing.assert_allclose(found[0], expected.sum(), rtol=1e-5)
    assert (found[1], found[2]) == (expected.max(), expected[40:48].min())
    np.testing.assert_array_equal(chosen.view(np.float32), many[:, :64].max(0).astype(np.float32))
