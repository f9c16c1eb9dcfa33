# ruff: noqa: E501 - MLIR has long lines
"""Vector operations on lanes, with masks, and anywhere in memory, against numpy: one program for all."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import virtual_npu

PROGRAM = """
func.func @made(%s: memref<8xindex>, %m: memref<4x3xi1>, %b: memref<8xf32>, %x: f32) {
  %step = vector.step : vector<8xindex>
  vector.store %step, %s[%c0] : memref<8xindex>, vector<8xindex>
  %mask = vector.constant_mask [3, 2] : vector<4x3xi1>
  vector.transfer_write %mask, %m[%c0, %c0] {in_bounds = [true, true]} : vector<4x3xi1>, memref<4x3xi1>
  %splat = vector.splat %x : vector<8xf32>
  vector.store %splat, %b[%c0] : memref<8xf32>, vector<8xf32>
  return
}
func.func @elements(%x: memref<4xi32>, %y: memref<4xi32>, %e: memref<4xi32>, %at: index) {
  %v = vector.load %x[%c0] : memref<4xi32>, vector<4xi32>
  %a, %b, %c, %d = vector.to_elements %v : vector<4xi32>
  %back = vector.from_elements %d, %c, %b, %a : vector<4xi32>
  vector.store %back, %y[%c0] : memref<4xi32>, vector<4xi32>
  %one = vector.extractelement %v[%at : index] : vector<4xi32>
  %two = arith.addi %one, %one : i32
  %changed = vector.insertelement %two, %v[%at : index] : vector<4xi32>
  vector.store %changed, %e[%c0] : memref<4xi32>, vector<4xi32>
  return
}
func.func @woven(%x: memref<2x4xi16>, %y: memref<2x4xi16>, %w: memref<2x8xi16>, %e: memref<2x4xi16>, %o: memref<2x4xi16>) {
  %a = vector.load %x[%c0, %c0] : memref<2x4xi16>, vector<2x4xi16>
  %b = vector.load %y[%c0, %c0] : memref<2x4xi16>, vector<2x4xi16>
  %all = vector.interleave %a, %b : vector<2x4xi16> -> vector<2x8xi16>
  vector.store %all, %w[%c0, %c0] : memref<2x8xi16>, vector<2x8xi16>
  %even, %odd = vector.deinterleave %all : vector<2x8xi16> -> vector<2x4xi16>
  vector.store %even, %e[%c0, %c0] : memref<2x4xi16>, vector<2x4xi16>
  vector.store %odd, %o[%c0, %c0] : memref<2x4xi16>, vector<2x4xi16>
  return
}
func.func @outer(%x: memref<4xf32>, %y: memref<8xf32>, %c: memref<4x8xf32>, %p: memref<4x8xf32>, %m: memref<4x8xf32>, %s: memref<4xf32>, %k: f32) {
  %a = vector.load %x[%c0] : memref<4xf32>, vector<4xf32>
  %b = vector.load %y[%c0] : memref<8xf32>, vector<8xf32>
  %acc = vector.load %c[%c0, %c0] : memref<4x8xf32>, vector<4x8xf32>
  %plain = vector.outerproduct %a, %b : vector<4xf32>, vector<8xf32>
  %sum = vector.outerproduct %a, %b, %acc : vector<4xf32>, vector<8xf32>
  %max = vector.outerproduct %a, %b, %acc {kind = #vector.kind<maximumf>} : vector<4xf32>, vector<8xf32>
  %scaled = vector.outerproduct %a, %k, %a : vector<4xf32>, f32
  vector.store %plain, %p[%c0, %c0] : memref<4x8xf32>, vector<4x8xf32>
  vector.store %sum, %c[%c0, %c0] : memref<4x8xf32>, vector<4x8xf32>
  vector.store %max, %m[%c0, %c0] : memref<4x8xf32>, vector<4x8xf32>
  vector.store %scaled, %s[%c0] : memref<4xf32>, vector<4xf32>
  return
}
func.func @scans(%x: memref<3x4xi32>, %i: memref<3x4xi32>, %e: memref<3x4xi32>, %li: memref<4xi32>, %le: memref<4xi32>) {
  %v = vector.load %x[%c0, %c0] : memref<3x4xi32>, vector<3x4xi32>
  %init = arith.constant dense<100> : vector<4xi32>
  %in, %last_in = vector.scan <add>, %v, %init {inclusive = true, reduction_dim = 0 : i64} : vector<3x4xi32>, vector<4xi32>
  %ex, %last_ex = vector.scan <add>, %v, %init {inclusive = false, reduction_dim = 0 : i64} : vector<3x4xi32>, vector<4xi32>
  vector.store %in, %i[%c0, %c0] : memref<3x4xi32>, vector<3x4xi32>
  vector.store %ex, %e[%c0, %c0] : memref<3x4xi32>, vector<3x4xi32>
  vector.store %last_in, %li[%c0] : memref<4xi32>, vector<4xi32>
  vector.store %last_ex, %le[%c0] : memref<4xi32>, vector<4xi32>
  return
}
func.func @anywhere(%x: memref<16xf32>, %w: memref<8xi32>, %k: memref<8xi1>, %g: memref<8xf32>, %s: memref<16xf32>) {
  %where = vector.load %w[%c0] : memref<8xi32>, vector<8xi32>
  %mask = vector.load %k[%c0] : memref<8xi1>, vector<8xi1>
  %other = arith.constant dense<-1.0> : vector<8xf32>
  %got = vector.gather %x[%c2] [%where], %mask, %other : memref<16xf32>, vector<8xi32>, vector<8xi1>, vector<8xf32> into vector<8xf32>
  vector.store %got, %g[%c0] : memref<8xf32>, vector<8xf32>
  vector.scatter %s[%c2] [%where], %mask, %got : memref<16xf32>, vector<8xi32>, vector<8xi1>, vector<8xf32>
  return
}
#tr = affine_map<(d0, d1) -> (d1, d0)>
#spread = affine_map<(d0, d1) -> (d1, 0)>
func.func @masked(%x: memref<3x4xf32>, %k: memref<3x4xi1>, %t: memref<4x3xf32>, %b: memref<4x2xf32>, %w: memref<3x4xf32>) {
  %pad = arith.constant -1.0 : f32
  %mask = vector.load %k[%c0, %c0] : memref<3x4xi1>, vector<3x4xi1>
  %row = vector.extract %mask[1] : vector<4xi1> from vector<3x4xi1>
  %v = vector.transfer_read %x[%c0, %c0], %pad, %mask {permutation_map = #tr, in_bounds = [true, true]} : memref<3x4xf32>, vector<4x3xf32>
  vector.store %v, %t[%c0, %c0] : memref<4x3xf32>, vector<4x3xf32>
  %s = vector.transfer_read %x[%c0, %c0], %pad, %row {permutation_map = #spread, in_bounds = [true, true]} : memref<3x4xf32>, vector<4x2xf32>
  vector.store %s, %b[%c0, %c0] : memref<4x2xf32>, vector<4x2xf32>
  vector.transfer_write %v, %w[%c0, %c0], %mask {permutation_map = #tr, in_bounds = [true, true]} : vector<4x3xf32>, memref<3x4xf32>
  return
}
func.func @regions(%x: memref<3x4xf32>, %k: memref<3x4xi1>, %y: memref<3x4xf32>, %z: memref<3x4xf32>, %s: memref<2xf32>, %m: memref<3xi32>, %i: memref<3x4xi32>) {
  %pad = arith.constant -1.0 : f32
  %other = arith.constant dense<5.0> : vector<3x4xf32>
  %mask = vector.load %k[%c0, %c0] : memref<3x4xi1>, vector<3x4xi1>
  %v = vector.mask %mask, %other { vector.transfer_read %x[%c0, %c0], %pad {in_bounds = [true, true]} : memref<3x4xf32>, vector<3x4xf32> } : vector<3x4xi1> -> vector<3x4xf32>
  vector.store %v, %y[%c0, %c0] : memref<3x4xf32>, vector<3x4xf32>
  vector.mask %mask { vector.transfer_write %v, %z[%c0, %c0] {in_bounds = [true, true]} : vector<3x4xf32>, memref<3x4xf32> } : vector<3x4xi1>
  %row = vector.extract %mask[1] : vector<4xi1> from vector<3x4xi1>
  %first = vector.extract %v[0] : vector<4xf32> from vector<3x4xf32>
  %sum = vector.mask %row { vector.reduction <add>, %first, %pad : vector<4xf32> into f32 } : vector<4xi1> -> f32
  %max = vector.mask %row { vector.reduction <maximumf>, %first : vector<4xf32> into f32 } : vector<4xi1> -> f32
  memref.store %sum, %s[%c0] : memref<2xf32>
  memref.store %max, %s[%c1] : memref<2xf32>
  %ints = vector.load %i[%c0, %c0] : memref<3x4xi32>, vector<3x4xi32>
  %acc = arith.constant dense<3> : vector<3xi32>
  %least = vector.mask %mask { vector.multi_reduction <minsi>, %ints, %acc [1] : vector<3x4xi32> to vector<3xi32> } : vector<3x4xi1> -> vector<3xi32>
  vector.store %least, %m[%c0] : memref<3xi32>, vector<3xi32>
  return
}
func.func @packed(%x: memref<16xi8>, %k: memref<8xi1>, %e: memref<8xi8>, %c: memref<16xi8>) {
  %mask = vector.load %k[%c0] : memref<8xi1>, vector<8xi1>
  %other = arith.constant dense<-7> : vector<8xi8>
  %spread = vector.expandload %x[%c3], %mask, %other : memref<16xi8>, vector<8xi1>, vector<8xi8> into vector<8xi8>
  vector.store %spread, %e[%c0] : memref<8xi8>, vector<8xi8>
  vector.compressstore %c[%c3], %mask, %spread : memref<16xi8>, vector<8xi1>, vector<8xi8>
  return
}
"""


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "checked"])
def library(program, request):
    return program(PROGRAM, options=virtual_npu.BuildOptions(checks=request.param))


def test_vectors_that_are_made(library, run):
    x = np.float32(2.5)
    zeros = np.zeros(8, np.int64), np.zeros((4, 3), np.bool_), np.zeros(8, np.float32)
    steps, mask, splat, _ = run(library, "made", *zeros, x)
    np.testing.assert_array_equal(steps, np.arange(8))
    np.testing.assert_array_equal(mask, (np.arange(4)[:, None] < 3) & (np.arange(3) < 2))
    np.testing.assert_array_equal(splat, np.full(8, x))


def test_elements(library, run):
    x = np.array([3, 1, 4, 15], np.int32)
    _, back, changed, _ = run(library, "elements", x, x * 0, x * 0, np.int64(2))
    np.testing.assert_array_equal(back, x[::-1])
    np.testing.assert_array_equal(changed, [3, 1, 8, 15])


def test_interleave_and_back(library, run):
    x, y = np.arange(16, dtype=np.int16).reshape(2, 2, 4)
    _, _, woven, even, odd = run(library, "woven", x, y, np.zeros((2, 8), np.int16), x * 0, x * 0)
    np.testing.assert_array_equal(woven, np.stack([x, y], -1).reshape(2, 8))
    np.testing.assert_array_equal(even, x)
    np.testing.assert_array_equal(odd, y)


def test_outer_products(library, run):
    rng = np.random.default_rng(0)
    x, y, c = (rng.integers(-9, 9, s).astype(np.float32) for s in (4, 8, (4, 8)))
    zeros = np.zeros((4, 8), np.float32)
    _, _, total, plain, largest, scaled, _ = run(library, "outer", x, y, c, zeros, zeros, x, np.float32(3))
    np.testing.assert_array_equal(plain, np.outer(x, y))
    np.testing.assert_array_equal(total, np.outer(x, y) + c)
    np.testing.assert_array_equal(largest, np.maximum(np.outer(x, y), c))
    np.testing.assert_array_equal(scaled, x * 3 + x)


def test_scans(library, run):
    x = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
    zeros = np.zeros(4, np.int32)
    _, inclusive, exclusive, last_in, last_ex = run(library, "scans", x, x * 0, x * 0, zeros, zeros)
    np.testing.assert_array_equal(inclusive, x.cumsum(0))
    np.testing.assert_array_equal(exclusive, np.vstack([[100] * 4, 100 + x[:-1].cumsum(0)]))
    np.testing.assert_array_equal(last_in, inclusive[-1])
    np.testing.assert_array_equal(last_ex, exclusive[-1])


MASK = np.array([1, 0, 1, 1, 0, 1, 1, 0], np.bool_)


def test_gather_and_scatter(library, run):
    x = np.arange(16, dtype=np.float32) * 10
    where = np.array([5, 0, 13, 2, 99, 7, -2, 99], np.int32)
    got = run(library, "anywhere", x, where, MASK, np.zeros(8, np.float32), np.zeros(16, np.float32))
    want = np.where(MASK, x[np.where(MASK, where + 2, 0)], -1)
    np.testing.assert_array_equal(got[3], want)
    scattered = np.zeros(16, np.float32)
    scattered[where[MASK] + 2] = want[MASK]
    np.testing.assert_array_equal(got[4], scattered)


def test_masks_have_the_order_of_memory(library, run):
    rng = np.random.default_rng(5)
    x, mask = rng.integers(1, 99, (3, 4)).astype(np.float32), rng.integers(0, 2, (3, 4)).astype(np.bool_)
    zeros = (np.zeros(shape, np.float32) for shape in ((4, 3), (4, 2), (3, 4)))
    _, _, turned, spread, written = run(library, "masked", x, mask, *zeros)
    np.testing.assert_array_equal(turned, np.where(mask, x, -1).T)
    np.testing.assert_array_equal(spread, np.repeat(np.where(mask[1], x[0], -1)[:, None], 2, 1))
    np.testing.assert_array_equal(written, np.where(mask, x, 0))


def test_masked_operations(library, run):
    rng = np.random.default_rng(6)
    x, k = rng.integers(1, 99, (3, 4)).astype(np.float32), rng.integers(0, 2, (3, 4)).astype(np.bool_)
    k[1, 0], i = True, rng.integers(-99, 99, (3, 4)).astype(np.int32)
    zeros = (np.zeros(shape, kind) for shape, kind in (((3, 4), "f4"), ((3, 4), "f4"), (2, "f4"), (3, "i4")))
    _, _, y, z, s, m, _ = run(library, "regions", x, k, *zeros, i)
    np.testing.assert_array_equal(y, np.where(k, x, 5))
    np.testing.assert_array_equal(z, np.where(k, x, 0))
    np.testing.assert_array_equal(s, [y[0][k[1]].sum() - 1, y[0][k[1]].max()])
    np.testing.assert_array_equal(m, np.minimum(np.where(k, i, 3).min(1), 3))


def test_expand_and_compress(library, run):
    x = np.arange(16, dtype=np.int8)
    got = run(library, "packed", x, MASK, np.zeros(8, np.int8), np.zeros(16, np.int8))
    want = np.full(8, -7, np.int8)
    want[MASK] = np.arange(3, 3 + MASK.sum())
    np.testing.assert_array_equal(got[2], want)
    np.testing.assert_array_equal(got[3][3 : 3 + MASK.sum()], want[MASK])
    assert not got[3][3 + MASK.sum() :].any()
