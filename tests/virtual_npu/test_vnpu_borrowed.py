# ruff: noqa: E501 - MLIR has long lines
"""L1 buffers that borrow what a DMA would bring (virtual_npu.codegen.passes.elide_l1_copies), and those that must not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import BuildOptions
from tests.virtual_npu.air_texts import with_constants

BORROWED = "= nullptr;"

# Two tiles add 1 to their half of x, 16 elements at a time, through a kernel in C++.
TEMPLATE = """
func.func private @plus_one(memref<16xf32, 2>, memref<16xf32, 2>) attributes {link_with = "plus_one.o", link_source = "plus_one.cc"}
func.func @add(%x: memref<64xf32>, %y: memref<64xf32>) {
  air.launch () in () args(%a=%x, %b=%y) : memref<64xf32>, memref<64xf32> {
    air.segment @s args(%sa=%a, %sb=%b) : memref<64xf32>, memref<64xf32> {
      air.herd @h tile (%tx, %ty) in (%sx=%c2, %sy=%c1) args(%ha=%sa, %hb=%sb) : memref<64xf32>, memref<64xf32> {
        %in = memref.alloc() : memref<16xf32, 2>
        %out = memref.alloc() : memref<16xf32, 2>
        scf.for %i = %c0 to %c32 step %c16 {
          %at = affine.apply affine_map<(d0, d1) -> (d0 * 32 + d1)>(%tx, %i)
          air.dma_memcpy_nd (%in[] [] [], %ha[%at] [%c16] [%c1]) : (memref<16xf32, 2>, memref<64xf32>)
          <before>
          func.call @plus_one(%in, %out) : (memref<16xf32, 2>, memref<16xf32, 2>) -> ()
          air.dma_memcpy_nd (%hb[%at] [%c16] [%c1], %out[] [] []) : (memref<64xf32>, memref<16xf32, 2>)
          <after>
        }
        memref.dealloc %in : memref<16xf32, 2>
        memref.dealloc %out : memref<16xf32, 2>
      }
    }
  }
  return
}"""

PROMISED = """extern "C" void plus_one(const float *__restrict in, float *out) {
  for (int i = 0; i < 16; ++i) out[i] = in[i] + 1;
}
"""
UNDOES = 'extern "C" void plus_one(float *in, float *out) { for (int i = 0; i < 16; ++i) { out[i] = in[i] + 1; in[i] = 0; } }\n'
CASTS = """extern "C" void plus_one(const float *in, float *out) {
  for (int i = 0; i < 16; ++i) { out[i] = in[i] + 1; ((float *)in)[i] = 0; }
}
"""
ZERO_SOURCE = "air.dma_memcpy_nd (%hb[%at] [%c16] [%c1], %in[] [] []) : (memref<64xf32>, memref<16xf32, 2>)"
READ_AGAIN = "func.call @plus_one(%in, %out) : (memref<16xf32, 2>, memref<16xf32, 2>) -> ()"
STORE = "%f = arith.constant 0.0 : f32\nmemref.store %f, %in[%c0] : memref<16xf32, 2>"


def text(before: str = "", after: str = "") -> str:
    return TEMPLATE.replace("<before>", before).replace("<after>", after)


def emitted(source: str, folder: Path, kernel: str = PROMISED, options: BuildOptions | None = None) -> str:
    (folder / "plus_one.cc").write_text(kernel)
    options = options or BuildOptions()
    return virtual_npu.emit(with_constants(source), options=options, kernel_dirs=[folder]).text


def test_what_is_only_read_is_borrowed(program, run, tmp_path):
    code = emitted(text(), tmp_path)
    assert code.count(BORROWED) == 1
    assert code.count("vnpu::dma(") == 1
    x = np.arange(64, dtype=np.float32)
    library = program(text(), (tmp_path,))
    np.testing.assert_array_equal(run(library, "add", x, np.zeros(64, np.float32)), [x, x + 1])


@pytest.mark.parametrize("options", [BuildOptions(fast=False), BuildOptions(checks=True)])
def test_nothing_is_borrowed_in_slow_or_checked_builds(tmp_path, options):
    assert BORROWED not in emitted(text(), tmp_path, options=options)


@pytest.mark.parametrize("kernel", [UNDOES, CASTS], ids=["writes", "casts"])
def test_a_kernel_that_may_write_gets_a_copy(program, run, tmp_path, kernel):
    assert BORROWED not in emitted(text(), tmp_path, kernel)
    x = np.arange(64, dtype=np.float32)
    library = program(text(), (tmp_path,))
    np.testing.assert_array_equal(run(library, "add", x, np.zeros(64, np.float32)), [x, x + 1])


@pytest.mark.parametrize(
    "source",
    [text(before=ZERO_SOURCE), text(after=READ_AGAIN), text(before=STORE)],
    ids=["a write in between", "a read after a write", "a store"],
)
def test_what_others_touch_is_copied(program, tmp_path, source):
    """x and y are one buffer here: whoever borrowed from x would see what went to y."""
    assert BORROWED not in emitted(source, tmp_path)
    both = [np.arange(64, dtype=np.float32) for _ in range(2)]
    for fast, x in zip((True, False), both, strict=True):
        program(source, (tmp_path,), BuildOptions(fast=fast)).run("add", [x.ctypes.data] * 2)
    np.testing.assert_array_equal(both[0], both[1])


def test_borrowing_in_place(program, tmp_path):
    """A piece is read before its result is written, borrowed or not."""
    emitted(text(), tmp_path)
    x = np.arange(64, dtype=np.float32)
    program(text(), (tmp_path,)).run("add", [x.ctypes.data] * 2)
    np.testing.assert_array_equal(x, np.arange(1, 65))


def test_a_transfer_that_leaves_its_source_is_refused(program, run, tmp_path):
    source = text().replace("d0 * 32 + d1", "d0 * 40 + d1")
    assert BORROWED in emitted(source, tmp_path)
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match="access pattern reaches elements 56 to 71"):
        run(program(source, (tmp_path,)), "add", *[np.zeros(64, np.float32)] * 2)
