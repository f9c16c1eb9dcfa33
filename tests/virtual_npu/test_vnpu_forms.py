# ruff: noqa: E501 - MLIR has long lines
"""Rarer forms of loops, buffers, results and hierarchies that run, and those that are refused with a reason."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import ProgramError
from aerie.virtual_npu.toolchain import emit
from tests.virtual_npu.air_texts import with_constants

PROGRAM = """
func.func @bounds(%x: memref<8x8xi32>, %n: index, %m: index) {
  %one = arith.constant 1 : i32
  affine.parallel (%i, %j) = (max(%n - 2, 1), 0) to (min(%n + 3, 8, %m), 8) step (2, 3) {
    memref.store %one, %x[%i, %j] : memref<8x8xi32>
  }
  return
}
func.func @folded(%x: memref<4x8xf32>, %k: memref<4x8xi32>, %s: memref<f32>, %p: memref<f32>, %h: memref<i32>) {
  %sum, %max, %low = affine.parallel (%i, %j) = (0, 0) to (4, 8) reduce ("addf", "maximumf", "mins")
      -> (f32, f32, i32) {
    %v = memref.load %x[%i, %j] : memref<4x8xf32>
    %w = memref.load %k[%i, %j] : memref<4x8xi32>
    affine.yield %v, %v, %w : f32, f32, i32
  }
  memref.store %sum, %s[] : memref<f32>
  memref.store %max, %p[] : memref<f32>
  memref.store %low, %h[] : memref<i32>
  return
}
func.func @positions(%at: index, %n: index, %parts: memref<3xindex>, %back: memref<2xindex>) {
  %p:3 = affine.delinearize_index %at into (2, %n, 8) : index, index, index
  %q:3 = affine.delinearize_index %at into (%n, 8) : index, index, index
  memref.store %p#0, %parts[%c0] : memref<3xindex>
  memref.store %p#1, %parts[%c1] : memref<3xindex>
  memref.store %q#2, %parts[%c2] : memref<3xindex>
  %l = affine.linearize_index disjoint [%p#0, %p#1, %p#2] by (2, %n, 8) : index
  %m = affine.linearize_index [%q#0, %q#1, %q#2] by (%n, 8) : index
  memref.store %l, %back[%c0] : memref<2xindex>
  memref.store %m, %back[%c1] : memref<2xindex>
  return
}
func.func @atomic(%x: memref<4xi32>, %old: memref<4xi32>, %f: memref<4xf32>, %new: memref<4xf32>) {
  %v = arith.constant 5 : i32
  affine.for %i = 0 to 4 {
    %o = memref.atomic_rmw maxs %v, %x[%i] : (i32, memref<4xi32>) -> i32
    memref.store %o, %old[%i] : memref<4xi32>
    %g = memref.generic_atomic_rmw %f[%i] : memref<4xf32> {
    ^bb0(%c: f32):
      %t = arith.mulf %c, %c : f32
      memref.atomic_yield %t : f32
    }
    memref.store %g, %new[%i] : memref<4xf32>
    memref.prefetch %f[%i], read, locality<3>, data : memref<4xf32>
  }
  return
}
func.func @made_of(%x: memref<8x6xf32>, %out: memref<8xindex>, %d: index) {
  %v = memref.subview %x[1, 2] [4, 2] [2, 1] : memref<8x6xf32> to memref<4x2xf32, strided<[12, 1], offset: 8>>
  %b, %o, %sizes:2, %strides:2 = memref.extract_strided_metadata %v : memref<4x2xf32, strided<[12, 1], offset: 8>>
      -> memref<f32>, index, index, index, index, index
  %size = memref.dim %v, %d : memref<4x2xf32, strided<[12, 1], offset: 8>>
  %rank = memref.rank %v : memref<4x2xf32, strided<[12, 1], offset: 8>>
  memref.store %sizes#0, %out[%c0] : memref<8xindex>
  memref.store %sizes#1, %out[%c1] : memref<8xindex>
  memref.store %strides#0, %out[%c2] : memref<8xindex>
  memref.store %strides#1, %out[%c3] : memref<8xindex>
  memref.store %size, %out[%c4] : memref<8xindex>
  memref.store %rank, %out[%c5] : memref<8xindex>
  %c6 = arith.constant 6 : index
  %c7 = arith.constant 7 : index
  %first = memref.load %b[] : memref<f32>
  %whole = arith.fptosi %first : f32 to i64
  %number = arith.index_cast %whole : i64 to index
  memref.store %o, %out[%c6] : memref<8xindex>
  memref.store %number, %out[%c7] : memref<8xindex>
  return
}
func.func @scoped(%x: memref<4xf32>) -> memref<4xf32> {
  %half = arith.constant 0.5 : f32
  %k = memref.alloca_scope -> (f32) {
    %t = memref.alloca() : memref<1xf32>
    memref.store %half, %t[%c0] : memref<1xf32>
    %h = memref.load %t[%c0] : memref<1xf32>
    memref.alloca_scope.return %h : f32
  }
  %y = memref.alloc() : memref<4xf32>
  linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : memref<4xf32>) outs(%y : memref<4xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k : f32
    linalg.yield %p : f32
  }
  return %y : memref<4xf32>
}
func.func @several(%x: memref<4xi8>, %v: vector<4xi16>, %y: memref<4xi16>) -> (memref<4xi8>, i8, index) {
  %e = memref.load %x[%c2] : memref<4xi8>
  vector.store %v, %y[%c0] : memref<4xi16>, vector<4xi16>
  return %x, %e, %c2 : memref<4xi8>, i8, index
}
func.func @promised(%n: i32) {
  %c4 = arith.constant 4 : i32
  %is = arith.cmpi slt, %n, %c4 : i32
  cf.assert %is, "n is less than 4"
  return
}
func.func @ranks(%x: memref<6x4xi32>) {
  %ready = air.wait_all async
  %u = air.universe.alloc(%c3)
  %done = air.rank async [%ready] universe(%u) (%r, %q) in (%nr = %c2, %nq = %c3) args(%b = %x) : memref<6x4xi32> {
    %first = arith.muli %r, %c3 : index
    %row = arith.addi %first, %q : index
    air.launch (%i) in (%n = %c4) args(%k = %row, %m = %b) : index, memref<6x4xi32> {
      air.segment args(%ii = %i, %kk = %k, %mm = %m) : index, index, memref<6x4xi32> {
        air.herd tile (%tx, %ty) in (%sx = %c1, %sy = %c1) args(%iii = %ii, %kkk = %kk, %mmm = %mm)
            : index, index, memref<6x4xi32> {
          %l1 = memref.alloc() : memref<1xi32, 2>
          air.dma_memcpy_nd (%l1[] [] [], %mmm[%kkk, %iii] [%c1, %c1] [%c4, %c1]) : (memref<1xi32, 2>, memref<6x4xi32>)
          %old = memref.load %l1[%c0] : memref<1xi32, 2>
          %k32 = arith.index_cast %kkk : index to i32
          %new = arith.addi %old, %k32 : i32
          memref.store %new, %l1[%c0] : memref<1xi32, 2>
          air.dma_memcpy_nd (%mmm[%kkk, %iii] [%c1, %c1] [%c4, %c1], %l1[] [] []) : (memref<6x4xi32>, memref<1xi32, 2>)
          memref.dealloc %l1 : memref<1xi32, 2>
        }
      }
    }
  }
  air.wait_all [%done]
  return
}
func.func @recast(%x: memref<4x8xf32>, %y: memref<4xf32>, %z: memref<4xf32>, %n: index) {
  %v = memref.subview %x[1, 2] [2, 4] [1, 1] : memref<4x8xf32> to memref<2x4xf32, strided<[8, 1], offset: 10>>
  %r = memref.reinterpret_cast %v to offset: [3], sizes: [4], strides: [8]
      : memref<2x4xf32, strided<[8, 1], offset: 10>> to memref<4xf32, strided<[8], offset: 3>>
  memref.copy %r, %y : memref<4xf32, strided<[8], offset: 3>> to memref<4xf32>
  %w = memref.subview %x[%n, 2] [2, 4] [1, 1] : memref<4x8xf32> to memref<2x4xf32, strided<[8, 1], offset: ?>>
  %s = memref.reinterpret_cast %w to offset: [%n], sizes: [4], strides: [1]
      : memref<2x4xf32, strided<[8, 1], offset: ?>> to memref<4xf32, strided<[1], offset: ?>>
  memref.copy %s, %z : memref<4xf32, strided<[1], offset: ?>> to memref<4xf32>
  return
}
func.func @either(%first: i1, %x: memref<8xi32>, %y: memref<8xi32>, %n: index) {
  %c0 = arith.constant 0 : i32
  %a = memref.subview %x[0] [%n] [1] : memref<8xi32> to memref<?xi32, strided<[1]>>
  %b = memref.subview %y[0] [4] [1] : memref<8xi32> to memref<4xi32, strided<[1]>>
  %c = memref.cast %b : memref<4xi32, strided<[1]>> to memref<?xi32, strided<[1]>>
  %chosen = arith.select %first, %a, %c : memref<?xi32, strided<[1]>>
  linalg.fill ins(%c0 : i32) outs(%chosen : memref<?xi32, strided<[1]>>)
  return
}
func.func @unsigned(%x: memref<8xui8>, %y: memref<8xui8>, %z: memref<4xui16>) {
  %t = memref.alloc() : memref<8xui8>
  memref.copy %x, %t : memref<8xui8> to memref<8xui8>
  affine.for %i = 0 to 8 {
    %v = memref.load %t[%i] : memref<8xui8>
    memref.store %v, %y[%i] : memref<8xui8>
  }
  affine.for %i = 1 to 4 {
    %w = memref.load %z[%i] : memref<4xui16>
    memref.store %w, %z[%c0] : memref<4xui16>
  }
  return
}
"""


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "checked"])
def library(program, request):
    return program(PROGRAM, options=virtual_npu.BuildOptions(checks=request.param))


@pytest.mark.parametrize(("n", "m"), [(4, 6), (1, 9), (7, 5)])
def test_bounds_of_several_expressions(library, run, n, m):
    got, _, _ = run(library, "bounds", np.zeros((8, 8), np.int32), np.int64(n), np.int64(m))
    want = np.zeros((8, 8), np.int32)
    want[max(n - 2, 1) : min(n + 3, 8, m) : 2, ::3] = 1
    np.testing.assert_array_equal(got, want)


def test_affine_parallel_folds_what_it_yields(library, run):
    rng = np.random.default_rng(0)
    x, k = rng.integers(-9, 9, (4, 8)).astype(np.float32), rng.integers(-9, 9, (4, 8)).astype(np.int32)
    got = run(library, "folded", x, k, np.float32(0), np.float32(0), np.int32(0))
    assert [float(value) for value in got[2:]] == [x.sum(), x.max(), k.min()]


@pytest.mark.parametrize("at", [0, 37, 63])
def test_positions_one_by_one_and_back(library, run, at):
    got = run(library, "positions", np.int64(at), np.int64(4), np.zeros(3, np.int64), np.zeros(2, np.int64))
    np.testing.assert_array_equal(got[2], [at // 32, at // 8 % 4, at % 8])
    np.testing.assert_array_equal(got[3], [at, at])


def test_atomic_updates_give_the_old_or_the_new_element(library, run):
    x, f = np.array([3, 9, -1, 5], np.int32), np.array([1, 2, 3, 4], np.float32)
    new, old, squared, given = run(library, "atomic", x, x * 0, f, f * 0)
    np.testing.assert_array_equal(old, x)
    np.testing.assert_array_equal(new, np.maximum(x, 5))
    np.testing.assert_array_equal(squared, f * f)
    np.testing.assert_array_equal(given, f * f)


@pytest.mark.parametrize("dim", [0, 1])
def test_what_a_view_is_made_of(library, run, dim):
    """The buffer that a view lies in begins where the memref does, and the offset counts from there."""
    x = np.arange(7, 55, dtype=np.float32).reshape(8, 6)
    _, got, _ = run(library, "made_of", x, np.zeros(8, np.int64), np.int64(dim))
    np.testing.assert_array_equal(got, [4, 2, 12, 1, (4, 2)[dim], 2, 8, 7])


def test_an_invalid_dimension_is_an_error(library, run):
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match="dimension 2 of a memref of rank 2"):
        run(library, "made_of", np.zeros((8, 6), np.float32), np.zeros(8, np.int64), np.int64(2))


def test_returned_buffers_become_arguments(library, run):
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(run(library, "scoped", x, x * 0)[1], x / 2)


def test_several_results_and_an_argument_that_is_a_vector(library, run):
    """What is an argument already is not returned a second time."""
    x, v = np.array([1, 2, 7, 4], np.int8), np.array([9, 8, 7, 6], np.int16)
    _, _, y, e, n = run(library, "several", x, v, v * 0, np.int8(0), np.int64(0))
    assert (int(e), int(n)) == (7, 2)
    np.testing.assert_array_equal(y, v)


def test_assertions_are_checked(library, run):
    run(library, "promised", np.int32(3))
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match="does not hold: n is less than 4"):
        run(library, "promised", np.int32(4))


def test_ranks_run_one_after_another(library, run):
    x = np.arange(24, dtype=np.int32).reshape(6, 4)
    np.testing.assert_array_equal(run(library, "ranks", x)[0], x + np.arange(6, dtype=np.int32)[:, None])


def test_offsets_of_a_recast_count_from_the_buffer_whatever_its_view(library, run):
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    got = run(library, "recast", x, np.zeros(4, np.float32), np.zeros(4, np.float32), np.int64(2))
    np.testing.assert_array_equal(got[1], x.ravel()[3::8])
    np.testing.assert_array_equal(got[2], x.ravel()[2:6])


@pytest.mark.parametrize("first", [True, False])
def test_one_of_two_buffers(library, run, first):
    got = run(library, "either", np.bool_(first), np.ones(8, np.int32), np.ones(8, np.int32), np.int64(3))
    assert [int(a.sum()) for a in got[1:3]] == ([5, 8] if first else [8, 4])


def test_unsigned_elements(library, run):
    x = np.array([0, 1, 127, 128, 200, 255, 7, 9], np.uint8)
    z = np.array([1, 2, 3, 65535], np.uint16)
    _, y, z = run(library, "unsigned", x, x * 0, z)
    np.testing.assert_array_equal(y, x)
    assert z[0] == 65535


HERDS = """
air.channel @c [1]
air.channel @d [1]
func.func @empty(%x: memref<8xf32>) {
  air.launch () in () args(%a = %x) : memref<8xf32> {
    %t = air.channel.put async @c[] (%a[] [] []) : (memref<8xf32>)
    air.segment {
      %w = air.wait_all async
      %h = air.herd async [%w] tile (%i, %j) in (%n = %c2, %m = %c1) { }
      %r = scf.for %k = %c1 to %c2 step %c1 iter_args(%s = %h) -> (!air.async.token) {
        %g = air.herd async [%s] tile (%i, %j) in (%n = %c2, %m = %c1) { }
        scf.yield %g : !air.async.token
      }
      air.herd [%r] tile (%i, %j) in (%n = %c2, %m = %c1) { }
      %l1 = memref.alloc() : memref<8xf32, 1>
      air.channel.get @c[] (%l1[] [] []) : (memref<8xf32, 1>)
      memref.dealloc %l1 : memref<8xf32, 1>
    }
  }
  return
}
func.func @between(%x: memref<8xf32>) {
  air.launch () in () args(%a = %x) : memref<8xf32> {
    %sent = air.channel.put async @c[] (%a[] [] []) : (memref<8xf32>)
    %back = air.channel.get async [%sent] @d[] (%a[] [] []) : (memref<8xf32>)
    air.segment {
      %l2 = memref.alloc() : memref<8xf32, 1>
      air.channel.get @c[] (%l2[] [] []) : (memref<8xf32, 1>)
      air.herd tile (%i, %j) in (%n = %c2, %m = %c1) args(%b = %l2) : memref<8xf32, 1> {
        %own = memref.alloc() : memref<4xf32, 2>
        %at = arith.muli %i, %c4 : index
        air.dma_memcpy_nd (%own[] [] [], %b[%at] [%c4] [%c1]) : (memref<4xf32, 2>, memref<8xf32, 1>)
        %v = vector.load %own[%c0] : memref<4xf32, 2>, vector<4xf32>
        %w = arith.addf %v, %v : vector<4xf32>
        vector.store %w, %own[%c0] : memref<4xf32, 2>, vector<4xf32>
        air.dma_memcpy_nd (%b[%at] [%c4] [%c1], %own[] [] []) : (memref<8xf32, 1>, memref<4xf32, 2>)
        memref.dealloc %own : memref<4xf32, 2>
      }
      air.channel.put @d[] (%l2[] [] []) : (memref<8xf32, 1>)
      memref.dealloc %l2 : memref<8xf32, 1>
    }
  }
  return
}
func.func @nested(%x: memref<8xf32>) {
  air.herd tile (%i, %j) in (%n = %c2, %m = %c1) args(%a = %x) : memref<8xf32> {
    air.herd tile (%k, %l) in (%p = %c4, %q = %c1) args(%b = %a, %o = %i) : memref<8xf32>, index {
      %v = arith.constant 7.0 : f32
      %t = memref.alloc() : memref<1xf32, 2>
      memref.store %v, %t[%c0] : memref<1xf32, 2>
      %r = arith.muli %o, %c4 : index
      %at = arith.addi %r, %k : index
      air.dma_memcpy_nd (%b[%at] [%c1] [%c1], %t[] [] []) : (memref<8xf32>, memref<1xf32, 2>)
      memref.dealloc %t : memref<1xf32, 2>
    }
  }
  return
}
"""


@pytest.mark.parametrize("checks", [False, True])
def test_herds_with_nothing_in_them_herds_in_herds_and_herds_between_channels(program, run, checks):
    library = program(HERDS, options=virtual_npu.BuildOptions(checks=checks))
    run(library, "empty", np.zeros(8, np.float32))
    np.testing.assert_array_equal(run(library, "nested", np.zeros(8, np.float32))[0], np.full(8, 7))
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(run(library, "between", x)[0], 2 * x)


def wrapped(body: str, arguments: str = "%x: memref<8xf32>, %i: index") -> str:
    return f"func.func @f({arguments}) {{\n{body}\n  return\n}}"


REFUSED = {
    "a tensor argument": ("func.func @f(%x: tensor<4xf32>) {\n  return\n}", "line 1: func.func: tensor<4xf32> is a tensor"),
    "a tensor": (wrapped("  %t = tensor.empty() : tensor<4xf32>"), "line 2: tensor.empty: tensors are not supported"),
    "linalg on tensors": (
        wrapped("  %t = tensor.empty() : tensor<f32>\n  %r = linalg.exp ins(%t : tensor<f32>) outs(%t : tensor<f32>) -> tensor<f32>"),
        "line 2: tensor.empty: tensors are not supported: bufferize",
    ),
    "blocks": (
        "func.func @f() {\n  cf.br ^bb1\n^bb1:\n  return\n}",
        "line 2: cf.br: branches between blocks are not supported: write scf.if",
    ),
    "a placeholder": (wrapped("  air.custom @c operands (%x) : memref<8xf32>"), "line 2: air.custom: this is a placeholder"),
    "another device's buffer": (
        wrapped("  %y = air.translate %x, %i, %i, %h : memref<8xf32>, memref<?xindex>", "%x: memref<8xf32>, %i: index, %h: memref<2xindex>")
        .replace("%h : memref", "%g : memref").replace("{\n", "{\n  %g = memref.cast %h : memref<2xindex> to memref<?xindex>\n", 1),
        "line 3: air.translate: this belongs to systems of several GPUs",
    ),
    "an unranked buffer": ("func.func @f(%x: memref<*xf32>) {\n  return\n}", "line 1: func.func: memref<*xf32> has no shape"),
    "an odd integer": (wrapped("  %c = arith.constant 1 : i24"), "line 2: arith.constant: type i24 is not supported"),
    "a result without a shape": (
        "func.func @f(%n: index) -> memref<?xf32> {\n  %m = memref.alloc(%n) : memref<?xf32>\n  return %m : memref<?xf32>\n}",
        "line 3: func.return: returns memref<?xf32>: an entry gives results of static shape only",
    ),
    "a pack of tensors": (
        wrapped("  linalg.pack %t inner_dims_pos = [0] inner_tiles = [4] into %u : tensor<8xf32> -> tensor<2x4xf32>", "%t: tensor<8xf32>, %u: tensor<2x4xf32>").replace("  linalg", "  %r = linalg"),
        "is a tensor",
    ),
    "a pack without padding": (
        wrapped("  linalg.pack %x inner_dims_pos = [0] inner_tiles = [3] into %u : memref<8xf32> -> memref<3x3xf32>", "%x: memref<8xf32>, %u: memref<3x3xf32>"),
        "line 2: linalg.pack: the tiles may reach beyond the source, and there is no padding_value",
    ),
    "the last of many": (
        wrapped('  %r = affine.parallel (%k) = (0) to (8) reduce ("assign") -> (index) {\n    affine.yield %k : index\n  }'),
        "line 2: affine.parallel: reduces by assign",
    ),
    "channels of a herd in a herd": (
        HERDS.replace("memref.dealloc %t", "air.channel.put @c[] (%b[] [] []) : (memref<8xf32>)\n      memref.dealloc %t"),
        "air.herd: this is inside a herd and has channels of its own",
    ),
    "a masked fma": (
        wrapped(
            "  %r = vector.mask %m { vector.fma %v, %v, %v : vector<4xf32> } : vector<4xi1> -> vector<4xf32>",
            "%m: vector<4xi1>, %v: vector<4xf32>",
        ),
        "line 2: vector.mask: vector.fma with a mask is not supported: mask its operands",
    ),
    "another memory": (
        "func.func @f() {\n  %x = memref.alloc() : memref<4xf32, #air.symmetric_heap>\n  return\n}",
        "line 2: memref.alloc: this form is not supported: memory space",
    ),
    "a view of another shape": (
        wrapped(
            "  %v = memref.subview %x[0, 0, 0] [2, 3, 4] [1, 1, 1] : memref<8x8x8xf32> to memref<3x4xf32, strided<[8, 1]>>",
            "%x: memref<8x8x8xf32>",
        ),
        "line 2: memref.subview: sizes [2, 3, 4] do not make memref<3x4xf32, strided<[8, 1]>>",
    ),
    "a dma of memref": (
        wrapped('  "memref.dma_wait"(%t, %i, %i) {operandSegmentSizes = array<i32: 1, 1, 1>} : (memref<1xi32>, index, index) -> ()', "%t: memref<1xi32>, %i: index"),
        "memref.dma_wait: write air.wait_all",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_operation_its_line_and_the_reason(what):
    text, message = REFUSED[what]
    with pytest.raises(ProgramError) as caught:
        emit(with_constants(text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_oversight_of_an_emitter_is_an_error_with_a_line(monkeypatch):
    """Whatever goes wrong while C++ is made, the message names the operation, and nothing is a traceback."""
    from aerie.virtual_npu.codegen import body

    def broken(*_: object) -> None:
        raise KeyError("nothing here")

    monkeypatch.setitem(body._EMITTERS, "memref.rank", broken)
    with pytest.raises(
        virtual_npu.UnsupportedOpError, match=r"line 2: memref.rank: .*KeyError: 'nothing here'"
    ):
        emit(wrapped("  %r = memref.rank %x : memref<8xf32>"))
