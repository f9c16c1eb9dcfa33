# ruff: noqa: E501 - MLIR has long lines
"""linalg's named operations on memrefs against numpy: one program for all, element types mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie import virtual_npu

BF16 = ml_dtypes.bfloat16
NUMPY = {
    "f32": np.float32, "bf16": BF16, "f16": np.float16, "i8": np.int8, "i16": np.int16, "i32": np.int32,
    "i64": np.int64, "ui8": np.uint8, "ui16": np.uint16,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """An operation on inputs, and what it makes of the output's old contents."""

    operation: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    output: tuple[str, tuple[int, ...]]
    reference: Callable[..., np.ndarray]
    attributes: str = ""


def product(subscripts: str) -> Callable[..., np.ndarray]:
    """The sum of products, added to the output, in float64 or int64."""

    def apply(*arrays: np.ndarray) -> np.ndarray:
        *inputs, out = arrays
        wide = np.int64 if np.issubdtype(out.dtype, np.integer) else np.float64
        return np.einsum(subscripts, *[a.astype(wide) for a in inputs]) + out

    return apply


def windows(
    image: np.ndarray, kernel: tuple[int, ...], axes: tuple[int, ...], stride: int, dilation: int = 1
):
    """Every window of an image: the window's dimensions come last."""
    reach = tuple((extent - 1) * dilation + 1 for extent in kernel)
    found = np.lib.stride_tricks.sliding_window_view(image, reach, axes)
    for axis in axes:
        found = found.swapaxes(0, axis)[::stride].swapaxes(0, axis)
    inner: tuple[Any, ...] = (..., *(slice(None, None, dilation) for _ in kernel))
    return found[inner]


def conv_nchw(image: np.ndarray, kernel: np.ndarray, out: np.ndarray) -> np.ndarray:
    return product("nchwyx,fcyx->nfhw")(windows(image, kernel.shape[2:], (2, 3), 2), kernel, out)


def conv_nhwc(image: np.ndarray, kernel: np.ndarray, out: np.ndarray) -> np.ndarray:
    return product("nhwcyx,yxcf->nhwf")(windows(image, kernel.shape[:2], (1, 2), 1, 2), kernel, out)


def pool(fold: Callable[..., np.ndarray], combine: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda image, window, out: combine(
        fold(windows(image, window.shape, (1, 2), 2), axis=(-2, -1)), out
    )


def attributes(stride: int, dilation: int, count: int) -> str:
    return f"{{strides = dense<{stride}> : tensor<{count}xi64>, dilations = dense<{dilation}> : tensor<{count}xi64>}}"


M, N, K, B = 5, 6, 7, 3
CASES = {
    "matmul_f32": Case("matmul", (("f32", (M, K)), ("f32", (K, N))), ("f32", (M, N)), product("mk,kn->mn")),
    "matmul_bf16_f32": Case("matmul", (("bf16", (M, K)), ("bf16", (K, N))), ("f32", (M, N)), product("mk,kn->mn")),
    "matmul_f16_f32": Case("matmul", (("f16", (M, K)), ("f16", (K, N))), ("f32", (M, N)), product("mk,kn->mn")),
    "matmul_i8_i32": Case("matmul", (("i8", (M, K)), ("i8", (K, N))), ("i32", (M, N)), product("mk,kn->mn")),
    "matmul_i16_i64": Case("matmul", (("i16", (M, K)), ("i16", (K, N))), ("i64", (M, N)), product("mk,kn->mn")),
    "matmul_unsigned": Case(
        "matmul", (("i8", (M, K)), ("i8", (K, N))), ("i32", (M, N)),
        lambda a, b, c: product("mk,kn->mn")(a.view(np.uint8), b.view(np.uint8), c),
        "{cast = #linalg.type_fn<cast_unsigned>}",
    ),
    "matmul_ui8_i32": Case("matmul", (("ui8", (M, K)), ("ui8", (K, N))), ("i32", (M, N)), product("mk,kn->mn")),
    "matmul_ui16_f32": Case("matmul", (("ui16", (M, K)), ("ui16", (K, N))), ("f32", (M, N)), product("mk,kn->mn")),
    "matmul_transposed": Case(
        "matmul", (("f32", (K, M)), ("f32", (K, N))), ("f32", (M, N)), product("km,kn->mn"),
        "indexing_maps = [affine_map<(m, n, k) -> (k, m)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>]",
    ),
    "transpose_a": Case("matmul_transpose_a", (("f32", (K, M)), ("f32", (K, N))), ("f32", (M, N)), product("km,kn->mn")),
    "transpose_b": Case("matmul_transpose_b", (("i16", (M, K)), ("i16", (N, K))), ("i32", (M, N)), product("mk,nk->mn")),
    "matvec": Case("matvec", (("bf16", (M, K)), ("bf16", (K,))), ("f32", (M,)), product("mk,k->m")),
    "vecmat": Case("vecmat", (("i32", (K,)), ("i32", (K, N))), ("i32", (N,)), product("k,kn->n")),
    "dot": Case("dot", (("f32", (K,)), ("f32", (K,))), ("f32", ()), product("k,k->")),
    "batch_matmul": Case("batch_matmul", (("bf16", (B, M, K)), ("bf16", (B, K, N))), ("f32", (B, M, N)), product("bmk,bkn->bmn")),
    "batch_matvec": Case("batch_matvec", (("f32", (B, M, K)), ("f32", (B, K))), ("f32", (B, M)), product("bmk,bk->bm")),
    "batch_vecmat": Case("batch_vecmat", (("f32", (B, K)), ("f32", (B, K, N))), ("f32", (B, N)), product("bk,bkn->bn")),
    "batch_reduce": Case("batch_reduce_matmul", (("f32", (B, M, K)), ("f32", (B, K, N))), ("f32", (M, N)), product("bmk,bkn->mn")),
    "mmt4d": Case("mmt4d", (("i8", (2, 3, 4, 5)), ("i8", (3, 3, 2, 5))), ("i32", (2, 3, 4, 2)), product("mkac,nkbc->mnab")),
    "conv_1d": Case(
        "conv_1d", (("f32", (10,)), ("f32", (3,))), ("f32", (8,)),
        lambda x, k, out: product("wx,x->w")(windows(x, (3,), (0,), 1), k, out),
    ),
    "conv_nchw": Case(
        "conv_2d_nchw_fchw", (("bf16", (2, 3, 9, 9)), ("bf16", (4, 3, 3, 3))), ("f32", (2, 4, 4, 4)), conv_nchw,
        attributes(2, 1, 2),
    ),
    "conv_nhwc": Case(
        "conv_2d_nhwc_hwcf", (("i8", (1, 9, 9, 3)), ("i8", (3, 3, 3, 4))), ("i32", (1, 5, 5, 4)), conv_nhwc,
        attributes(1, 2, 2),
    ),
    "depthwise": Case(
        "depthwise_conv_2d_nhwc_hwc", (("f32", (1, 6, 6, 4)), ("f32", (3, 3, 4))), ("f32", (1, 4, 4, 4)),
        lambda x, k, out: product("nhwcyx,yxc->nhwc")(windows(x, (3, 3), (1, 2), 1), k, out),
    ),
    "pool_max": Case(
        "pooling_nhwc_max", (("f32", (1, 8, 8, 3)), ("f32", (2, 2))), ("f32", (1, 4, 4, 3)), pool(np.max, np.maximum),
        attributes(2, 1, 2),
    ),
    "pool_sum": Case(
        "pooling_nhwc_sum", (("i32", (1, 8, 8, 3)), ("i32", (2, 2))), ("i32", (1, 4, 4, 3)), pool(np.sum, np.add),
        attributes(2, 1, 2),
    ),
    "pool_min_unsigned": Case(
        "pooling_nhwc_min_unsigned", (("i8", (1, 8, 8, 3)), ("i8", (2, 2))), ("i8", (1, 4, 4, 3)),
        lambda x, w, out: pool(np.min, np.minimum)(x.view(np.uint8), w, out.view(np.uint8)).view(np.int8),
        attributes(2, 1, 2),
    ),
    "tanh": Case("tanh", (("f32", (4, 5)),), ("f32", (4, 5)), lambda a, _: np.tanh(a)),
    "square": Case("square", (("i32", (4, 5)),), ("i32", (4, 5)), lambda a, _: a * a),
    "reciprocal": Case("reciprocal", (("f32", (4, 5)),), ("f32", (4, 5)), lambda a, _: 1 / a),
    "negf": Case("negf", (("bf16", (4, 5)),), ("bf16", (4, 5)), lambda a, _: -a),
    "abs": Case("abs", (("f16", (4, 5)),), ("f16", (4, 5)), lambda a, _: np.abs(a)),
    "round": Case("round", (("f32", (4, 5)),), ("f32", (4, 5)), lambda a, _: np.trunc(a + np.copysign(0.5, a))),
    "div": Case("div", (("f32", (4, 5)), ("f32", (4, 5))), ("f32", (4, 5)), lambda a, b, _: a / b),
    "div_into_f32": Case(
        "div", (("bf16", (4, 5)), ("bf16", (4, 5))), ("f32", (4, 5)),
        lambda a, b, _: a.astype(np.float32) / b.astype(np.float32),
    ),
}  # fmt: skip


def memref(type_: tuple[str, tuple[int, ...]]) -> str:
    return f"memref<{''.join(f'{extent}x' for extent in type_[1])}{type_[0]}>"


def function(name: str, case: Case) -> str:
    operands = [*case.inputs, case.output]
    arguments = ", ".join(f"%a{n}: {memref(type_)}" for n, type_ in enumerate(operands))
    names = ", ".join(f"%a{n}" for n in range(len(case.inputs)))
    types = ", ".join(map(memref, case.inputs))
    return (
        f"func.func @{name}({arguments}) {{\n  linalg.{case.operation} {case.attributes} ins({names} : {types}) "
        f"outs(%a{len(case.inputs)} : {memref(case.output)})\n  return\n}}"
    )


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "checked"])
def library(program, request):
    return program(
        "\n".join(function(name, case) for name, case in CASES.items()),
        options=virtual_npu.BuildOptions(checks=request.param),
    )


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind = np.dtype(NUMPY[dtype])
    if np.issubdtype(kind, np.integer):
        return (
            rng.integers(-100, 100, shape).astype(kind)
            if dtype != "ui16"
            else rng.integers(0, 60000, shape).astype(kind)
        )
    return rng.standard_normal(shape).astype(kind)


@pytest.mark.parametrize("name", CASES)
def test_operation(library, run, name):
    case, rng = CASES[name], np.random.default_rng(len(name))
    arrays = [values(rng, *type_) for type_ in (*case.inputs, case.output)]
    want = case.reference(*arrays)
    got = run(library, name, *arrays)[-1]
    if np.issubdtype(got.dtype, np.integer):
        np.testing.assert_array_equal(got, np.asarray(want).astype(got.dtype))
    else:
        np.testing.assert_allclose(got.astype(np.float64), np.asarray(want, np.float64), rtol=1e-5, atol=1e-5)


FORMS = """
func.func @two_sums(%x: memref<4x8xi32>, %y: memref<4x8xi32>, %a: memref<4xi32>, %b: memref<4xi32>) {
  linalg.reduce ins(%x, %y : memref<4x8xi32>, memref<4x8xi32>) outs(%a, %b : memref<4xi32>, memref<4xi32>) dimensions = [1]
    (%i: i32, %j: i32, %p: i32, %q: i32) {
      %s = arith.addi %i, %p : i32
      %m = arith.maxsi %j, %q : i32
      linalg.yield %s, %m : i32, i32
    }
  return
}
func.func @short(%x: memref<4x8xf32>, %a: memref<8xf32>, %y: memref<4x8xf32>, %z: memref<4x8xf32>) {
  linalg.reduce { arith.subf } ins(%x : memref<4x8xf32>) outs(%a : memref<8xf32>) dimensions = [0]
  linalg.map { arith.subf } ins(%x, %y : memref<4x8xf32>, memref<4x8xf32>) outs(%z : memref<4x8xf32>)
  return
}
func.func @map(%x: memref<4x8xf32>, %y: memref<4x8xf32>) {
  linalg.map ins(%x : memref<4x8xf32>) outs(%y : memref<4x8xf32>) (%v: f32, %old: f32) {
    %n = arith.negf %v : f32
    %s = arith.addf %n, %old : f32
    linalg.yield %s : f32
  }
  return
}
func.func @broadcast(%x: memref<4xf32>, %y: memref<3x4x2xf32>) {
  linalg.broadcast ins(%x : memref<4xf32>) outs(%y : memref<3x4x2xf32>) dimensions = [0, 2]
  return
}
func.func @strided(%x: memref<8x8xbf16>, %y: memref<8x8xbf16>, %z: memref<8x8xf32>) {
  %a = memref.subview %x[1, 2] [3, 3] [2, 2] : memref<8x8xbf16> to memref<3x3xbf16, strided<[16, 2], offset: 10>>
  %b = memref.subview %y[0, 1] [3, 4] [1, 1] : memref<8x8xbf16> to memref<3x4xbf16, strided<[8, 1], offset: 1>>
  %c = memref.subview %z[2, 0] [3, 4] [2, 2] : memref<8x8xf32> to memref<3x4xf32, strided<[16, 2], offset: 16>>
  linalg.matmul ins(%a, %b : memref<3x3xbf16, strided<[16, 2], offset: 10>>, memref<3x4xbf16, strided<[8, 1], offset: 1>>)
    outs(%c : memref<3x4xf32, strided<[16, 2], offset: 16>>)
  return
}
#window = affine_map<(d0, d1) -> (d0 + d1)>
#kernel = affine_map<(d0, d1) -> (d1)>
#out = affine_map<(d0, d1) -> (d0)>
func.func @window(%x: memref<10xf32>, %k: memref<3xf32>, %y: memref<8xf32>) {
  linalg.generic {indexing_maps = [#window, #kernel, #out], iterator_types = ["parallel", "reduction"]}
    ins(%x, %k : memref<10xf32>, memref<3xf32>) outs(%y : memref<8xf32>) {
    ^bb0(%a: f32, %b: f32, %c: f32):
      %p = arith.mulf %a, %b : f32
      %s = arith.addf %c, %p : f32
      linalg.yield %s : f32
    }
  return
}
func.func @pack(%x: memref<8x12xi32>, %p: memref<3x2x4x4xi32>, %q: memref<2x3x4x4xi32>, %y: memref<8x12xi32>) {
  linalg.pack %x outer_dims_perm = [1, 0] inner_dims_pos = [0, 1] inner_tiles = [4, 4] into %p : memref<8x12xi32> -> memref<3x2x4x4xi32>
  linalg.pack %x inner_dims_pos = [1, 0] inner_tiles = [4, 4] into %q : memref<8x12xi32> -> memref<2x3x4x4xi32>
  linalg.unpack %p outer_dims_perm = [1, 0] inner_dims_pos = [0, 1] inner_tiles = [4, 4] into %y : memref<3x2x4x4xi32> -> memref<8x12xi32>
  return
}
func.func @padded(%x: memref<7x5xf32>, %p: memref<2x2x4x4xf32>, %y: memref<7x5xf32>) {
  %zero = arith.constant -1.0 : f32
  linalg.pack %x padding_value(%zero : f32) inner_dims_pos = [0, 1] inner_tiles = [4, 4] into %p : memref<7x5xf32> -> memref<2x2x4x4xf32>
  linalg.unpack %p inner_dims_pos = [0, 1] inner_tiles = [4, 4] into %y : memref<2x2x4x4xf32> -> memref<7x5xf32>
  return
}
"""


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "checked"])
def forms(program, request):
    return program(FORMS, options=virtual_npu.BuildOptions(checks=request.param))


def test_reduce_of_two_operands(forms, run):
    rng = np.random.default_rng(1)
    x, y = rng.integers(-9, 9, (2, 4, 8)).astype(np.int32)
    a, b = np.arange(4, dtype=np.int32), np.full(4, -3, np.int32)
    got = run(forms, "two_sums", x, y, a, b)
    np.testing.assert_array_equal(got[2], x.sum(1) + a)
    np.testing.assert_array_equal(got[3], np.maximum(y.max(1), b))


def test_bodies_of_one_operation(forms, run):
    """A short body of reduce takes the output first, one of map the inputs in order."""
    rng = np.random.default_rng(2)
    x, y = rng.integers(-9, 9, (2, 4, 8)).astype(np.float32)
    a = np.ones(8, np.float32)
    got = run(forms, "short", x, a, y, np.zeros((4, 8), np.float32))
    np.testing.assert_array_equal(got[1], a - x.sum(0))
    np.testing.assert_array_equal(got[3], x - y)
    np.testing.assert_array_equal(run(forms, "map", x, y)[1], y - x)


def test_broadcast(forms, run):
    x = np.arange(4, dtype=np.float32)
    got = run(forms, "broadcast", x, np.zeros((3, 4, 2), np.float32))[1]
    np.testing.assert_array_equal(got, np.broadcast_to(x[None, :, None], (3, 4, 2)))


def test_matmul_of_strided_views(forms, run):
    rng = np.random.default_rng(3)
    x, y = rng.integers(-4, 4, (2, 8, 8)).astype(BF16)
    z = np.full((8, 8), 0.5, np.float32)
    want = z.copy()
    want[2:8:2, ::2] += x[1:7:2, 2:8:2].astype(np.float32) @ y[:3, 1:5].astype(np.float32)
    np.testing.assert_array_equal(run(forms, "strided", x, y, z)[2], want)


def test_generic_over_windows(forms, run):
    x, k = np.arange(10, dtype=np.float32), np.array([1, 2, 4], np.float32)
    got = run(forms, "window", x, k, np.zeros(8, np.float32))[2]
    np.testing.assert_array_equal(got, np.correlate(x, k, "valid"))


def test_pack_and_unpack(forms, run):
    x = np.arange(96, dtype=np.int32).reshape(8, 12)
    tiles = x.reshape(2, 4, 3, 4)
    got = run(forms, "pack", x, *(np.zeros(s, np.int32) for s in ((3, 2, 4, 4), (2, 3, 4, 4), (8, 12))))
    np.testing.assert_array_equal(got[1], tiles.transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(got[2], tiles.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(got[3], x)


def test_pack_pads_what_the_tiles_reach_beyond(forms, run):
    x = np.arange(35, dtype=np.float32).reshape(7, 5)
    got = run(forms, "padded", x, np.zeros((2, 2, 4, 4), np.float32), np.zeros((7, 5), np.float32))
    want = np.full((8, 8), -1, np.float32)
    want[:7, :5] = x
    np.testing.assert_array_equal(got[1], want.reshape(2, 4, 2, 4).transpose(0, 2, 1, 3))
    np.testing.assert_array_equal(got[2], x)
