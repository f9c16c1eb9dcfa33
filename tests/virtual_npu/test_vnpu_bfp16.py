# ruff: noqa: E501 - MLIR has long lines
"""Products of bf16 blocks through block floating point, against a model of it in numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.virtual_npu.bfp16_model import converted, product

BF16 = ml_dtypes.bfloat16
MOST = float(ml_dtypes.finfo(BF16).max)

MAPS = """
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
#bmk = affine_map<(b, m, n, k) -> (b, m, k)>
#bkn = affine_map<(b, m, n, k) -> (b, k, n)>
#bmn = affine_map<(b, m, n, k) -> (b, m, n)>
"""

CONTRACT = """
  func.func @{name}(%a: memref<{m}x{k}x{ab}>, %b: memref<{rows}x{columns}x{ab}>, %c: memref<{m}x{n}x{cd}>) {{
    %c0 = arith.constant 0 : index
    %x = vector.load %a[%c0, %c0] : memref<{m}x{k}x{ab}>, vector<{m}x{k}x{ab}>
    %y = vector.load %b[%c0, %c0] : memref<{rows}x{columns}x{ab}>, vector<{rows}x{columns}x{ab}>
    %z = vector.load %c[%c0, %c0] : memref<{m}x{n}x{cd}>, vector<{m}x{n}x{cd}>
    %p = vector.contract {{indexing_maps = [#mk, {map}, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>}} %x, %y, %z : vector<{m}x{k}x{ab}>, vector<{rows}x{columns}x{ab}> into vector<{m}x{n}x{cd}>
    vector.store %p, %c[%c0, %c0] : memref<{m}x{n}x{cd}>, vector<{m}x{n}x{cd}>
    return
  }}"""

# Upstream's GEMM has unit dimensions around its blocks.
UNIT = """
  func.func @unit(%a: memref<1x8x8xbf16>, %b: memref<1x8x8xbf16>, %c: memref<1x8x8xf32>) {
    %c0 = arith.constant 0 : index
    %x = vector.load %a[%c0, %c0, %c0] : memref<1x8x8xbf16>, vector<1x8x8xbf16>
    %y = vector.load %b[%c0, %c0, %c0] : memref<1x8x8xbf16>, vector<1x8x8xbf16>
    %z = vector.load %c[%c0, %c0, %c0] : memref<1x8x8xf32>, vector<1x8x8xf32>
    %p = vector.contract {indexing_maps = [#bmk, #bkn, #bmn], iterator_types = ["parallel", "parallel", "parallel", "reduction"], kind = #vector.kind<add>} %x, %y, %z : vector<1x8x8xbf16>, vector<1x8x8xbf16> into vector<1x8x8xf32>
    vector.store %p, %c[%c0, %c0, %c0] : memref<1x8x8xf32>, vector<1x8x8xf32>
    return
  }"""

MATMUL = """
  func.func @matmul(%a: memref<8x8xbf16>, %b: memref<8x8xbf16>, %c: memref<8x8xf32>) {
    linalg.generic {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : memref<8x8xbf16>, memref<8x8xbf16>) outs(%c : memref<8x8xf32>) {
    ^bb0(%x: bf16, %y: bf16, %z: f32):
      %u = arith.extf %x : bf16 to f32
      %v = arith.extf %y : bf16 to f32
      %p = arith.mulf %u, %v : f32
      %q = arith.addf %p, %z : f32
      linalg.yield %q : f32
    }
    return
  }"""


def contract(name, m=8, k=8, n=8, ab="bf16", cd="f32", transposed=False):
    rows, columns, map_ = (n, k, "#nk") if transposed else (k, n, "#kn")
    return CONTRACT.format(name=name, m=m, k=k, n=n, ab=ab, cd=cd, rows=rows, columns=columns, map=map_)


# Blocks that the compiler takes through bfp16, and those it does not.
BLOCKS: dict[str, dict[str, Any]] = {"full": {}, "half": {"m": 4}, "turned": {"transposed": True}}
EXACT: dict[str, dict[str, Any]] = {
    "narrow": {"n": 4},
    "small": {"m": 4, "n": 4},
    "deep": {"k": 16},
    "shallow": {"k": 4},
    "wide": {"n": 16},
    "floats": {"ab": "f32"},
    "rounded": {"cd": "bf16"},
}
TEXT = f"{MAPS}module {{{''.join(contract(name, **form) for name, form in {**BLOCKS, **EXACT}.items())}{UNIT}{MATMUL}\n}}"


@pytest.fixture(scope="module")
def bfp16(program):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_NUMERICS", "bfp16")
        return program(TEXT)


@pytest.fixture(scope="module")
def exact(program):
    return program(TEXT)


def operands(library, name, rng):
    def array(type_):
        dtype = {"bf16": BF16, "f32": np.float32}[type_.dtype]
        return rng.standard_normal(type_.shape).astype(dtype)

    return [array(type_) for type_ in library.entries[name].arguments]


def same_bits(got, want):
    np.testing.assert_array_equal(np.asarray(got).view(np.uint8), np.asarray(want).view(np.uint8))


@pytest.mark.parametrize("name", [*BLOCKS, "unit"])
def test_blocks_are_products_of_the_model(bfp16, run, name):
    rng = np.random.default_rng(1)
    for _ in range(20):
        a, b, c = operands(bfp16, name, rng)
        scale = np.exp2(rng.integers(-6, 7, a.shape))  # exponents differ within a block
        a = (a * scale).astype(BF16)
        got = run(bfp16, name, a, b, c)[2]
        left, right = a.reshape(-1, 8), b.reshape(8, 8)
        if name == "turned":
            right = right.T
        same_bits(got.reshape(-1, 8), product(left, right, c.reshape(-1, 8)))


@pytest.mark.parametrize("name", [*EXACT, "matmul"])
def test_other_products_stay_exact(bfp16, exact, run, name):
    arrays = operands(exact, name, np.random.default_rng(2))
    same_bits(run(bfp16, name, *arrays)[2], run(exact, name, *arrays)[2])


def test_exact_is_another_number(bfp16, exact, run):
    arrays = operands(exact, "full", np.random.default_rng(3))
    want = arrays[2] + arrays[0].astype(np.float32) @ arrays[1].astype(np.float32)
    np.testing.assert_allclose(run(exact, "full", *arrays)[2], want, rtol=1e-5, atol=1e-5)
    assert np.abs(run(bfp16, "full", *arrays)[2] - want).max() > 1e-3


def through_identity(library, run, row):
    """What bfp16 keeps of 8 numbers: a block times the identity."""
    a = np.zeros((8, 8), BF16)
    a[0] = row
    got = run(library, "full", a, np.eye(8, dtype=BF16), np.zeros((8, 8), np.float32))[2]
    return got[0]


# What a block becomes, in units of its step, where the model might be as wrong as the code.
SPECIAL = {
    "ties go to even": ([64, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.5], [64, 0, 2, 2, 0, -2, -2, 4]),
    "127.5 raises the exponent": ([127.5, 1, 3, 5, -5, -7, 126, 2], [128, 0, 4, 4, -4, -8, 126, 2]),
    "-127.5 fits": ([-127.5, 1, 0, 0, 0, 0, 0, 0], [-128, 1, 0, 0, 0, 0, 0, 0]),
    "a power of two sets the exponent": ([-64, 63.5, 63, 0.25, 0, 0, 0, 0], [-64, 64, 63, 0, 0, 0, 0, 0]),
    "nothing is nothing": ([0] * 8, [0] * 8),
    "minus nothing too": ([-0.0] * 8, [0] * 8),
}


@pytest.mark.parametrize("shift", [-80, 0, 60])
@pytest.mark.parametrize("case", SPECIAL)
def test_special_blocks(bfp16, run, case, shift):
    row, kept = (np.ldexp(np.array(numbers, float), shift) for numbers in SPECIAL[case])
    got = through_identity(bfp16, run, row.astype(BF16))
    np.testing.assert_array_equal(got, kept.astype(np.float32))


RANGE = {
    "large numbers": [MOST * 0.9, -MOST / 2, 1e36, 1, 0, 0, 0, 0],
    "the least normal numbers": [2.0**-126, -(2.0**-126) * 1.5, 2.0**-130, 0, 0, 0, 0, 0],
    "subnormal numbers": [2.0**-127, 2.0**-130, -(2.0**-132), 2.0**-133, 0, 0, 0, 0],
    "a wide range": [1e38, 1e-38, -1e10, 1, 0, 0, 0, 0],
}


@pytest.mark.parametrize("case", RANGE)
def test_the_ends_of_the_range(bfp16, run, case):
    row = np.array(RANGE[case], BF16)
    got = through_identity(bfp16, run, row)
    np.testing.assert_array_equal(got, converted(row, 0).astype(np.float32))


@pytest.mark.parametrize("sign", [1, -1])
def test_two_to_the_128_is_infinite(bfp16, run, sign):
    got = run(
        bfp16, "full", np.full((8, 8), sign * MOST, BF16), np.eye(8, dtype=BF16), np.zeros((8, 8), np.float32)
    )[2]
    assert np.isnan(got).all()  # infinity times the zeros of the identity
    got = run(
        bfp16, "full", np.full((8, 8), sign * MOST, BF16), np.ones((8, 8), BF16), np.zeros((8, 8), np.float32)
    )[2]
    assert (got == sign * np.inf).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_an_infinity_or_nan_makes_its_block_nan(bfp16, run, value):
    a, b = np.ones((8, 8), BF16), np.ones((8, 8), BF16)
    a[3, 5] = value
    got = run(bfp16, "full", a, b, np.zeros((8, 8), np.float32))[2]
    assert np.isnan(got[3]).all()
    assert (np.delete(got, 3, axis=0) == 8).all()
    got = run(bfp16, "full", b, a, np.zeros((8, 8), np.float32))[2]
    assert np.isnan(got[:, 5]).all()
    assert (np.delete(got, 5, axis=1) == 8).all()
