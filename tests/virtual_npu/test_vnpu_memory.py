# ruff: noqa: E501 - MLIR has long lines
"""memref views, globals, affine and scf control flow, linalg: against numpy, one program for all."""

from __future__ import annotations

import numpy as np
import pytest

PROGRAM = """
#rows = affine_map<(d0)[s0] -> (d0 * 4 + s0)>
#low = affine_map<(d0) -> (d0, 6)>
#even = affine_set<(d0) : (d0 mod 2 == 0)>
#id = affine_map<(d0, d1) -> (d0, d1)>
#tr = affine_map<(d0, d1) -> (d1, d0)>
#row = affine_map<(d0, d1) -> (d0)>
module {
  memref.global "private" constant @table : memref<4xi32> = dense<[1, 20, 300, 4000]>

  func.func @subview(%x: memref<6x8xf32>, %y: memref<2x3xf32>) {
    %s = memref.subview %x[%c1, 2] [2, 3] [3, 2] : memref<6x8xf32> to memref<2x3xf32, strided<[24, 2], offset: ?>>
    memref.copy %s, %y : memref<2x3xf32, strided<[24, 2], offset: ?>> to memref<2x3xf32>
    return
  }
  func.func @reduced(%x: memref<3x4x5xi32>, %y: memref<4xi32>) {
    %s = memref.subview %x[%c2, 0, 3] [1, 4, 1] [1, 1, 1] : memref<3x4x5xi32> to memref<4xi32, strided<[5], offset: ?>>
    memref.copy %s, %y : memref<4xi32, strided<[5], offset: ?>> to memref<4xi32>
    return
  }
  func.func @dynamic(%n: index, %x: memref<6x8xi32>, %y: memref<1xindex>) {
    %seven = arith.constant 7 : i32
    %s = memref.subview %x[%c1, 2] [%n, %n] [1, 1] : memref<6x8xi32> to memref<?x?xi32, strided<[8, 1], offset: ?>>
    %d = memref.cast %s : memref<?x?xi32, strided<[8, 1], offset: ?>> to memref<?x?xi32, strided<[?, 1], offset: ?>>
    %a = memref.alloc(%n) : memref<?x4xi32>
    linalg.fill ins(%seven : i32) outs(%a : memref<?x4xi32>)
    %e = memref.dim %a, %c0 : memref<?x4xi32>
    memref.store %e, %y[%c0] : memref<1xindex>
    %v = memref.load %a[%c1, %c1] : memref<?x4xi32>
    memref.dealloc %a : memref<?x4xi32>
    linalg.fill ins(%v : i32) outs(%d : memref<?x?xi32, strided<[?, 1], offset: ?>>)
    return
  }
  func.func @shapes(%x: memref<4x6xi32>, %y: memref<2x2x6xi32>, %z: memref<24xi32>) {
    %e = memref.expand_shape %x [[0, 1], [2]] output_shape [2, 2, 6] : memref<4x6xi32> into memref<2x2x6xi32>
    %c = memref.collapse_shape %x [[0, 1]] : memref<4x6xi32> into memref<24xi32>
    memref.copy %e, %y : memref<2x2x6xi32> to memref<2x2x6xi32>
    memref.copy %c, %z : memref<24xi32> to memref<24xi32>
    return
  }
  func.func @index(%y: memref<8xindex>, %a: index, %b: index) {
    %c0 = index.constant 0
    %c1 = index.constant 1
    %c2 = index.constant 2
    %c3 = index.constant 3
    %c4 = index.constant 4
    %c5 = index.constant 5
    %r0 = index.add %a, %b
    %r1 = index.mul %a, %b
    %r2 = index.floordivs %a, %b
    %r3 = index.rems %a, %b
    %r4 = index.maxs %a, %b
    %n = index.casts %a : index to i32
    %r5 = index.casts %n : i32 to index
    memref.store %r0, %y[%c0] : memref<8xindex>
    memref.store %r1, %y[%c1] : memref<8xindex>
    memref.store %r2, %y[%c2] : memref<8xindex>
    memref.store %r3, %y[%c3] : memref<8xindex>
    memref.store %r4, %y[%c4] : memref<8xindex>
    memref.store %r5, %y[%c5] : memref<8xindex>
    return
  }
  func.func @forall(%x: memref<4x8xi32>, %y: memref<4x8xi32>) {
    scf.forall (%i, %j) in (4, 8) {
      %v = memref.load %x[%i, %j] : memref<4x8xi32>
      %w = arith.addi %v, %v : i32
      memref.store %w, %y[%i, %j] : memref<4x8xi32>
    }
    return
  }
  func.func @transposed(%x: memref<4x8xi32>, %y: memref<8x4xi32>, %z: memref<8x4xi32>) {
    %t = memref.transpose %x (d0, d1) -> (d1, d0) : memref<4x8xi32> to memref<8x4xi32, strided<[1, 8]>>
    memref.copy %t, %y : memref<8x4xi32, strided<[1, 8]>> to memref<8x4xi32>
    linalg.transpose ins(%x : memref<4x8xi32>) outs(%z : memref<8x4xi32>) permutation = [1, 0]
    return
  }
  func.func @bytes(%x: memref<64xi8>, %y: memref<2x4xf32>) {
    %v = memref.view %x[%c16][] : memref<64xi8> to memref<2x4xf32>
    memref.copy %v, %y : memref<2x4xf32> to memref<2x4xf32>
    return
  }
  func.func @switch(%x: memref<4xi32>) {
    scf.for %i = %c0 to %c4 step %c1 {
      %v = scf.index_switch %i -> i32
      case 1 {
        %a = arith.constant 10 : i32
        scf.yield %a : i32
      }
      case 3 {
        %a = arith.constant 30 : i32
        scf.yield %a : i32
      }
      default {
        %a = arith.constant -1 : i32
        scf.yield %a : i32
      }
      memref.store %v, %x[%i] : memref<4xi32>
    }
    return
  }
  func.func @reinterpret(%x: memref<24xi32>, %y: memref<3x4xi32>) {
    %t = memref.reinterpret_cast %x to offset: [1], sizes: [3, 4], strides: [2, 6] : memref<24xi32> to memref<3x4xi32, strided<[2, 6], offset: 1>>
    memref.copy %t, %y : memref<3x4xi32, strided<[2, 6], offset: 1>> to memref<3x4xi32>
    return
  }
  func.func @global(%y: memref<4xi32>) {
    %g = memref.get_global @table : memref<4xi32>
    memref.copy %g, %y : memref<4xi32> to memref<4xi32>
    return
  }
  func.func @sum(%x: memref<8xf32>, %y: memref<1xf32>) {
    %zero = arith.constant 0.0 : f32
    %one = arith.constant 1.0 : f32
    %s, %p = scf.for %i = %c0 to %c8 step %c1 iter_args(%a = %zero, %b = %one) -> (f32, f32) {
      %v = memref.load %x[%i] : memref<8xf32>
      %n = arith.addf %a, %v : f32
      scf.yield %n, %a : f32, f32
    }
    %r = arith.addf %s, %p : f32
    memref.store %r, %y[%c0] : memref<1xf32>
    return
  }
  func.func @branches(%x: memref<8xi32>) {
    %four = arith.constant 4 : i32
    scf.for %i = %c0 to %c8 step %c1 {
      %v = memref.load %x[%i] : memref<8xi32>
      %big = arith.cmpi sgt, %v, %four : i32
      %w = scf.if %big -> (i32) {
        %d = arith.muli %v, %four : i32
        scf.yield %d : i32
      } else {
        %d = arith.subi %v, %four : i32
        scf.yield %d : i32
      }
      memref.store %w, %x[%i] : memref<8xi32>
      affine.if #even(%i) {
        %u = memref.load %x[%i] : memref<8xi32>
        %m = arith.subi %u, %u : i32
        memref.store %m, %x[%i] : memref<8xi32>
      }
    }
    return
  }
  func.func @while(%x: memref<1xi32>) {
    %hundred = arith.constant 100 : i32
    %v = memref.load %x[%c0] : memref<1xi32>
    %r = scf.while (%a = %v) : (i32) -> i32 {
      %go = arith.cmpi slt, %a, %hundred : i32
      scf.condition(%go) %a : i32
    } do {
    ^bb0(%b: i32):
      %d = arith.addi %b, %b : i32
      scf.yield %d : i32
    }
    memref.store %r, %x[%c0] : memref<1xi32>
    return
  }
  func.func @parallel(%x: memref<4x8xf32>, %y: memref<1xf32>) {
    %zero = arith.constant 0.0 : f32
    %s = scf.parallel (%i, %j) = (%c0, %c0) to (%c4, %c8) step (%c1, %c1) init (%zero) -> f32 {
      %v = memref.load %x[%i, %j] : memref<4x8xf32>
      scf.reduce(%v : f32) {
      ^bb0(%a: f32, %b: f32):
        %t = arith.addf %a, %b : f32
        scf.reduce.return %t : f32
      }
    }
    memref.store %s, %y[%c0] : memref<1xf32>
    return
  }
  func.func @affine(%x: memref<16xf32>, %y: memref<16xf32>) {
    affine.for %i = 0 to 3 {
      affine.for %j = 0 to min #low(%i) {
      }
      %r = affine.apply #rows(%i)[%c3]
      %v = affine.load %x[%i * 4 + 1] : memref<16xf32>
      affine.store %v, %y[%i * 4 + 3] : memref<16xf32>
      memref.store %v, %y[%r] : memref<16xf32>
    }
    return
  }
  func.func @matmul(%a: memref<4x6xf32>, %b: memref<6x5xf32>, %c: memref<4x5xf32>) {
    linalg.matmul ins(%a, %b : memref<4x6xf32>, memref<6x5xf32>) outs(%c : memref<4x5xf32>)
    return
  }
  func.func @generic(%a: memref<4x6xf32>, %b: memref<6x4xf32>, %c: memref<4xf32>) {
    %zero = arith.constant 0.0 : f32
    linalg.fill ins(%zero : f32) outs(%c : memref<4xf32>)
    linalg.generic {indexing_maps = [#id, #tr, #row], iterator_types = ["parallel", "reduction"]}
        ins(%a, %b : memref<4x6xf32>, memref<6x4xf32>) outs(%c : memref<4xf32>) {
    ^bb0(%p: f32, %q: f32, %s: f32):
      %i = linalg.index 1 : index
      %k = arith.index_cast %i : index to i32
      %f = arith.sitofp %k : i32 to f32
      %m = arith.mulf %p, %q : f32
      %t = arith.addf %m, %f : f32
      %r = arith.addf %s, %t : f32
      linalg.yield %r : f32
    }
    return
  }
  func.func @named(%a: memref<4x6xf32>, %b: memref<4x6xf32>, %c: memref<4x6xf32>) {
    linalg.add ins(%a, %b : memref<4x6xf32>, memref<4x6xf32>) outs(%c : memref<4x6xf32>)
    linalg.mul ins(%c, %b : memref<4x6xf32>, memref<4x6xf32>) outs(%c : memref<4x6xf32>)
    return
  }
  func.func private @twice(%v: f32) -> f32 {
    %r = arith.addf %v, %v : f32
    return %r : f32
  }
  func.func @"names.of-mlir"(%herd: memref<4xi32>, %twice: index, %class: memref<4xi32>) {
    %i = arith.addi %twice, %c0 : index
    %flat = arith.constant 7 : i32
    %v = vector.load %herd[%c0] : memref<4xi32>, vector<4xi32>
    %lane = vector.extract %v[%i] : i32 from vector<4xi32>
    %w = vector.insert %flat, %v [%i] : i32 into vector<4xi32>
    vector.store %w, %class[%c0] : memref<4xi32>, vector<4xi32>
    memref.store %lane, %herd[%c0] : memref<4xi32>
    return
  }
  func.func @calls(%x: memref<1xf32>) {
    %v = memref.load %x[%c0] : memref<1xf32>
    %w = func.call @twice(%v) : (f32) -> f32
    memref.store %w, %x[%c0] : memref<1xf32>
    return
  }
}
"""


@pytest.fixture(scope="module")
def library(program):
    return program(PROGRAM)


def iota(*shape, dtype=np.int32):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def test_private_functions_are_no_entries(library):
    assert "twice" not in library.entries
    assert "calls" in library.entries


def test_strided_and_rank_reducing_subviews(library, run):
    x = iota(6, 8, dtype=np.float32)
    np.testing.assert_array_equal(
        run(library, "subview", x, np.zeros((2, 3), np.float32))[1], x[1:7:3, 2:8:2]
    )
    x = iota(3, 4, 5)
    np.testing.assert_array_equal(run(library, "reduced", x, np.zeros(4, np.int32))[1], x[2, :, 3])


def test_dynamic_extents_and_strides(library, run):
    _, x, y = run(library, "dynamic", np.int64(3), np.zeros((6, 8), np.int32), np.zeros(1, np.int64))
    want = np.zeros((6, 8), np.int32)
    want[1:4, 2:5] = 7
    np.testing.assert_array_equal(x, want)
    assert y[0] == 3


def test_expand_collapse_and_reinterpret(library, run):
    x = iota(4, 6)
    _, y, z = run(library, "shapes", x, np.zeros((2, 2, 6), np.int32), np.zeros(24, np.int32))
    np.testing.assert_array_equal(y, x.reshape(2, 2, 6))
    np.testing.assert_array_equal(z, x.ravel())
    got = run(library, "reinterpret", x.ravel(), np.zeros((3, 4), np.int32))[1]
    np.testing.assert_array_equal(got, 1 + 2 * iota(3, 1) + 6 * iota(1, 4))


def test_global(library, run):
    np.testing.assert_array_equal(run(library, "global", np.zeros(4, np.int32))[0], [1, 20, 300, 4000])


def test_loop_carries_values_and_assigns_them_at_once(library, run):
    x = np.arange(8, dtype=np.float32)
    assert run(library, "sum", x, np.zeros(1, np.float32))[1][0] == x.sum() + x[:-1].sum()


def test_branches_while_parallel_and_calls(library, run):
    x = iota(8)
    want = np.where(x > 4, x * 4, x - 4)
    want[::2] = 0
    np.testing.assert_array_equal(run(library, "branches", x)[0], want)
    assert run(library, "while", np.array([3], np.int32))[0][0] == 192
    x = iota(4, 8, dtype=np.float32)
    assert run(library, "parallel", x, np.zeros(1, np.float32))[1][0] == x.sum()
    assert run(library, "calls", np.array([3], np.float32))[0][0] == 6


def test_names_that_cpp_would_misread(library, run):
    x = np.array([5, 6, 7, 8], np.int32)
    x, _, y = run(library, "names.of-mlir", x, np.int64(2), np.zeros(4, np.int32))
    np.testing.assert_array_equal(x, [7, 6, 7, 8])
    np.testing.assert_array_equal(y, [5, 6, 7, 8])


def test_index_operations(library, run):
    got = run(library, "index", np.zeros(8, np.int64), np.int64(-17), np.int64(5))[0]
    np.testing.assert_array_equal(got[:6], [-12, -85, -4, -2, 5, -17])


def test_forall_switch_and_views(library, run):
    x = iota(4, 8)
    np.testing.assert_array_equal(run(library, "forall", x, np.zeros_like(x))[1], 2 * x)
    _, y, z = run(library, "transposed", x, *[np.zeros((8, 4), np.int32)] * 2)
    np.testing.assert_array_equal(y, x.T)
    np.testing.assert_array_equal(z, x.T)
    np.testing.assert_array_equal(run(library, "switch", np.zeros(4, np.int32))[0], [-1, 10, -1, 30])
    x = np.arange(16, dtype=np.float32)
    got = run(library, "bytes", x.view(np.int8), np.zeros((2, 4), np.float32))[1]
    np.testing.assert_array_equal(got, x[4:12].reshape(2, 4))


def test_affine_loads_and_stores(library, run):
    x = iota(16, dtype=np.float32)
    want = np.zeros(16, np.float32)
    want[[3, 7, 11]] = x[[1, 5, 9]]
    np.testing.assert_array_equal(run(library, "affine", x, np.zeros(16, np.float32))[1], want)


def test_linalg(library, run):
    a, b = iota(4, 6, dtype=np.float32), iota(6, 5, dtype=np.float32)
    got = run(library, "matmul", a, b, np.ones((4, 5), np.float32))[2]
    np.testing.assert_array_equal(got, a @ b + 1)
    t = iota(6, 4, dtype=np.float32)
    got = run(library, "generic", a, t, np.full(4, 7, np.float32))[2]
    np.testing.assert_array_equal(got, (a * t.T + np.arange(6)).sum(1))
    got = run(library, "named", a, a, np.zeros((4, 6), np.float32))[2]
    np.testing.assert_array_equal(got, (a + a) * a)
