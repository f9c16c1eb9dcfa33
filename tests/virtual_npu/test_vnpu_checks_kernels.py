# ruff: noqa: E501 - MLIR has long lines
"""Memory checks of external kernels: what vector loads and stores tell, and what is seen when the kernel has returned."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import virtual_npu

CHECKS = virtual_npu.BuildOptions(checks=True)

KERNELS = """
#include <aie_api/aie.hpp>
extern "C" {
void load_at(int32_t at, float *a, float *out) { aie::store_v(out, aie::load_unaligned_v<8>(a + at)); }
void store_at(int32_t at, float *a) { aie::store_v(a + at, aie::zeros<float, 8>()); }
void plain_store_at(int32_t at, float *a) { a[at] = 1.0f; }
void plain_store_ints(int32_t *a) { for (int i = 0; i < 3; ++i) a[i] = -1; }
void store_then_load(float *a) {
  for (int i = 0; i < 8; ++i) a[i] = 1.0f;
  aie::store_v(a + 8, aie::load_v<8>(a));
}
}
"""

PROGRAM = """
module {
  func.func private @load_at(i32, memref<16xf32, 2>, memref<8xf32, 2>) attributes {link_with = "checked.o"}
  func.func private @store_at(i32, memref<16xf32, 2>) attributes {link_with = "checked.o"}
  func.func private @plain_store_at(i32, memref<16xf32, 2>) attributes {link_with = "checked.o"}
  func.func private @plain_store_ints(memref<4xi32, 2>) attributes {link_with = "checked.o"}
  func.func private @store_then_load(memref<16xf32, 2>) attributes {link_with = "checked.o"}

  func.func @loads(%at: i32, %written: index) {
    %f = arith.constant 1.0 : f32
    %a = memref.alloc() : memref<16xf32, 2>
    %o = memref.alloc() : memref<8xf32, 2>
    scf.for %i = %c0 to %written step %c1 {
      memref.store %f, %a[%i] : memref<16xf32, 2>
    }
    func.call @load_at(%at, %a, %o) : (i32, memref<16xf32, 2>, memref<8xf32, 2>) -> ()
    memref.dealloc %a : memref<16xf32, 2>
    memref.dealloc %o : memref<8xf32, 2>
    return
  }
  func.func @many_loads(%at: i32, %written: index) {
    %f = arith.constant 1.0 : f32
    %a = memref.alloc() : memref<16xf32, 2>
    %o = memref.alloc() : memref<8xf32, 2>
    linalg.fill ins(%f : f32) outs(%a : memref<16xf32, 2>)
    linalg.fill ins(%f : f32) outs(%o : memref<8xf32, 2>)
    scf.for %i = %c0 to %written step %c1 {
      %k = arith.index_cast %i : index to i32
      %z = arith.muli %k, %at : i32
      func.call @load_at(%at, %a, %o) : (i32, memref<16xf32, 2>, memref<8xf32, 2>) -> ()
      func.call @load_at(%z, %a, %o) : (i32, memref<16xf32, 2>, memref<8xf32, 2>) -> ()
    }
    memref.dealloc %a : memref<16xf32, 2>
    memref.dealloc %o : memref<8xf32, 2>
    return
  }
  func.func @stores(%at: i32, %read: index) {
    %a = memref.alloc() : memref<16xf32, 2>
    func.call @store_at(%at, %a) : (i32, memref<16xf32, 2>) -> ()
    %v = memref.load %a[%read] : memref<16xf32, 2>
    memref.dealloc %a : memref<16xf32, 2>
    return
  }
  func.func @plain_stores(%at: i32, %read: index) {
    %a = memref.alloc() : memref<16xf32, 2>
    func.call @plain_store_at(%at, %a) : (i32, memref<16xf32, 2>) -> ()
    %v = memref.load %a[%read] : memref<16xf32, 2>
    memref.dealloc %a : memref<16xf32, 2>
    return
  }
  func.func @late(%at: i32, %read: index) {
    %a = memref.alloc() : memref<16xf32, 2>
    memref.dealloc %a : memref<16xf32, 2>
    func.call @plain_store_at(%at, %a) : (i32, memref<16xf32, 2>) -> ()
    return
  }
  func.func @ints(%at: i32, %read: index) {
    %a = memref.alloc() : memref<4xi32, 2>
    func.call @plain_store_ints(%a) : (memref<4xi32, 2>) -> ()
    %v = memref.load %a[%read] : memref<4xi32, 2>
    memref.dealloc %a : memref<4xi32, 2>
    return
  }
  func.func @both(%at: i32, %read: index) {
    %a = memref.alloc() : memref<16xf32, 2>
    func.call @store_then_load(%a) : (memref<16xf32, 2>) -> ()
    %v = memref.load %a[%read] : memref<16xf32, 2>
    memref.dealloc %a : memref<16xf32, 2>
    return
  }
  func.func @kept(%at: i32, %read: index) {
    air.herd @h tile (%tx, %ty) in (%sx=%c2, %sy=%c1) {
      %a = memref.alloc() : memref<16xf32, 2>
    }
    return
  }
}
"""


LINES = list(enumerate(PROGRAM.splitlines(), 1))


def line(text: str, entry: str) -> int:
    """The first line of an entry that has a text."""
    begin = next(number for number, found in LINES if f"func.func @{entry}(" in found)
    return next(number for number, found in LINES if number > begin and text in found)


@pytest.fixture(scope="module")
def checked(program, tmp_path_factory) -> virtual_npu.Library:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "checked.cc").write_text(KERNELS)
    return program(PROGRAM, kernel_dirs=(folder,), options=CHECKS)


def call(library: virtual_npu.Library, entry: str, first: int, second: int) -> virtual_npu.RunResult:
    a, b = np.array(first, np.int32), np.array(second, np.int64)
    return library.run(entry, [a.ctypes.data, b.ctypes.data])


OUTSIDE = "func.call @{kernel}: {verb}, in argument 1, elements {first} to {last} of {a}, which has elements 0 to 15"
UNWRITTEN = (
    "{op}: reads element [{at}] of {a} before anything wrote it: {written} of its 16 elements are written"
)
WROTE = "func.call @plain_store_at: wrote 4 bytes outside of argument 1, {a}"
FREED = "func.call @plain_store_at: passes {a} after line {dealloc} (memref.dealloc) freed it: move the deallocation behind the last use"
LOAD, STORE = {"kernel": "load_at", "verb": "reads"}, {"kernel": "store_at", "verb": "writes"}
CALL = {"op": "func.call @load_at"}
FAULTS = [
    ("loads", 0, 0, "uninitialised", UNWRITTEN, {**CALL, "at": 0, "written": 0}),
    ("loads", 8, 8, "uninitialised", UNWRITTEN, {**CALL, "at": 8, "written": 8}),
    ("loads", 12, 16, "outside", OUTSIDE, {**LOAD, "first": 12, "last": 19}),
    ("loads", -2, 16, "outside", OUTSIDE, {**LOAD, "first": -2, "last": 5}),
    ("many_loads", 3, 5, "outside", OUTSIDE, {**LOAD, "first": 9, "last": 16}),
    ("stores", 9, 0, "outside", OUTSIDE, {**STORE, "first": 9, "last": 16}),
    ("plain_stores", 16, 0, "outside", WROTE, {}),
    ("plain_stores", -3, 0, "outside", WROTE, {}),
    ("stores", 8, 7, "uninitialised", UNWRITTEN, {"op": "memref.load", "at": 7, "written": 8}),
    ("plain_stores", 3, 2, "uninitialised", UNWRITTEN, {"op": "memref.load", "at": 2, "written": 1}),
    ("late", 0, 0, "freed", FREED, {}),
]


@pytest.mark.parametrize(("entry", "first", "second", "kind", "message", "words"), FAULTS)
def test_a_fault_of_a_kernel_is_reported(entry, first, second, kind, message, words, checked):
    made = line("%a = memref.alloc()", entry)
    where = {"a": f"%a (memref<16xf32, 2>, allocated at line {made})", "dealloc": line("dealloc %a", entry)}
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError) as caught:
        call(checked, entry, first, second)
    expected = message.format(**where, **words)
    at = line(
        "(%z, %a" if entry == "many_loads" else expected.split(":")[0].removeprefix("func.call "), entry
    )
    assert str(caught.value) == f"{entry}: line {at}: {expected}"
    assert caught.value.kind == kind


CLEAN = [("loads", 0, 8), ("loads", 0, 1), ("loads", 8, 16), ("many_loads", 2, 5), ("stores", 8, 9)]
CLEAN += [("plain_stores", 3, 3), ("ints", 0, 3), ("both", 0, 15)]


@pytest.mark.parametrize(("entry", "first", "second"), CLEAN)
def test_kernel_without_a_fault_is_left_alone(entry, first, second, checked):
    assert call(checked, entry, first, second).notes == ()


def test_buffer_that_a_core_keeps_is_a_note(checked):
    made = line("%a = memref.alloc()", "kept")
    assert call(checked, "kept", 0, 0).notes == (
        f"line {made}: memref.alloc: %a (memref<16xf32, 2>, allocated at line {made}) is never freed (64 bytes): "
        "add memref.dealloc, unless its core keeps it (2 times)",
    )
