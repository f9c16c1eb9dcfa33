# ruff: noqa: E501 - MLIR has long lines
"""vector operations against numpy, one program for all."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aerie import virtual_npu

BF16 = ml_dtypes.bfloat16

PROGRAM = """
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
#nm = affine_map<(m, n, k) -> (n, m)>
#six_a = affine_map<(a, b, c, m, n, k) -> (a, c, m, k)>
#six_b = affine_map<(a, b, c, m, n, k) -> (c, b, k, n)>
#six_c = affine_map<(a, b, c, m, n, k) -> (b, a, m, n)>
#tr = affine_map<(d0, d1) -> (d1, d0)>
#bc = affine_map<(d0, d1) -> (0, d1)>
#last = affine_map<(d0, d1) -> (d1)>
module {
  func.func @transfers(%x: memref<6x8xf32>, %t: memref<8x4xf32>, %b: memref<4x8xf32>, %p: memref<4x4xf32>, %y: memref<6x8xf32>) {
    %pad = arith.constant -7.0 : f32
    %v0 = vector.transfer_read %x[%c1, %c0], %pad {permutation_map = #tr, in_bounds = [true, true]} : memref<6x8xf32>, vector<8x4xf32>
    %v1 = vector.transfer_read %x[%c1, %c0], %pad {permutation_map = #bc, in_bounds = [true, true]} : memref<6x8xf32>, vector<4x8xf32>
    %v2 = vector.transfer_read %x[%c4, %c6], %pad : memref<6x8xf32>, vector<4x4xf32>
    vector.transfer_write %v0, %t[%c0, %c0] {in_bounds = [true, true]} : vector<8x4xf32>, memref<8x4xf32>
    vector.transfer_write %v1, %b[%c0, %c0] {in_bounds = [true, true]} : vector<4x8xf32>, memref<4x8xf32>
    vector.transfer_write %v2, %p[%c0, %c0] {in_bounds = [true, true]} : vector<4x4xf32>, memref<4x4xf32>
    vector.transfer_write %v2, %y[%c4, %c6] : vector<4x4xf32>, memref<6x8xf32>
    return
  }
  func.func @strided(%x: memref<4x8xf32>, %y: memref<4xf32>) {
    %pad = arith.constant 0.0 : f32
    %s = memref.subview %x[0, 3] [4, 1] [1, 1] : memref<4x8xf32> to memref<4xf32, strided<[8], offset: 3>>
    %v = vector.transfer_read %s[%c0], %pad {in_bounds = [true]} : memref<4xf32, strided<[8], offset: 3>>, vector<4xf32>
    vector.store %v, %y[%c0] : memref<4xf32>, vector<4xf32>
    return
  }
  func.func @lanes(%x: memref<4x8xf32>, %t: memref<8x4xf32>, %s: memref<16xf32>, %o: memref<4x8xf32>) {
    %v = vector.load %x[%c0, %c0] : memref<4x8xf32>, vector<4x8xf32>
    %tr = vector.transpose %v, [1, 0] : vector<4x8xf32> to vector<8x4xf32>
    vector.store %tr, %t[%c0, %c0] : memref<8x4xf32>, vector<8x4xf32>
    %flat = vector.shape_cast %v : vector<4x8xf32> to vector<32xf32>
    %part = vector.extract_strided_slice %flat {offsets = [5], sizes = [16], strides = [1]} : vector<32xf32> to vector<16xf32>
    vector.store %part, %s[%c0] : memref<16xf32>, vector<16xf32>
    %row = vector.extract %v[2] : vector<8xf32> from vector<4x8xf32>
    %one = vector.extract %v[1, 3] : f32 from vector<4x8xf32>
    %row2 = vector.insert %one, %row [0] : f32 into vector<8xf32>
    %b = vector.broadcast %row2 : vector<8xf32> to vector<4x8xf32>
    vector.store %b, %o[%c0, %c0] : memref<4x8xf32>, vector<4x8xf32>
    return
  }
  func.func @slices(%x: memref<4x8xf32>, %y: memref<4x8xf32>, %m: memref<8xf32>, %s: memref<8xf32>) {
    %v = vector.load %x[%c0, %c0] : memref<4x8xf32>, vector<4x8xf32>
    %w = vector.load %y[%c0, %c0] : memref<4x8xf32>, vector<4x8xf32>
    %p = vector.extract_strided_slice %v {offsets = [1, 2], sizes = [2, 4], strides = [1, 1]} : vector<4x8xf32> to vector<2x4xf32>
    %q = vector.insert_strided_slice %p, %w {offsets = [2, 3], strides = [1, 1]} : vector<2x4xf32> into vector<4x8xf32>
    %row = vector.extract %v[3] : vector<8xf32> from vector<4x8xf32>
    %r = vector.insert %row, %q [0] : vector<8xf32> into vector<4x8xf32>
    vector.store %r, %y[%c0, %c0] : memref<4x8xf32>, vector<4x8xf32>
    %mask = vector.create_mask %c5 : vector<8xi1>
    %pass = arith.constant dense<-1.0> : vector<8xf32>
    %l = vector.maskedload %x[%c0, %c0], %mask, %pass : memref<4x8xf32>, vector<8xi1>, vector<8xf32> into vector<8xf32>
    %neg = arith.negf %l : vector<8xf32>
    vector.maskedstore %m[%c0], %mask, %neg : memref<8xf32>, vector<8xi1>, vector<8xf32>
    %a = vector.extract %l[0] : f32 from vector<8xf32>
    %b = vector.extract %l[7] : f32 from vector<8xf32>
    %e = vector.from_elements %a, %b, %b, %a : vector<4xf32>
    %f = vector.shuffle %e, %e [0, 5, 1, 6, 3, 3, 7, 2] : vector<4xf32>, vector<4xf32>
    vector.store %f, %s[%c0] : memref<8xf32>, vector<8xf32>
    return
  }
  func.func @reductions(%x: memref<16xf32>, %y: memref<4xf32>, %z: memref<4xf32>) {
    %start = arith.constant 100.0 : f32
    %v = vector.load %x[%c0] : memref<16xf32>, vector<16xf32>
    %a = vector.reduction <add>, %v : vector<16xf32> into f32
    %b = vector.reduction <add>, %v, %start : vector<16xf32> into f32
    %m = vector.reduction <maximumf>, %v : vector<16xf32> into f32
    %n = vector.reduction <minimumf>, %v : vector<16xf32> into f32
    memref.store %a, %y[%c0] : memref<4xf32>
    memref.store %b, %y[%c1] : memref<4xf32>
    memref.store %m, %y[%c2] : memref<4xf32>
    memref.store %n, %y[%c3] : memref<4xf32>
    %w = vector.shape_cast %v : vector<16xf32> to vector<4x4xf32>
    %acc = vector.load %z[%c0] : memref<4xf32>, vector<4xf32>
    %r = vector.multi_reduction <add>, %w, %acc [1] : vector<4x4xf32> to vector<4xf32>
    vector.store %r, %z[%c0] : memref<4xf32>, vector<4xf32>
    return
  }
  func.func @sums(%x: memref<32xbf16>, %y: memref<8xf32>, %z: memref<3xf32>) {
    %v = vector.load %x[%c0] : memref<32xbf16>, vector<32xbf16>
    %h = vector.load %x[%c0] : memref<32xbf16>, vector<16xbf16>
    %w = vector.load %y[%c0] : memref<8xf32>, vector<8xf32>
    %a = vector.reduction <add>, %v : vector<32xbf16> into bf16
    %b = vector.reduction <add>, %h : vector<16xbf16> into bf16
    %c = vector.reduction <add>, %w : vector<8xf32> into f32
    %d = arith.extf %a : bf16 to f32
    %e = arith.extf %b : bf16 to f32
    memref.store %d, %z[%c0] : memref<3xf32>
    memref.store %e, %z[%c1] : memref<3xf32>
    memref.store %c, %z[%c2] : memref<3xf32>
    return
  }
  func.func @contract(%a: memref<8x8xbf16>, %b: memref<8x8xbf16>, %c: memref<8x8xf32>, %d: memref<8x8xf32>) {
    %va = vector.load %a[%c0, %c0] : memref<8x8xbf16>, vector<8x8xbf16>
    %vb = vector.load %b[%c0, %c0] : memref<8x8xbf16>, vector<8x8xbf16>
    %vc = vector.load %c[%c0, %c0] : memref<8x8xf32>, vector<8x8xf32>
    %r = vector.contract {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %va, %vb, %vc : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
    vector.store %r, %c[%c0, %c0] : memref<8x8xf32>, vector<8x8xf32>
    %s = vector.contract {indexing_maps = [#mk, #nk, #nm], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %va, %vb, %vc : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
    vector.store %s, %d[%c0, %c0] : memref<8x8xf32>, vector<8x8xf32>
    return
  }
  func.func @odd(%a: memref<3x5xf32>, %b: memref<5x6xf32>, %c: memref<3x6xf32>) {
    %va = vector.load %a[%c0, %c0] : memref<3x5xf32>, vector<3x5xf32>
    %vb = vector.load %b[%c0, %c0] : memref<5x6xf32>, vector<5x6xf32>
    %vc = vector.load %c[%c0, %c0] : memref<3x6xf32>, vector<3x6xf32>
    %r = vector.contract {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %va, %vb, %vc : vector<3x5xf32>, vector<5x6xf32> into vector<3x6xf32>
    vector.store %r, %c[%c0, %c0] : memref<3x6xf32>, vector<3x6xf32>
    return
  }
  func.func @integers(%a: memref<4x8xi8>, %b: memref<8x4xi8>, %c: memref<4x4xi32>) {
    %va = vector.load %a[%c0, %c0] : memref<4x8xi8>, vector<4x8xi8>
    %vb = vector.load %b[%c0, %c0] : memref<8x4xi8>, vector<8x4xi8>
    %vc = vector.load %c[%c0, %c0] : memref<4x4xi32>, vector<4x4xi32>
    %r = vector.contract {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %va, %vb, %vc : vector<4x8xi8>, vector<8x4xi8> into vector<4x4xi32>
    vector.store %r, %c[%c0, %c0] : memref<4x4xi32>, vector<4x4xi32>
    return
  }
  func.func @blocked(%a: memref<1x2x4x8xbf16>, %b: memref<2x1x8x4xbf16>, %c: memref<1x1x4x4xf32>) {
    %va = vector.load %a[%c0, %c0, %c0, %c0] : memref<1x2x4x8xbf16>, vector<1x2x4x8xbf16>
    %vb = vector.load %b[%c0, %c0, %c0, %c0] : memref<2x1x8x4xbf16>, vector<2x1x8x4xbf16>
    %vc = vector.load %c[%c0, %c0, %c0, %c0] : memref<1x1x4x4xf32>, vector<1x1x4x4xf32>
    %r = vector.contract {indexing_maps = [#six_a, #six_b, #six_c], iterator_types = ["parallel", "parallel", "reduction", "parallel", "parallel", "reduction"], kind = #vector.kind<add>} %va, %vb, %vc : vector<1x2x4x8xbf16>, vector<2x1x8x4xbf16> into vector<1x1x4x4xf32>
    vector.store %r, %c[%c0, %c0, %c0, %c0] : memref<1x1x4x4xf32>, vector<1x1x4x4xf32>
    return
  }
}
"""


@pytest.fixture(scope="module")
def library(program):
    return program(PROGRAM)


def normal(*shape, dtype=np.float32, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c + a @ b in order of k. Products of bf16 are exact in f32, so a fused step rounds like this one."""
    result = c.astype(np.float32)
    for k in range(a.shape[1]):
        result = (result + np.outer(a[:, k].astype(np.float32), b[k].astype(np.float32))).astype(np.float32)
    return result


def test_transfers_permute_broadcast_and_pad(library, run):
    x = normal(6, 8)
    zeros = [np.zeros(shape, np.float32) for shape in ((8, 4), (4, 8), (4, 4), (6, 8))]
    _, t, b, p, y = run(library, "transfers", x, *zeros)
    np.testing.assert_array_equal(t, x[1:5].T)
    np.testing.assert_array_equal(b, np.tile(x[1], (4, 1)))
    want = np.full((4, 4), -7, np.float32)
    want[:2, :2] = x[4:, 6:]
    np.testing.assert_array_equal(p, want)
    np.testing.assert_array_equal(y[4:, 6:], x[4:, 6:])
    assert not y[:4].any()


def test_transfer_from_a_strided_view(library, run):
    x = normal(4, 8)
    np.testing.assert_array_equal(run(library, "strided", x, np.zeros(4, np.float32))[1], x[:, 3])


def test_lanes_move(library, run):
    x = normal(4, 8)
    _, t, s, o = run(library, "lanes", x, *[np.zeros(n, np.float32) for n in ((8, 4), 16, (4, 8))])
    np.testing.assert_array_equal(t, x.T)
    np.testing.assert_array_equal(s, x.ravel()[5:21])
    row = x[2].copy()
    row[0] = x[1, 3]
    np.testing.assert_array_equal(o, np.tile(row, (4, 1)))


def test_slices_masks_and_shuffles(library, run):
    x, y = normal(4, 8), normal(4, 8, seed=2)
    _, r, m, s = run(library, "slices", x, y, *[np.zeros(8, np.float32)] * 2)
    want = y.copy()
    want[2:4, 3:7] = x[1:3, 2:6]
    want[0] = x[3]
    np.testing.assert_array_equal(r, want)
    np.testing.assert_array_equal(m, [*-x[0, :5], 0, 0, 0])
    a = x[0, 0]
    np.testing.assert_array_equal(s, [a, -1, -1, -1, a, a, a, -1])


def tree_sum(x):
    """The sum of f32 as a core has it: of lanes 8 apart, then 4, 2 and 1."""
    while len(x) > 1:
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    return x[0]


def test_reductions(library, run):
    """A sum of 16 lanes is a core's; others are in order."""
    x = normal(16) * 1e3
    _, y, z = run(library, "reductions", x, np.zeros(4, np.float32), np.ones(4, np.float32))
    assert y[0] == tree_sum(x) != np.cumsum(x, dtype=np.float32)[-1]
    assert y[1] == np.float32(100) + tree_sum(x)
    assert (y[2], y[3]) == (x.max(), x.min())
    rows = np.column_stack([np.ones(4, np.float32), x.reshape(4, 4)])
    np.testing.assert_array_equal(z, np.cumsum(rows, axis=1, dtype=np.float32)[:, -1])


def test_sums_of_bf16_are_rounded_once(library, run):
    """After the halves of 32 lanes were added; 8 lanes of f32 are no vector of a core, and added in order."""
    x, y = normal(32, dtype=BF16), normal(8, seed=2) * 1e3
    *_, z = run(library, "sums", x, y, np.zeros(3, np.float32))
    wide = x.astype(np.float32)
    halves = (wide[:16] + wide[16:]).astype(BF16).astype(np.float32)
    in_order = np.cumsum(y, dtype=np.float32)[-1]
    assert in_order != tree_sum(y)
    assert z.tolist() == [tree_sum(halves).astype(BF16), tree_sum(wide[:16]).astype(BF16), in_order]


@pytest.mark.parametrize(("fast", "accuracy"), [(False, 0), (True, 1e-6)])
def test_contract_accumulates_in_order_of_k(program, run, fast, accuracy):
    """With fast paths products may be summed in pairs (vnpu/dots.h): the sums differ by their order alone."""
    a, b, c = normal(8, 8, dtype=BF16), normal(8, 8, dtype=BF16, seed=2), normal(8, 8, seed=3)
    library = program(PROGRAM, options=virtual_npu.BuildOptions(fast=fast))
    _, _, r, s = run(library, "contract", a, b, c, np.zeros((8, 8), np.float32))
    np.testing.assert_allclose(r, fused(a, b, c), rtol=accuracy, atol=accuracy)
    np.testing.assert_allclose(s, fused(a, b.T, c.T).T, rtol=accuracy, atol=accuracy)


def test_contract_of_odd_shapes_integers_and_blocks(library, run):
    a, b, c = normal(3, 5), normal(5, 6, seed=2), normal(3, 6, seed=3)
    np.testing.assert_allclose(run(library, "odd", a, b, c)[2], a @ b + c, rtol=1e-6, atol=1e-6)
    rng = np.random.default_rng(4)
    x, y = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((4, 8), (8, 4)))
    got = run(library, "integers", x, y, np.ones((4, 4), np.int32))[2]
    np.testing.assert_array_equal(got, x.astype(np.int32) @ y.astype(np.int32) + 1)
    a, b = normal(1, 2, 4, 8, dtype=BF16), normal(2, 1, 8, 4, dtype=BF16, seed=5)
    got = run(library, "blocked", a, b, np.zeros((1, 1, 4, 4), np.float32))[2][0, 0]
    wide = np.concatenate([a[0, 0], a[0, 1]], axis=1), np.concatenate([b[0, 0], b[1, 0]], axis=0)
    np.testing.assert_allclose(got, fused(*wide, np.zeros((4, 4), np.float32)), rtol=1e-6, atol=1e-6)
