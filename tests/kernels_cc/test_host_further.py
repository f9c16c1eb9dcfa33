"""What kernels of mlir-air call of the AIE API besides our own: against numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

BF16 = ml_dtypes.bfloat16


@pytest.fixture(scope="module")
def further(build_cc: Callable[..., Any]) -> Any:
    return build_cc(Path(__file__).with_name("further.cc"))


def test_exponentials_are_products_of_two_table_entries(further: Any) -> None:
    x = np.array([0, 1, -1, 0.5, 3.25, -7.125, 20, -20, 88, -87, 0.01, 2.75, -0.5, 6, 10, -3], BF16)
    out = np.zeros(16, np.float32)
    further.exponentials(x, out)
    fixed = np.rint(x.astype(np.float64) * 256).astype(np.int64)
    parts = (fixed >> 8, (fixed & 255) / 256)
    entries = [np.exp(part).astype(np.float32).astype(BF16).astype(np.float32) for part in parts]
    assert np.array_equal(out, entries[0] * entries[1])


def test_inverses_have_the_seven_bits_of_bf16(further: Any) -> None:
    x = np.linspace(0.3, 40, 16).astype(np.float32)
    out = np.zeros(16, BF16)
    further.inverse(x, out)
    assert np.allclose(out.astype(np.float32), 1 / x, rtol=2.0**-7)
    x[:] = 2.0 ** np.arange(-8, 8)
    further.inverse(x, out)
    assert np.array_equal(out.astype(np.float32), 1 / x)


@pytest.mark.parametrize(("defines", "piece"), [({"__AIE_ARCH__": 20}, 8), ({}, 16)], ids=["AIE2", "AIE2P"])
def test_a_table_lies_in_pieces_each_twice(build_cc: Callable[..., Any], defines: Any, piece: int) -> None:
    functions = build_cc(Path(__file__).with_name("further.cc"), defines)
    values = np.repeat(np.arange(64, dtype=np.int16).reshape(-1, 1, piece), 2, axis=1)
    index, out = np.arange(0, 64, 4, dtype=np.int16), np.zeros(16, np.int16)
    functions.looked_up(values, index, out)
    assert out.tolist() == index.tolist()


def test_a_look_up_outside_of_a_table_gives_its_end(further: Any) -> None:
    x = np.array([-100, -7, -6, 0, 1, 2, 3, 100, 504, 505, 506, 507, 600, 9, 8, 7], np.int16)
    out = np.zeros(16, BF16)
    further.saturated(x, out)
    index = np.clip((x >> 1) + 3, 0, 255)
    assert np.array_equal(out, np.exp(index / 256).astype(np.float32).astype(BF16))


def blocks_of(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(biased exponents, mantissas) of rows of 8 numbers; a mantissa of 128 takes the next exponent."""
    exponents = np.floor(np.log2(np.abs(values).max(1))).astype(int)
    steps = values / 2.0 ** (exponents - 6)[:, None]
    exponents += np.rint(steps).max(1) > 127
    return exponents + 127, np.rint(values / 2.0 ** (exponents - 6)[:, None]).astype(int)


def test_block_floats_are_rounded_packed_and_multiplied(further: Any) -> None:
    rng = np.random.default_rng(3)
    factors = [rng.normal(size=(8, 8)).astype(np.float32) * scale for scale in (1, 37)]
    factors[0][2] = [1.999, 0, -1, 0.5, 0.25, 0, 0, 0]
    packed = [np.zeros(72, np.uint8) for _ in factors]
    numbers = []
    for values, bytes_ in zip(factors, packed, strict=True):
        further.to_blocks(values, bytes_)
        exponents, mantissas = blocks_of(values)
        assert np.array_equal(bytes_.reshape(8, 9)[:, 0], exponents)
        assert np.array_equal(bytes_.reshape(8, 9)[:, 1:].view(np.int8), mantissas)
        numbers.append(mantissas * 2.0 ** (exponents - 133)[:, None])
    c = rng.normal(size=(8, 8)).astype(np.float32)
    expected = c + (numbers[0] @ numbers[1].T).astype(np.float32)
    further.block_products(*packed, c)
    assert np.array_equal(c, expected)


def test_lanes_of_4_bits_are_unpacked_with_either_sign(further: Any) -> None:
    packed = np.arange(16, dtype=np.uint8) * 17 % 251
    signed, unsigned = np.zeros(32, np.int8), np.zeros(32, np.int8)
    further.unpack(packed, signed, unsigned)
    lanes = np.stack([packed & 15, packed >> 4], 1).ravel().astype(np.int8)
    assert np.array_equal(unsigned, lanes)
    assert np.array_equal(signed, np.where(lanes > 7, lanes - 16, lanes))


def test_shuffles_transpose_one_matrix_after_the_other(further: Any) -> None:
    lanes, out = np.arange(32, dtype=np.int16), np.zeros(32, np.int16)
    further.turn(lanes, out)
    turned = lanes.reshape(2, 8, 2).transpose(0, 2, 1).reshape(4, 8)
    assert np.array_equal(out, turned.T.ravel())


def test_products_with_coefficients_are_summed(further: Any) -> None:
    rng = np.random.default_rng(5)
    c, data = rng.integers(-50, 50, 16).astype(np.int16), rng.integers(-50, 50, 32).astype(np.int16)
    out = np.zeros(16, np.int32)
    further.sum_of_products(c, data, out)
    x, y = data.astype(np.int32).reshape(2, 16)
    assert np.array_equal(out, c[2] * x + c[3] * y + c[0] * x)


def test_a_block_of_one_row_begins_again_where_it_has_to(further: Any) -> None:
    rng = np.random.default_rng(7)
    a, b = rng.integers(-9, 9, (1, 16)).astype(np.int8), rng.integers(-9, 9, (16, 8)).astype(np.int8)
    out = np.zeros((1, 8), np.int32)
    further.row_of_blocks(a, b, out)
    assert np.array_equal(out, 2 * (a.astype(np.int32) @ b.astype(np.int32)))
