# ruff: noqa: E501 - MLIR has long lines
"""Forms that programs from elsewhere use: functions around transfers, padding, older layouts, odd kinds."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import virtual_npu
from tests.virtual_npu.air_texts import with_constants

CALLS = """
  air.channel @in [1, 1]
  air.channel @out [1, 1]
  func.func private @receive(%b: memref<16xf32, 2>) -> memref<16xf32, 2> {
    air.channel.get @in[] (%b[] [] []) : (memref<16xf32, 2>)
    return %b : memref<16xf32, 2>
  }
  func.func private @drain(%y: memref<?xf32, strided<[1], offset: ?>>) {
    air.channel.get @out[] (%y[] [] []) : (memref<?xf32, strided<[1], offset: ?>>)
    return
  }
  func.func private @halves(%x: memref<16xf32>, %y: memref<16xf32, 2>) {
    scf.for %i = %c0 to %c16 step %c8 {
      air.dma_memcpy_nd (%y[%i] [%c8] [%c1], %x[%i] [%c8] [%c1]) : (memref<16xf32, 2>, memref<16xf32>)
    }
    return
  }
  func.func private @both(%x: memref<16xf32>, %t: memref<16xf32, 2>) {
    func.call @halves(%x, %t) : (memref<16xf32>, memref<16xf32, 2>) -> ()
    return
  }
  func.func @calls(%x: memref<16xf32>, %y: memref<16xf32>, %z: memref<16xf32>) {
    air.launch () in () args(%a=%x, %b=%y, %c=%z) : memref<16xf32>, memref<16xf32>, memref<16xf32> {
      air.channel.put @in[] (%a[] [] []) : (memref<16xf32>)
      %v = memref.cast %b : memref<16xf32> to memref<?xf32, strided<[1], offset: ?>>
      func.call @drain(%v) : (memref<?xf32, strided<[1], offset: ?>>) -> ()
      air.segment @s args(%sa=%a, %sc=%c) : memref<16xf32>, memref<16xf32> {
        air.herd @h tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%ha=%sa, %hc=%sc) : memref<16xf32>, memref<16xf32> {
          %t = memref.alloc() : memref<16xf32, 2>
          %u = func.call @receive(%t) : (memref<16xf32, 2>) -> memref<16xf32, 2>
          air.channel.put @out[] (%u[] [] []) : (memref<16xf32, 2>)
          func.call @both(%ha, %t) : (memref<16xf32>, memref<16xf32, 2>) -> ()
          air.dma_memcpy_nd (%hc[] [] [], %t[] [] []) : (memref<16xf32>, memref<16xf32, 2>)
        }
      }
    }
    return
  }
"""

PADDED = """
  air.channel @padded [1, 1]
  func.func @pad(%x: memref<4x6xf32>, %y: memref<4x4xf32>, %z: memref<7xf32>) {
    air.launch () in () args(%a=%x, %b=%y, %o=%z) : memref<4x6xf32>, memref<4x4xf32>, memref<7xf32> {
      %s = memref.subview %a[1, 2] [2, 3] [1, 1] : memref<4x6xf32> to memref<2x3xf32, #rows>
      air.dma_memcpy_nd (%b[] [] [], %s[] [] []) {pad_before = array<i32: 1, 0>, pad_after = array<i32: 1, 1>} : (memref<4x4xf32>, memref<2x3xf32, #rows>)
      air.channel.put @padded[] (%a[%c0, %c2] [%c1, %c3] [%c6, %c1]) {pad_before = array<i32: 0, 3>, pad_after = array<i32: 0, 1>} : (memref<4x6xf32>)
      air.channel.get @padded[%c0, %c0] (%o[] [] []) : (memref<7xf32>)
    }
    return
  }
"""

KINDS = """
  func.func @kinds(%a: memref<2x3xf32>, %b: memref<3x4xf32>, %c: memref<2x4xf32>) {
    %p = ub.poison : f32
    %va = vector.transfer_read %a[%c0, %c0], %p {in_bounds = [true, true]} : memref<2x3xf32>, vector<2x3xf32>
    %vb = vector.load %b[%c0, %c0] : memref<3x4xf32>, vector<3x4xf32>
    %vc = vector.load %c[%c0, %c0] : memref<2x4xf32>, vector<2x4xf32>
    %r = vector.contract {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<maxnumf>} %va, %vb, %vc : vector<2x3xf32>, vector<3x4xf32> into vector<2x4xf32>
    vector.store %r, %c[%c0, %c0] : memref<2x4xf32>, vector<2x4xf32>
    return
  }
  func.func @reshaped(%x: memref<2x6xf32>, %shape: memref<2xindex>, %y: memref<3x4xf32>) -> !air.async.token {
    %r = memref.reshape %x(%shape) : (memref<2x6xf32>, memref<2xindex>) -> memref<3x4xf32>
    %t = air.execute {
      memref.copy %r, %y : memref<3x4xf32> to memref<3x4xf32>
    }
    return %t : !air.async.token
  }
"""

# An L1 buffer of the segment that two herds of one name use: every tile has its own.
HOISTED = """
  air.channel @hoist [2, 1]
  func.func @hoisted(%x: memref<2x16xf32>, %y: memref<2x16xf32>) {
    air.launch () in () args(%a=%x, %b=%y) : memref<2x16xf32>, memref<2x16xf32> {
      air.channel.put @hoist[%c0, %c0] (%a[%c0, %c0] [%c1, %c16] [%c16, %c1]) : (memref<2x16xf32>)
      air.channel.put @hoist[%c1, %c0] (%a[%c1, %c0] [%c1, %c16] [%c16, %c1]) : (memref<2x16xf32>)
      air.segment @s args(%sb=%b) : memref<2x16xf32> {
        %t0, %t = air.execute -> (memref<16xf32, 2>) {
          %alloc = memref.alloc() : memref<16xf32, 2>
          air.execute_terminator %alloc : memref<16xf32, 2>
        }
        %h = air.herd @h async [%t0] tile (%tx, %ty) in (%sx=%c2, %sy=%c1) args(%m=%t) : memref<16xf32, 2> {
          air.channel.get @hoist[%tx, %ty] (%m[] [] []) : (memref<16xf32, 2>)
        }
        %g = air.herd @h async [%h] tile (%tx, %ty) in (%sx=%c2, %sy=%c1) args(%m=%t, %hb=%sb) : memref<16xf32, 2>, memref<2x16xf32> {
          %v = vector.load %m[%c0] : memref<16xf32, 2>, vector<16xf32>
          %w = arith.addf %v, %v : vector<16xf32>
          vector.store %w, %m[%c0] : memref<16xf32, 2>, vector<16xf32>
          air.dma_memcpy_nd (%hb[%tx, %c0] [%c1, %c16] [%c16, %c1], %m[] [] []) : (memref<2x16xf32>, memref<16xf32, 2>)
        }
        air.wait_all [%g]
        memref.dealloc %t : memref<16xf32, 2>
      }
    }
    return
  }
"""

MAPS = """
#rows = affine_map<(d0, d1)[s0] -> (d0 * 6 + s0 + d1)>
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
"""


@pytest.fixture(scope="module")
def library(program):
    return program(f"{MAPS}module {{{CALLS}{PADDED}{KINDS}{HOISTED}}}")


def numbers(*shape):
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def test_functions_with_transfers_run_where_they_are_called(library, run):
    x = numbers(16)
    _, y, z = run(library, "calls", x, np.zeros_like(x), np.zeros_like(x))
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, x)


def test_padding_puts_zeros_around_what_is_read(library, run):
    x = numbers(4, 6)
    _, y, z = run(library, "pad", x, np.ones((4, 4), np.float32), np.ones(7, np.float32))
    np.testing.assert_array_equal(y, np.pad(x[1:3, 2:5], ((1, 1), (0, 1))))
    np.testing.assert_array_equal(z, np.pad(x[0, 2:5], (3, 1)))


def test_contract_with_another_kind(library, run):
    a, b, c = numbers(2, 3), numbers(3, 4), numbers(2, 4)
    want = np.maximum((a[:, :, None] * b).max(axis=1), c)
    np.testing.assert_array_equal(run(library, "kinds", a, b, c)[2], want)


def test_reshape_and_a_token_that_is_returned(library, run):
    x = numbers(2, 6)
    shape = np.array([3, 4], np.int64)
    np.testing.assert_array_equal(
        run(library, "reshaped", x, shape, np.zeros((3, 4), np.float32))[2], x.reshape(3, 4)
    )


@pytest.mark.parametrize("threads", ["1", "2"])
def test_an_l1_buffer_of_the_segment_is_every_tiles_own(library, run, threads, monkeypatch):
    monkeypatch.setenv("VNPU_THREADS", threads)
    x = numbers(2, 16)
    np.testing.assert_array_equal(run(library, "hoisted", x, np.zeros_like(x))[1], 2 * x)


def refused(text: str, message: str) -> None:
    with pytest.raises(virtual_npu.ProgramError, match=message):
        virtual_npu.emit(with_constants(text))


def test_forms_without_a_meaning_are_refused_by_name():
    refused(
        """func.func @f(%x: memref<4xf32, 2>) {
             air.herd @solo tile (%i, %j) in (%n=%c1, %m=%c1) args(%a=%x) : memref<4xf32, 2> attributes {link_with = "k.o"}
             return
           }""",
        r"line 2: air.herd: @solo has link_with but no body, which names no function to run",
    )
    refused("func.func @f(%x: memref<*xf32>) { return }", r"memref<\*xf32> has no shape: run it with arrays")
    refused(
        """air.channel @c [1]
           func.func @f(%x: memref<4xf32>) {
             air.channel.get @c[] (%x[] [] []) {pad_before = array<i32: 1>, pad_after = array<i32: 0>} : (memref<4xf32>)
             return
           }""",
        r"line 3: air.channel.get: pad_before and pad_after belong to the side that gives data",
    )
    refused(
        """func.func @f(%x: memref<4xf32>, %y: memref<6xf32>) {
             air.dma_memcpy_nd (%y[] [] [], %x[] [] []) {pad_before = array<i32: 1, 0>, pad_after = array<i32: 1, 0>} : (memref<6xf32>, memref<4xf32>)
             return
           }""",
        r"line 2: air.dma_memcpy_nd: pad_before has 2 values for 1 sizes: give one per dimension",
    )
