# ruff: noqa: E501 - MLIR has long lines
"""How f32 becomes bf16: to nearest even, or as the mode register of the core says, which starts with floor."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

BF16 = ml_dtypes.bfloat16

NARROWINGS = """
#id = affine_map<(d0) -> (d0)>
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
module {
  func.func @scalars(%x: memref<24xf32>, %y: memref<24xbf16>) {
    scf.for %i = %c0 to %c24 step %c1 {
      %v = memref.load %x[%i] : memref<24xf32>
      %n = arith.truncf %v : f32 to bf16
      memref.store %n, %y[%i] : memref<24xbf16>
    }
    return
  }
  func.func @vectors(%x: memref<24xf32>, %y: memref<24xbf16>) {
    %v = vector.load %x[%c0] : memref<24xf32>, vector<24xf32>
    %n = arith.truncf %v : vector<24xf32> to vector<24xbf16>
    vector.store %n, %y[%c0] : memref<24xbf16>, vector<24xbf16>
    return
  }
  func.func @generic(%x: memref<24xf32>, %y: memref<24xbf16>) {
    linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%x : memref<24xf32>) outs(%y : memref<24xbf16>) {
    ^bb0(%a: f32, %b: bf16):
      %n = arith.truncf %a : f32 to bf16
      linalg.yield %n : bf16
    }
    return
  }
  func.func @halves(%x: memref<24xf32>, %y: memref<24xf16>) {
    %v = vector.load %x[%c0] : memref<24xf32>, vector<24xf32>
    %n = arith.truncf %v : vector<24xf32> to vector<24xf16>
    vector.store %n, %y[%c0] : memref<24xf16>, vector<24xf16>
    return
  }
  func.func @sums(%x: memref<24xbf16>, %y: memref<24xbf16>, %z: memref<24xbf16>) {
    %v = vector.load %x[%c0] : memref<24xbf16>, vector<24xbf16>
    %w = vector.load %y[%c0] : memref<24xbf16>, vector<24xbf16>
    %s = arith.addf %v, %w : vector<24xbf16>
    vector.store %s, %z[%c0] : memref<24xbf16>, vector<24xbf16>
    return
  }
}
"""


def floor_bf16(x):
    """f32 to bf16 towards minus infinity; a NaN stays one."""
    bits = x.astype(np.float32).view(np.uint32)
    up = ((bits & 0xFFFF) != 0) & (bits >> 31 == 1)
    down = ((bits >> 16) + up).astype(np.uint16).view(BF16)
    return np.where(np.isnan(x), np.array(np.nan, BF16), down)


def nearest_bf16(x):
    return x.astype(BF16)


LEAST, MOST = np.float32(2.0**-149), np.finfo(np.float32).max
NUMBERS = np.array(
    [
        0.0, -0.0, 1.0, -1.0, 1 + 2**-9, -1 - 2**-9, 1 + 2**-8, -1 - 2**-8, 1 + 3 * 2**-8, -1 - 3 * 2**-8,
        LEAST, -LEAST, MOST, -MOST, np.inf, -np.inf, np.nan, 3.14159, -3.14159, 1e-3, -1e-3, 65504.0, -65519.0, 0.1,
    ],
    np.float32,
)  # fmt: skip


@pytest.fixture(scope="module", params=["conv_even", "floor"])
def library(request, program):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_ROUNDING", request.param)
        return program(NARROWINGS), {"conv_even": nearest_bf16, "floor": floor_bf16}[request.param]


def same(got, want):
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    number = ~np.isnan(want)
    np.testing.assert_array_equal(got[number].view(np.uint16), want[number].view(np.uint16))


@pytest.mark.parametrize("entry", ["scalars", "vectors", "generic"])
def test_every_narrowing_rounds_by_the_option(library, run, entry):
    built, rounded = library
    same(run(built, entry, NUMBERS, np.zeros(24, BF16))[1], rounded(NUMBERS))


def test_arithmetic_on_bf16_rounds_by_the_option(library, run):
    built, rounded = library
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y = (rng.standard_normal(24).astype(BF16) for _ in range(2))
        same(run(built, "sums", x, y, x)[2], rounded(x.astype(np.float32) + y.astype(np.float32)))


def test_f16_rounds_to_nearest_even_always(library, run):
    got = run(library[0], "halves", NUMBERS, np.zeros(24, np.float16))[1]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, NUMBERS.astype(np.float16))


# ---- the register of a core ----

SOURCE = """
#include <aie_api/aie.hpp>
extern "C" void even(int32_t on) {
  if (on) aie::set_rounding(aie::rounding_mode::conv_even);
}
extern "C" void narrow(float *x, bfloat16 *y) {
  aie::store_v(y, aie::accum<accfloat, 8>(aie::load_v<8>(x)).to_vector<bfloat16>());
}
"""

# Every tile rounds 8 numbers twice: in its own code, and in a kernel. Tiles of column 1 call one that sets conv_even.
TILE = """
          %t = memref.alloc() : memref<8xf32, 2>
          %u = memref.alloc() : memref<8xbf16, 2>
          %w = memref.alloc() : memref<8xbf16, 2>
          {get}
          {first}
          %v = vector.load %t[%c0] : memref<8xf32, 2>, vector<8xf32>
          %n = arith.truncf %v : vector<8xf32> to vector<8xbf16>
          vector.store %n, %u[%c0] : memref<8xbf16, 2>, vector<8xbf16>
          {second}
          air.dma_memcpy_nd (%hb[%tx, %c0] [%c1, %c8] [%c8, %c1], %u[] [] []) : (memref<2x8xbf16>, memref<8xbf16, 2>)
          air.dma_memcpy_nd (%hc[%tx, %c0] [%c1, %c8] [%c8, %c1], %w[] [] []) : (memref<2x8xbf16>, memref<8xbf16, 2>)"""

CALLS = {
    "first": "%on = arith.index_cast %tx : index to i32\n          func.call @even(%on) : (i32) -> ()",
    "second": "func.call @narrow(%t, %w) : (memref<8xf32, 2>, memref<8xbf16, 2>) -> ()",
}
PRODUCT = {
    "first": """%za = memref.alloc() : memref<8x8xbf16, 2>
          %zc = memref.alloc() : memref<8x8xf32, 2>
          %a = vector.load %za[%c0, %c0] : memref<8x8xbf16, 2>, vector<8x8xbf16>
          %s = vector.load %zc[%c0, %c0] : memref<8x8xf32, 2>, vector<8x8xf32>
          %p = vector.contract {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %a, %a, %s : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
          vector.store %p, %zc[%c0, %c0] : memref<8x8xf32, 2>, vector<8x8xf32>""",
    "second": "air.dma_memcpy_nd (%w[] [] [], %u[] [] []) : (memref<8xbf16, 2>, memref<8xbf16, 2>)",
}
DMA = "air.dma_memcpy_nd (%t[] [] [], %ha[] [] []) : (memref<8xf32, 2>, memref<8xf32>)"
GET = "air.channel.get @in[%tx, %ty] (%t[] [] []) : (memref<8xf32, 2>)"
PUT = "air.channel.put @in[] (%a[] [] []) : (memref<8xf32>)"


def function(name, put, **parts):
    body = TILE.format(**parts)
    return f"""
  func.func @{name}(%x: memref<8xf32>, %y: memref<2x8xbf16>, %z: memref<2x8xbf16>) {{
    air.launch () in () args(%a=%x, %b=%y, %c=%z) : memref<8xf32>, memref<2x8xbf16>, memref<2x8xbf16> {{
      {put}
      air.segment @s args(%sa=%a, %sb=%b, %sc=%c) : memref<8xf32>, memref<2x8xbf16>, memref<2x8xbf16> {{
        air.herd @{name}_herd tile (%tx, %ty) in (%sx=%c2, %sy=%c1) args(%ha=%sa, %hb=%sb, %hc=%sc) : memref<8xf32>, memref<2x8xbf16>, memref<2x8xbf16> {{
{body}
        }}
      }}
    }}
    return
  }}"""


@pytest.fixture(scope="module", params=["conv_even", "floor"])
def cores(request, program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "rounding.cc").write_text(SOURCE)
    text = """
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
module {
  func.func private @even(i32) attributes {link_with = "rounding.o"}
  func.func private @narrow(memref<8xf32, 2>, memref<8xbf16, 2>) attributes {link_with = "rounding.o"}
  air.channel @in [1, 1] {broadcast_shape = [2, 1]}"""
    text += function("alone", "", get=DMA, **CALLS) + function("turns", PUT, get=GET, **CALLS)
    text += function("product", "", get=DMA, **PRODUCT) + function("product_turns", PUT, get=GET, **PRODUCT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_ROUNDING", request.param)
        return program(f"{text}\n}}", kernel_dirs=(folder,)), request.param


X = np.array([1 + 2**-8 + 2**-9, -1 - 2**-9, 1 + 2**-9, 3, -0.1, 0.1, 1 + 3 * 2**-8, -7.77], np.float32)


@pytest.mark.parametrize("entry", ["alone", "turns"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_generated_code_and_kernels_share_the_register_of_their_core(cores, run, entry, threads, monkeypatch):
    """conv_even: generated code rounds so whatever the register says, which kernels still follow."""
    monkeypatch.setenv("VNPU_THREADS", threads)
    built, rounding = cores
    _, own, kernel = run(built, entry, X, *(np.zeros((2, 8), BF16) for _ in range(2)))
    same(own[0], floor_bf16(X) if rounding == "floor" else nearest_bf16(X))
    same(kernel[0], floor_bf16(X))
    same(own[1], nearest_bf16(X))
    same(kernel[1], nearest_bf16(X))


@pytest.mark.parametrize("entry", ["product", "product_turns"])
def test_cores_with_a_product_of_bf16_round_to_even(cores, run, entry):
    built, _ = cores
    _, own, _ = run(built, entry, X, *(np.zeros((2, 8), BF16) for _ in range(2)))
    same(own[0], nearest_bf16(X))
    same(own[1], nearest_bf16(X))
