# ruff: noqa: E501 - MLIR has long lines
"""Forms that MLIR has and that are easily left out: compact loops, recursion, metadata of views, rounding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aerie import virtual_npu
from aerie.air_dialect import parse, print_module
from aerie.virtual_npu import ProgramError
from tests.virtual_npu.air_texts import with_constants

PROGRAM = """
func.func @forms(%o: memref<16xi32>, %p: memref<16xindex>) {
  %a = arith.constant 0 : i32
  %b = arith.constant -8 : i32
  %lo = arith.constant -20 : i32
  %s = arith.constant 4 : i32
  %r = scf.for unsigned %i = %lo to %b step %s iter_args(%x = %a) -> i32 : i32 {
    %n = arith.addi %x, %i : i32
    scf.yield %n : i32
  }
  memref.store %r, %o[%c0] : memref<16xi32>
  %q = arith.cmpi sle, %c0, %c0 : index
  %r1 = scf.if %q -> index {
    scf.yield %c3 : index
  } else {
    scf.yield %c0 : index
  }
  memref.store %r1, %p[%c0] : memref<16xindex>
  %r2:2 = scf.if %q -> (index, i32) {
    scf.yield %c3, %s : index, i32
  } else {
    scf.yield %c0, %a : index, i32
  } {tag}
  memref.store %r2#1, %o[%c1] : memref<16xi32>
  scf.while : () -> () {
    %v = memref.load %o[%c2] : memref<16xi32>
    %t = arith.cmpi slt, %v, %s : i32
    scf.condition(%t)
  } do {
    %v = memref.load %o[%c2] : memref<16xi32>
    %k1 = arith.constant 1 : i32
    %w = arith.addi %v, %k1 : i32
    memref.store %w, %o[%c2] : memref<16xi32>
    scf.yield
  }
  %w3 = scf.while (%x = %c1) : (index) -> index {
    %t = arith.cmpi slt, %x, %c5 : index
    scf.condition(%t) %x : index
  } do {
  ^bb0(%y: index):
    %z = arith.addi %y, %c2 : index
    scf.yield %z : index
  } attributes {tag}
  memref.store %w3, %p[%c1] : memref<16xindex>
  %w4, %w5 = scf.while (%x = %c1, %e = %s) : (index, i32) -> (i32, index) {
    %t = arith.cmpi slt, %x, %c5 : index
    scf.condition(%t) %e, %x : i32, index
  } do {
  ^bb0(%y: i32, %g: index):
    %z = arith.addi %g, %c2 : index
    scf.yield %z, %y : index, i32
  }
  memref.store %w5, %p[%c2] : memref<16xindex>
  %e1 = scf.execute_region -> index {
    scf.yield %c5 : index
  }
  memref.store %e1, %p[%c3] : memref<16xindex>
  %e2:2 = scf.execute_region -> (index, index) {
    scf.yield %c5, %c4 : index, index
  }
  memref.store %e2#1, %p[%c4] : memref<16xindex>
  %sw = scf.index_switch %c2 -> i32
  case 1 {
    scf.yield %a : i32
  }
  case 2 {
    scf.yield %b : i32
  }
  default {
    scf.yield %s : i32
  }
  memref.store %sw, %o[%c3] : memref<16xi32>
  scf.index_switch %c2
  case -1 { }
  default {
    memref.store %b, %o[%c4] : memref<16xi32>
  }
  %pr = scf.parallel (%i, %j) = (%c0, %c0) to (%c2, %c3) step (%c1, %c1) init (%a) -> i32 {
    %ii = arith.index_cast %i : index to i32
    scf.reduce(%ii : i32) {
    ^bb0(%l: i32, %m: i32):
      %su = arith.addi %l, %m : i32
      scf.reduce.return %su : i32
    }
  }
  memref.store %pr, %o[%c5] : memref<16xi32>
  %z:2 = scf.parallel (%i) = (%c0) to (%c4) step (%c1) init (%a, %s) -> (i32, i32) {
    %ii = arith.index_cast %i : index to i32
    scf.reduce(%ii, %ii : i32, i32) {
    ^bb0(%l: i32, %m: i32):
      %su = arith.addi %l, %m : i32
      scf.reduce.return %su : i32
    }, {
    ^bb0(%l: i32, %m: i32):
      %su = arith.muli %l, %m : i32
      scf.reduce.return %su : i32
    }
  }
  memref.store %z#0, %o[%c6] : memref<16xi32>
  scf.forall (%i) in (3) {
    memref.store %i, %p[%c6] : memref<16xindex>
  }
  scf.forall (%i, %j) = (0, %c1) to (%c2, 4) step (1, 2) {
    memref.store %j, %p[%c6] : memref<16xindex>
    scf.forall.in_parallel {
    }
  } {mapping = [#gpu.thread<x>, #gpu.thread<y>]}
  return
}
func.func private @even(%n: index) -> i1 {
  %t = arith.constant true
  %q = arith.cmpi eq, %n, %c0 : index
  %r = scf.if %q -> i1 {
    scf.yield %t : i1
  } else {
    %m = arith.subi %n, %c1 : index
    %s = func.call @odd(%m) : (index) -> i1
    scf.yield %s : i1
  }
  return %r : i1
}
func.func private @odd(%n: index) -> i1 {
  %t = arith.constant false
  %q = arith.cmpi eq, %n, %c0 : index
  %r = scf.if %q -> i1 {
    scf.yield %t : i1
  } else {
    %m = arith.subi %n, %c1 : index
    %s = func.call @even(%m) : (index) -> i1
    scf.yield %s : i1
  }
  return %r : i1
}
func.func private @fill(%o: memref<8xi32>, %n: index) {
  %q = arith.cmpi sgt, %n, %c0 : index
  scf.if %q {
    %m = arith.subi %n, %c1 : index
    %v = arith.index_cast %m : index to i32
    memref.store %v, %o[%m] : memref<8xi32>
    func.call @fill(%o, %m) : (memref<8xi32>, index) -> ()
  }
  return
}
func.func @recursive(%o: memref<8xi32>, %e: memref<4xi1>, %d: memref<1xindex>) {
  %n = memref.load %d[%c0] : memref<1xindex>
  func.call @fill(%o, %c8) : (memref<8xi32>, index) -> ()
  %x = func.call @even(%c13) : (index) -> i1
  %y = func.call @odd(%n) : (index) -> i1
  memref.store %x, %e[%c0] : memref<4xi1>
  memref.store %y, %e[%c1] : memref<4xi1>
  return
}
func.func @metadata(%a: memref<6x8xf32>, %x: memref<12xindex>, %n: memref<2xindex>, %o: memref<4xf32>) {
  %i = memref.load %n[%c0] : memref<2xindex>
  %j = memref.load %n[%c1] : memref<2xindex>
  %s = memref.subview %a[%i, 2] [3, 3] [1, 2] : memref<6x8xf32> to memref<3x3xf32, strided<[8, 2], offset: ?>>
  %s2 = memref.subview %s[%j, 1] [2, 2] [1, 1] : memref<3x3xf32, strided<[8, 2], offset: ?>> to memref<2x2xf32, strided<[8, 2], offset: ?>>
  %b, %off, %sz:2, %st:2 = memref.extract_strided_metadata %s2 : memref<2x2xf32, strided<[8, 2], offset: ?>> -> memref<f32>, index, index, index, index, index
  memref.store %off, %x[%c0] : memref<12xindex>
  memref.store %st#0, %x[%c1] : memref<12xindex>
  memref.store %sz#1, %x[%c2] : memref<12xindex>
  %r = memref.reinterpret_cast %b to offset: [%off], sizes: [1], strides: [1] : memref<f32> to memref<1xf32, strided<[1], offset: ?>>
  %v = memref.load %r[%c0] : memref<1xf32, strided<[1], offset: ?>>
  memref.store %v, %o[%c0] : memref<4xf32>
  %d = memref.cast %s2 : memref<2x2xf32, strided<[8, 2], offset: ?>> to memref<?x?xf32, strided<[?, ?], offset: ?>>
  %b3, %off3, %sz3:2, %st3:2 = memref.extract_strided_metadata %d : memref<?x?xf32, strided<[?, ?], offset: ?>> -> memref<f32>, index, index, index, index, index
  memref.store %off3, %x[%c3] : memref<12xindex>
  memref.store %st3#1, %x[%c4] : memref<12xindex>
  %p0 = memref.extract_aligned_pointer_as_index %a : memref<6x8xf32> -> index
  %p1 = memref.extract_aligned_pointer_as_index %s2 : memref<2x2xf32, strided<[8, 2], offset: ?>> -> index
  %dp = arith.subi %p1, %p0 : index
  memref.store %dp, %x[%c5] : memref<12xindex>
  %al = memref.alloc() : memref<6x8xf32>
  memref.copy %a, %al : memref<6x8xf32> to memref<6x8xf32>
  %row = memref.subview %al[%i, 0] [1, 8] [1, 1] : memref<6x8xf32> to memref<8xf32, strided<[1], offset: ?>>
  %e = memref.expand_shape %row [[0, 1]] output_shape [2, 4] : memref<8xf32, strided<[1], offset: ?>> into memref<2x4xf32, strided<[4, 1], offset: ?>>
  %t = memref.transpose %e (d0, d1) -> (d1, d0) : memref<2x4xf32, strided<[4, 1], offset: ?>> to memref<4x2xf32, strided<[1, 4], offset: ?>>
  %b4, %off4, %sz4:2, %st4:2 = memref.extract_strided_metadata %t : memref<4x2xf32, strided<[1, 4], offset: ?>> -> memref<f32>, index, index, index, index, index
  memref.store %off4, %x[%c6] : memref<12xindex>
  memref.store %st4#1, %x[%c7] : memref<12xindex>
  memref.dealloc %al : memref<6x8xf32>
  air.launch () in () args(%w=%s2, %xx=%x, %oo=%o) : memref<2x2xf32, strided<[8, 2], offset: ?>>, memref<12xindex>, memref<4xf32> {
    %k1 = arith.constant 1 : index
    %k8 = arith.constant 8 : index
    %bb, %o2, %z:2, %y:2 = memref.extract_strided_metadata %w : memref<2x2xf32, strided<[8, 2], offset: ?>> -> memref<f32>, index, index, index, index, index
    memref.store %o2, %xx[%k8] : memref<12xindex>
    %q = memref.reinterpret_cast %w to offset: [%o2], sizes: [1], strides: [1] : memref<2x2xf32, strided<[8, 2], offset: ?>> to memref<1xf32, strided<[1], offset: ?>>
    %k0 = arith.constant 0 : index
    %vv = memref.load %q[%k0] : memref<1xf32, strided<[1], offset: ?>>
    memref.store %vv, %oo[%k1] : memref<4xf32>
  }
  return
}

func.func @rounded(%x: memref<8xf32>, %y: memref<5x8xbf16>, %z: memref<5x8xf32>, %d: memref<8xf64>) {
  %v0 = vector.load %x[%c0] : memref<8xf32>, vector<8xf32>
  %b0 = arith.truncf %v0 to_nearest_even : vector<8xf32> to vector<8xbf16>
  vector.store %b0, %y[%c0, %c0] : memref<5x8xbf16>, vector<8xbf16>
  scf.for %i = %c0 to %c8 step %c1 {
    %w = memref.load %d[%i] : memref<8xf64>
    %f = arith.truncf %w to_nearest_even fastmath<contract> : f64 to f32
    memref.store %f, %z[%c0, %i] : memref<5x8xf32>
  }
  %v1 = vector.load %x[%c0] : memref<8xf32>, vector<8xf32>
  %b1 = arith.truncf %v1 downward : vector<8xf32> to vector<8xbf16>
  vector.store %b1, %y[%c1, %c0] : memref<5x8xbf16>, vector<8xbf16>
  scf.for %i = %c0 to %c8 step %c1 {
    %w = memref.load %d[%i] : memref<8xf64>
    %f = arith.truncf %w downward fastmath<contract> : f64 to f32
    memref.store %f, %z[%c1, %i] : memref<5x8xf32>
  }
  %v2 = vector.load %x[%c0] : memref<8xf32>, vector<8xf32>
  %b2 = arith.truncf %v2 upward : vector<8xf32> to vector<8xbf16>
  vector.store %b2, %y[%c2, %c0] : memref<5x8xbf16>, vector<8xbf16>
  scf.for %i = %c0 to %c8 step %c1 {
    %w = memref.load %d[%i] : memref<8xf64>
    %f = arith.truncf %w upward fastmath<contract> : f64 to f32
    memref.store %f, %z[%c2, %i] : memref<5x8xf32>
  }
  %v3 = vector.load %x[%c0] : memref<8xf32>, vector<8xf32>
  %b3 = arith.truncf %v3 toward_zero : vector<8xf32> to vector<8xbf16>
  vector.store %b3, %y[%c3, %c0] : memref<5x8xbf16>, vector<8xbf16>
  scf.for %i = %c0 to %c8 step %c1 {
    %w = memref.load %d[%i] : memref<8xf64>
    %f = arith.truncf %w toward_zero fastmath<contract> : f64 to f32
    memref.store %f, %z[%c3, %i] : memref<5x8xf32>
  }
  %v4 = vector.load %x[%c0] : memref<8xf32>, vector<8xf32>
  %b4 = arith.truncf %v4 to_nearest_away : vector<8xf32> to vector<8xbf16>
  vector.store %b4, %y[%c4, %c0] : memref<5x8xbf16>, vector<8xbf16>
  scf.for %i = %c0 to %c8 step %c1 {
    %w = memref.load %d[%i] : memref<8xf64>
    %f = arith.truncf %w to_nearest_away fastmath<contract> : f64 to f32
    memref.store %f, %z[%c4, %i] : memref<5x8xf32>
  }
  %s = arith.addf %v0, %v0 to_nearest_even fastmath<nnan> : vector<8xf32>
  %t = arith.divf %s, %v0 to_nearest_even : vector<8xf32>
  return
}
"""
X = np.array([1.001953125, -1.001953125, 1.00390625, -1.00390625, 1.01171875, 3e38, -0.0, np.inf], np.float32)
D = np.array([1 + 2**-24, -1 - 2**-24, 1 + 2**-30, -1 - 2**-30, 1e-50, -1e-50, 1e300, -1e300])


def _between(values: np.ndarray, narrow: type) -> list[np.ndarray]:
    """The next narrow number at or below each value, and the next at or above it."""
    near = values.astype(narrow).astype(np.float64)
    step = {ml_dtypes.bfloat16: 16, np.float32: 0}[narrow]
    found = []
    for sign in (-1, 1):
        bound = near.copy()
        for i in range(values.size):
            while sign * bound[i] < sign * values[i]:
                next_ = np.float32(bound[i])
                for _ in range(1 << step):
                    next_ = np.nextafter(next_, np.float32(sign * np.inf))
                bound[i] = next_
        found.append(bound)
    return found


@pytest.mark.parametrize("checks", [True, False])
def test_forms_run(program, run, checks: bool) -> None:
    library = program(PROGRAM, options=virtual_npu.BuildOptions(checks=checks))
    numbers, places = np.zeros(16, np.int32), np.zeros(16, np.int64)
    found = run(library, "forms", numbers, places)
    assert found[0][:7].tolist() == [-48, 4, 4, -8, -8, 3, 6]
    assert found[1][:7].tolist() == [3, 5, 5, 5, 4, 0, 3]
    filled, odd, _ = run(library, "recursive", np.zeros(8, np.int32), np.zeros(4, bool), np.array([991]))
    assert filled.tolist() == list(range(8))
    assert odd.tolist() == [False, True, False, False]
    a = np.arange(48, dtype=np.float32).reshape(6, 8)
    _, output, _, out = run(
        library, "metadata", a, np.zeros(12, np.int64), np.array([2, 1]), np.zeros(4, np.float32)
    )
    assert output[:9].tolist() == [28, 8, 2, 28, 2, 0, 16, 4, 28]
    assert out[:2].tolist() == [28, 28]


def test_a_function_that_calls_itself_ends_somewhere(program, run) -> None:
    library = program(PROGRAM, options=virtual_npu.BuildOptions(checks=False))
    for _ in range(2):  # also when it is called again
        with pytest.raises(
            ProgramError, match="calls itself more than 1000 deep: the stack of a core has 1024"
        ):
            run(library, "recursive", np.zeros(8, np.int32), np.zeros(4, bool), np.array([-1]))
        run(library, "recursive", np.zeros(8, np.int32), np.zeros(4, bool), np.array([991]))
    moves = "func.func @f(%a: memref<4xf32>) { air.dma_memcpy_nd (%a[] [] [], %a[] [] []) : (memref<4xf32>, memref<4xf32>) func.call @f(%a) : (memref<4xf32>) -> () return }"
    with pytest.raises(
        ProgramError, match="@f calls itself, which only a function can that computes on numbers"
    ):
        program(moves)


@pytest.mark.parametrize("checks", [True, False])
def test_truncf_rounds_by_its_attribute(program, run, checks: bool) -> None:
    library = program(PROGRAM, options=virtual_npu.BuildOptions(checks=checks))
    bits, floats = np.zeros((5, 8), np.uint16), np.zeros((5, 8), np.float32)
    _, bits, floats, _ = run(library, "rounded", X, bits, floats, D)
    with np.errstate(over="ignore", invalid="ignore"):
        for values, got, narrow in (
            (X.astype(np.float64), bits.view(ml_dtypes.bfloat16), ml_dtypes.bfloat16),
            (D, floats, np.float32),
        ):
            low, high = _between(values, narrow)
            away = np.where(values - low < high - values, low, high)
            away = np.where((values - low == high - values) & (values < 0), low, away)
            exact = low == high
            wide = got.astype(np.float64)
            assert wide[0].tolist() == values.astype(narrow).astype(np.float64).tolist()
            assert wide[1].tolist() == low.tolist()
            assert wide[2].tolist() == high.tolist()
            assert wide[3].tolist() == np.where(values > 0, low, high).tolist()
            finite = np.isfinite(low) & np.isfinite(high)
            assert wide[4][finite].tolist() == np.where(exact, values, away)[finite].tolist()


def test_a_sum_that_rounds_otherwise_is_refused(program) -> None:
    text = PROGRAM.replace("%v0, %v0 to_nearest_even", "%v0, %v0 upward")
    with pytest.raises(ProgramError, match=r"arith\.addf: rounds upward: it is done to_nearest_even only"):
        program(text)


def test_forms_are_printed_as_they_are_read() -> None:
    printed = print_module(parse(with_constants(PROGRAM)))
    for piece in (
        "scf.for unsigned",
        "scf.while : () -> ()",
        "toward_zero",
        "to_nearest_away fastmath<contract>",
    ):
        assert piece in printed
    assert print_module(parse(printed)) == printed
