# ruff: noqa: E501 - MLIR has long lines
"""DMA: strided patterns on both sides, bounds, L1 private to a tile, threads."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import virtual_npu


def side(name: str, pattern: tuple[list[int], list[int], list[int]] | None) -> str:
    if pattern is None:
        return f"%{name}[] [] []"
    return f"%{name}" + " ".join("[" + ", ".join(f"%c{n}" for n in part) + "]" for part in pattern)


def copy(entry: str, n: int, m: int, dst=None, src=None) -> str:
    """A function that copies between a flat buffer of n and one of m elements."""
    return f"""
  func.func @{entry}(%x: memref<{n}xi16>, %y: memref<{m}xi16>) {{
    air.launch () in () args(%a=%x, %b=%y) : memref<{n}xi16>, memref<{m}xi16> {{
      air.dma_memcpy_nd ({side("b", dst)}, {side("a", src)}) : (memref<{m}xi16>, memref<{n}xi16>)
    }}
    return
  }}"""


def pick(x: np.ndarray, pattern) -> np.ndarray:
    """The elements an access pattern walks, in order."""
    if pattern is None:
        return x.ravel()
    offsets, sizes, strides = pattern
    start = sum(o * s for o, s in zip(offsets, strides[len(strides) - len(offsets) :], strict=True))
    index = start + sum(
        np.arange(n).reshape([-1 if d == e else 1 for e in range(len(sizes))]) * s
        for d, (n, s) in enumerate(zip(sizes, strides, strict=True))
    )
    return x[index.ravel()]


PATTERNS = {
    "whole": (64, 64, None, None),
    "gather_rows": (64, 16, None, ([2, 0], [2, 8], [16, 1])),
    "scatter": (16, 64, ([0, 4], [4, 4], [16, 1]), None),
    "transpose": (64, 64, None, ([0, 0], [8, 8], [1, 8])),
    "blocks": (64, 64, None, ([0, 0, 0, 0], [2, 2, 4, 4], [4, 32, 8, 1])),
    "both": (64, 96, ([1, 0, 0], [4, 2, 4], [20, 6, 1]), ([0, 0], [8, 4], [8, 2])),
    "repeat": (16, 64, None, ([0, 0], [4, 16], [0, 1])),
    "one_offset": (64, 8, None, ([24], [8], [1])),
    "unrelated": (24, 24, ([0, 0], [6, 4], [1, 6]), ([0, 0], [8, 3], [1, 8])),
    "single": (8, 8, ([3], [1], [1]), ([5], [1], [1])),
}

FAULTS = """
  func.func @dynamic(%x: memref<64xi16>, %y: memref<16xi16>, %offset: index, %size: index) {
    air.launch () in () args(%a=%x, %b=%y, %o=%offset, %s=%size) : memref<64xi16>, memref<16xi16>, index, index {
      air.dma_memcpy_nd (%b[] [] [], %a[%o] [%s] [%c1]) : (memref<16xi16>, memref<64xi16>)
    }
    return
  }
"""

TILES = """
  func.func @tiles(%x: memref<8x64xf32>, %y: memref<8x64xf32>) {
    air.launch (%i) in (%n=%c2) args(%a=%x, %b=%y) : memref<8x64xf32>, memref<8x64xf32> {
      air.segment @s args(%l=%i, %sa=%a, %sb=%b) : index, memref<8x64xf32>, memref<8x64xf32> {
        %row0 = affine.apply affine_map<(d0) -> (d0 * 4)>(%l)
        %l2 = memref.alloc() : memref<4x64xf32, 1>
        air.dma_memcpy_nd (%l2[] [] [], %sa[%row0, %c0] [%c4, %c64] [%c64, %c1]) : (memref<4x64xf32, 1>, memref<8x64xf32>)
        %sum = memref.alloc() : memref<2x2x32xf32, 2>
        air.herd @h tile (%tx, %ty) in (%nx=%c2, %ny=%c2) args(%m=%l2, %s=%sum) : memref<4x64xf32, 1>, memref<2x2x32xf32, 2> {
          %t = memref.alloc() : memref<2x32xf32, 2>
          %r = affine.apply affine_map<(d0) -> (d0 * 2)>(%tx)
          %c = affine.apply affine_map<(d0) -> (d0 * 32)>(%ty)
          air.dma_memcpy_nd (%t[] [] [], %m[%r, %c] [%c2, %c32] [%c64, %c1]) : (memref<2x32xf32, 2>, memref<4x64xf32, 1>)
          scf.for %j = %c0 to %c32 step %c1 {
            %u = memref.load %t[%c0, %j] : memref<2x32xf32, 2>
            %v = memref.load %t[%c1, %j] : memref<2x32xf32, 2>
            %w = arith.addf %u, %v : f32
            memref.store %w, %s[%tx, %ty, %j] : memref<2x2x32xf32, 2>
          }
          memref.dealloc %t : memref<2x32xf32, 2>
        }
        air.herd @out tile (%tx, %ty) in (%nx=%c2, %ny=%c2) args(%b1=%sb, %s=%sum, %lo=%row0) : memref<8x64xf32>, memref<2x2x32xf32, 2>, index {
          %r = affine.apply affine_map<(d0, d1) -> (d0 * 2 + d1)>(%tx, %lo)
          %c = affine.apply affine_map<(d0) -> (d0 * 32)>(%ty)
          %mine = memref.subview %s[%tx, %ty, 0] [1, 1, 32] [1, 1, 1] : memref<2x2x32xf32, 2> to memref<32xf32, strided<[1], offset: ?>, 2>
          air.dma_memcpy_nd (%b1[%r, %c] [%c1, %c32] [%c64, %c1], %mine[] [] []) : (memref<8x64xf32>, memref<32xf32, strided<[1], offset: ?>, 2>)
        }
        memref.dealloc %l2 : memref<4x64xf32, 1>
        memref.dealloc %sum : memref<2x2x32xf32, 2>
      }
    }
    return
  }
"""


@pytest.fixture(scope="module")
def library(program):
    functions = [copy(name, *arguments) for name, arguments in PATTERNS.items()]
    return program("module {" + "\n".join(functions) + FAULTS + TILES + "}")


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_moves_what_numpy_moves(library, run, name):
    n, m, dst, src = PATTERNS[name]
    x = np.arange(1, n + 1, dtype=np.int16)
    want = np.zeros(m, np.int16)
    want[pick(np.arange(m), dst)] = pick(x, src)
    np.testing.assert_array_equal(run(library, name, x, np.zeros(m, np.int16))[1], want)


def dynamic(library, run, offset: int, size: int) -> np.ndarray:
    x = np.arange(64, dtype=np.int16)
    return run(library, "dynamic", x, np.zeros(16, np.int16), np.int64(offset), np.int64(size))[1]


def test_scalars_are_arguments_of_shape_nothing(library, run):
    assert library.entries["dynamic"].arguments[2] == virtual_npu.ArgumentType((), "index")
    np.testing.assert_array_equal(dynamic(library, run, 5, 16), np.arange(5, 21))
    np.testing.assert_array_equal(dynamic(library, run, 48, 16), np.arange(48, 64))


@pytest.mark.parametrize(("offset", "reached"), [(49, "49 to 64"), (-3, "-3 to 12"), (-1, "-1 to 14")])
def test_leaving_a_buffer_is_an_error_with_numbers(library, run, offset, reached):
    message = (
        rf"dynamic: line \d+: air.dma_memcpy_nd in launch: the access pattern reaches elements {reached} of a buffer "
        "that has elements 0 to 63"
    )
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match=message):
        dynamic(library, run, offset, 16)


def test_sides_of_different_sizes_are_an_error_with_both(library, run):
    message = "the source gives 8 elements of 2 bytes, the destination takes 16 of 2 bytes"
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match=message):
        dynamic(library, run, 0, 8)


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_tiles_keep_l1_apart_and_share_segment_buffers(library, run, threads, monkeypatch):
    monkeypatch.setenv("VNPU_THREADS", threads)
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    _, y = run(library, "tiles", x, np.zeros_like(x))
    np.testing.assert_array_equal(y[::2], x[::2] + x[1::2])
    assert not y[1::2].any()


def test_threads_must_be_a_positive_integer(library, run, monkeypatch):
    monkeypatch.setenv("VNPU_THREADS", "none")
    with pytest.raises(virtual_npu.ProgramError, match="VNPU_THREADS='none' cannot be used"):
        run(library, "whole", np.zeros(64, np.int16), np.zeros(64, np.int16))
