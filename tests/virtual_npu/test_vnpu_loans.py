# ruff: noqa: E501 - MLIR has long lines
"""L1 buffers that borrow the blocks of channels (virtual_npu.codegen.passes.elide_l1_copies), and those that must not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import BuildOptions
from tests.virtual_npu.air_texts import with_constants

LOAN = "vnpu::LentBuffer "

# x goes to two tiles at once, 16 elements at a time; each adds 1 to it through a kernel in C++.
TEMPLATE = """
func.func private @plus_one(memref<16xf32, 2>, memref<16xf32, 2>) attributes {link_with = "plus_one.o", link_source = "plus_one.cc"}
air.channel @in [1, 1] {broadcast_shape = [2, 1]}
air.channel @out [2, 1]
func.func @add(%x: memref<64xf32>, %y: memref<2x64xf32>) {
  air.launch () in () args(%a=%x, %b=%y) : memref<64xf32>, memref<2x64xf32> {
    <puts>
    scf.parallel (%t) = (%c0) to (%c2) step (%c1) {
      air.channel.get @out[%t, %c0] (%b[%t, %c0] [%c1, %c64] [%c64, %c1]) : (memref<2x64xf32>)
    }
    air.segment @s {
      air.herd @h tile (%tx, %ty) in (%sx=%c2, %sy=%c1) {
        %in = memref.alloc() : memref<16xf32, 2>
        %out = memref.alloc() : memref<16xf32, 2>
        %all = memref.alloc() : memref<64xf32, 2>
        scf.for %i = %c0 to %c64 step %c16 {
          air.channel.get @in[%tx, %ty] (%in<pattern>) : (memref<16xf32, 2>)
          <before>
          func.call @plus_one(%in, %out) : (memref<16xf32, 2>, memref<16xf32, 2>) -> ()
          scf.for %j = %c0 to %c16 step %c1 {
            %at = arith.addi %i, %j : index
            %v = memref.load %out[%j] : memref<16xf32, 2>
            memref.store %v, %all[%at] : memref<64xf32, 2>
          }
        }
        air.channel.put @out[%tx, %ty] (%all[] [] []) : (memref<64xf32, 2>)
        memref.dealloc %in : memref<16xf32, 2>
        memref.dealloc %out : memref<16xf32, 2>
        memref.dealloc %all : memref<64xf32, 2>
      }
    }
  }
  return
}"""

ONE_EACH = """scf.for %i = %c0 to %c64 step %c16 {
      %half = arith.divui %i, %c2 : index
      air.channel.put @in[%c0, %c0] (%a[%c0, %half] [%c2, %c8] [%c32, %c1]) : (memref<64xf32>)
    }"""
TWO_AT_ONCE = """scf.for %i = %c0 to %c64 step %c32 {
      air.channel.put @in[%c0, %c0] (%a[%i] [%c32] [%c1]) : (memref<64xf32>)
    }"""
HALF_EACH = """scf.for %i = %c0 to %c64 step %c8 {
      air.channel.put @in[%c0, %c0] (%a[%i] [%c8] [%c1]) : (memref<64xf32>)
    }"""

PROMISED = """extern "C" void plus_one(const float *in, float *out) {
  for (int i = 0; i < 16; ++i) out[i] = in[i] + 1;
}
"""
UNDOES = """extern "C" void plus_one(float *in, float *out) {
  for (int i = 0; i < 16; ++i) out[i] = in[i] + 1, in[i] = 0;
}
"""
STORE = "%f = arith.constant 7.0 : f32\nmemref.store %f, %in[%tx] : memref<16xf32, 2>"
X = np.arange(64, dtype=np.float32)
BY_TURNS = X.reshape(2, 4, 8).transpose(1, 0, 2).ravel()
"""X as ONE_EACH sends it."""


def text(puts: str = ONE_EACH, before: str = "", pattern: str = "[] [] []") -> str:
    return TEMPLATE.replace("<puts>", puts).replace("<before>", before).replace("<pattern>", pattern)


def emitted(source: str, folder: Path, kernel: str = PROMISED, options: BuildOptions | None = None) -> str:
    (folder / "plus_one.cc").write_text(kernel)
    return virtual_npu.emit(
        with_constants(source), options=options or BuildOptions(), kernel_dirs=[folder]
    ).text


def result(program, run, source, folder, options=None):
    return run(program(source, (folder,), options), "add", X, np.zeros((2, 64), np.float32))[1]


def test_a_block_that_is_only_read_is_lent(program, run, tmp_path):
    assert emitted(text(), tmp_path).count(LOAN) == 1
    np.testing.assert_array_equal(result(program, run, text(), tmp_path), [BY_TURNS + 1] * 2)


@pytest.mark.parametrize("puts", [TWO_AT_ONCE, HALF_EACH], ids=["two gets of a put", "a get of two puts"])
def test_what_is_not_one_block_is_copied_into_the_buffer(program, run, tmp_path, puts):
    assert LOAN in emitted(text(puts), tmp_path)
    np.testing.assert_array_equal(result(program, run, text(puts), tmp_path), [X + 1, X + 1])


@pytest.mark.parametrize(
    "options", [BuildOptions(fast=False), BuildOptions(checks=True)], ids=["slow", "checks"]
)
def test_nothing_is_lent_in_slow_or_checked_builds(program, run, tmp_path, options):
    assert LOAN not in emitted(text(), tmp_path, options=options)
    plain = result(program, run, text(), tmp_path, options)
    np.testing.assert_array_equal(plain, result(program, run, text(), tmp_path))


@pytest.mark.parametrize(
    ("kernel", "before", "pattern"),
    [
        (UNDOES, "", "[] [] []"),
        (PROMISED, STORE, "[] [] []"),
        (PROMISED, "", "[%c0] [%c16] [%c1]"),
    ],
    ids=["a kernel that may write", "a store", "a get that says where"],
)
def test_what_a_tile_may_change_is_its_own(program, run, tmp_path, kernel, before, pattern):
    """Else one tile would see what the other has made of the block."""
    source = text(ONE_EACH, before, pattern)
    assert LOAN not in emitted(source, tmp_path, kernel)
    expected = np.stack([BY_TURNS + 1] * 2)
    if before:
        for tile in range(2):
            expected[tile, tile::16] = 8
    np.testing.assert_array_equal(result(program, run, source, tmp_path), expected)


def test_a_block_outlives_what_it_was_made_from(program, run, tmp_path):
    """x is given to y's memory, which the results overwrite: results of one run, fast or not."""
    source = text()
    emitted(source, tmp_path)
    memory = [np.concatenate([X, X + 100]) for _ in range(2)]
    for fast, both in zip((True, False), memory, strict=True):
        library = program(source, (tmp_path,), BuildOptions(fast=fast))
        library.run("add", [both.ctypes.data] * 2)
    np.testing.assert_array_equal(memory[0], memory[1])
    np.testing.assert_array_equal(memory[0], np.concatenate([BY_TURNS + 1] * 2))
