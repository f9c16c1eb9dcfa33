# ruff: noqa: E501 - MLIR has long lines
"""Products read through L2 and L1, and through functions that rearrange a buffer on the way (vnpu/rearranged.h)."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie import virtual_npu
from aerie.common.compiler import find_compiler
from aerie.device.external_kernels import OWN_KERNELS
from aerie.virtual_npu import BuildOptions
from aerie.virtual_npu.codegen.module import RUNTIME
from aerie.virtual_npu.objects import INCLUDE
from tests.virtual_npu.air_texts import with_constants

BF16 = ml_dtypes.bfloat16
FAST, WATCHED = BuildOptions(), BuildOptions(checks=True)
STATEMENT = "vnpu::multiply_add("
M, K, N = 64, 64, 64
L2_K = 32

PROGRAM = """
#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func private @turn(memref<2x2x8x8xbf16, 2>) attributes {link_with = "turn.o"}
func.func @product(%x: memref<64x64xbf16>, %y: memref<64x64xbf16>, %z: memref<2x2x2x2x8x8xf32>) {
  %c2 = arith.constant 2 : index
  air.launch (%lx, %ly) in (%lsx=%c2, %lsy=%c2) args(%a=%x, %b=%y, %c=%z) : memref<64x64xbf16>, memref<64x64xbf16>, memref<2x2x2x2x8x8xf32> {
    air.segment @s args(%sx=%lx, %sy=%ly, %sa=%a, %sb=%b, %sc=%c) : index, index, memref<64x64xbf16>, memref<64x64xbf16>, memref<2x2x2x2x8x8xf32> {
      %c0 = arith.constant 0 : index
      %l2_a = memref.alloc() : memref<32x32xbf16, 1>
      %l2_b = memref.alloc() : memref<32x32xbf16, 1>
      %acc = memref.alloc() : memref<2x2x2x2x8x8xf32, 2>
      air.dma_memcpy_nd (%acc[] [] [], %sc[] [] []) : (memref<2x2x2x2x8x8xf32, 2>, memref<2x2x2x2x8x8xf32>)
      %row = affine.apply affine_map<(d0) -> (d0 * 32)>(%sx)
      %column = affine.apply affine_map<(d0) -> (d0 * 32)>(%sy)
      scf.for %k2 = %c0 to %c64 step %c32 {
        air.dma_memcpy_nd (%l2_a[] [] [], %sa[%row, %k2] [%c32, %c32] [%c64, %c1]) : (memref<32x32xbf16, 1>, memref<64x64xbf16>)
        air.dma_memcpy_nd (%l2_b[] [] [], %sb[%k2, %column] [%c32, %c32] [%c64, %c1]) : (memref<32x32xbf16, 1>, memref<64x64xbf16>)
        <between>
        air.herd @h tile (%tx, %ty) in (%hx=%c2, %hy=%c2) args(%ha=%l2_a, %hb=%l2_b, %hc=%acc) : memref<32x32xbf16, 1>, memref<32x32xbf16, 1>, memref<2x2x2x2x8x8xf32, 2> {
          %h0 = arith.constant 0 : index
          %zero = arith.constant 0.0 : bf16
          %none = arith.constant 0.0 : f32
          %l1_a = memref.alloc() : memref<2x2x8x8xbf16, 2>
          %l1_b = memref.alloc() : memref<2x2x8x8xbf16, 2>
          %i0 = affine.apply affine_map<(d0) -> (d0 * 16)>(%tx)
          %j0 = affine.apply affine_map<(d0) -> (d0 * 16)>(%ty)
          scf.for %k1 = %h0 to %c32 step %c16 {
            air.dma_memcpy_nd (%l1_a[] [] [], %ha[%h0, %h0, %i0, %k1] [%c2, %c2, %c8, %c8] [%c256, %c8, %c32, %c1]) : (memref<2x2x8x8xbf16, 2>, memref<32x32xbf16, 1>)
            air.dma_memcpy_nd (%l1_b[] [] [], %hb[%h0, %h0, %k1, %j0] [%c2, %c2, %c8, %c8] [<b_blocks>, %c32, %c1]) : (memref<2x2x8x8xbf16, 2>, memref<32x32xbf16, 1>)
            <call>
            scf.for %i = %h0 to %c2 step %c1 {
              scf.for %j = %h0 to %c2 step %c1 {
                scf.for %p = %h0 to %c2 step %c1 {
                  %va = vector.transfer_read %l1_a[%i, %p, %h0, %h0], %zero {in_bounds = [true, true]} : memref<2x2x8x8xbf16, 2>, vector<8x8xbf16>
                  %vb = vector.transfer_read %l1_b[%p, %j, %h0, %h0], %zero {in_bounds = [true, true]} : memref<2x2x8x8xbf16, 2>, vector<8x8xbf16>
                  %vc = vector.transfer_read %hc[%tx, %ty, %i, %j, %h0, %h0], %none {in_bounds = [true, true]} : memref<2x2x2x2x8x8xf32, 2>, vector<8x8xf32>
                  %made = vector.contract {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %va, %vb, %vc : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
                  vector.transfer_write %made, %hc[%tx, %ty, %i, %j, %h0, %h0] {in_bounds = [true, true]} : vector<8x8xf32>, memref<2x2x2x2x8x8xf32, 2>
                }
              }
            }
          }
          memref.dealloc %l1_a : memref<2x2x8x8xbf16, 2>
          memref.dealloc %l1_b : memref<2x2x8x8xbf16, 2>
        }
      }
      <after>
      %mine = arith.cmpi eq, %sx, %sy : index
      scf.if %mine {
        air.dma_memcpy_nd (%sc[] [] [], %acc[] [] []) : (memref<2x2x2x2x8x8xf32>, memref<2x2x2x2x8x8xf32, 2>)
      }
      memref.dealloc %l2_a : memref<32x32xbf16, 1>
      memref.dealloc %l2_b : memref<32x32xbf16, 1>
      memref.dealloc %acc : memref<2x2x2x2x8x8xf32, 2>
    }
  }
  return
}"""
"""c += a b: one launch point of four writes it. Blocks of B stand row by row: (k/8, n/8, 8, 8)."""

CALL = "func.call @turn(%l1_b) : (memref<2x2x8x8xbf16, 2>) -> ()"
ROWS, TURNED = "%c256, %c8", "%c8, %c256"


def text(call: str = "", b_blocks: str = ROWS, between: str = "", after: str = "", launch: int = 1) -> str:
    """The program with these pieces; `launch`: points of the launch in either direction."""
    pieces = {"call": call, "b_blocks": b_blocks, "between": between, "after": after}
    made = PROGRAM.replace("%c2 = arith.constant 2", f"%c2 = arith.constant {launch}")
    for name, piece in pieces.items():
        made = made.replace(f"<{name}>", piece)
    return made


def emitted(program: str, options: BuildOptions = FAST) -> str:
    return virtual_npu.emit(with_constants(program), options=options).text


def operands(seed: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((M, K)).astype(BF16) for _ in range(2))
    return [a, b, rng.standard_normal((2, 2, 2, 2, 8, 8)).astype(np.float32)]


# ---- windows ----


def test_the_whole_loop_of_k_is_one_product_of_l3(program, run):
    code = emitted(text())
    assert code.count(STATEMENT) == 1
    segment = code.split("static void segment_s")[1]
    assert "vnpu::multiply_add({v_sa, v_sb, v_acc," in segment
    assert segment.count("vnpu::dma(") == 2  # of the sums, to and fro
    got, want = (run(program(text(), options=options), "product", *operands()) for options in (FAST, WATCHED))
    np.testing.assert_array_equal(got[2], want[2])


def test_the_product_begins_where_the_point_of_the_launch_does():
    assert "{v_sa + v_sx * 2048, v_sb + v_sy * 32, v_acc," in emitted(text(launch=2))


LEFT_ALONE: dict[str, dict[str, Any]] = {
    "an L2 buffer that is read afterwards": {
        "after": "%bf = arith.constant 0.0 : bf16\n"
        "%again = vector.transfer_read %l2_b[%c0, %c0], %bf {in_bounds = [true]} : memref<32x32xbf16, 1>, vector<8xbf16>\n"
        "vector.transfer_write %again, %l2_a[%c0, %c0] {in_bounds = [true]} : vector<8xbf16>, memref<32x32xbf16, 1>",
    },
    "an L2 buffer that is written in between": {
        "between": "%bf = arith.constant dense<1.0> : vector<8xbf16>\n"
        "vector.transfer_write %bf, %l2_b[%c0, %c0] {in_bounds = [true]} : vector<8xbf16>, memref<32x32xbf16, 1>",
    },
    "a second DMA into it": {
        "between": "air.dma_memcpy_nd (%l2_b[] [] [], %sb[%c0, %c0] [%c32, %c32] [%c64, %c1]) : (memref<32x32xbf16, 1>, memref<64x64xbf16>)",
    },
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_l2_is_filled_where_anybody_could_tell(program, run, case):
    """The herd is still a product, of L2."""
    changed = text(**LEFT_ALONE[case])
    assert "multiply_add({v_l2_a, v_l2_b, v_acc," in emitted(changed)
    got, want = (
        run(program(changed, options=options), "product", *operands()) for options in (FAST, WATCHED)
    )
    np.testing.assert_array_equal(got[2], want[2])


def test_a_walk_that_goes_over_into_the_next_row_is_copied(program, run):
    """Its steps in L2 are no steps in L3: rows of L2 are neighbours there, and rows of L3 are not."""
    changed = text(b_blocks="%c16, %c8").replace("[%c16, %c8, %c32, %c1]", "[%c8, %c16, %c8, %c1]")
    code = emitted(changed)
    assert "multiply_add({v_sa, v_sb, v_acc," not in code
    assert "multiply_add({v_l2_a, v_l2_b, v_acc," in code
    got, want = (
        run(program(changed, options=options), "product", *operands()) for options in (FAST, WATCHED)
    )
    np.testing.assert_array_equal(got[2], want[2])


# ---- functions that rearrange ----

FUNCTIONS = {
    "transposes": "for (int b = 0; b < 4; ++b) for (int i = 0; i < 8; ++i) for (int j = 0; j < i; ++j) std::swap(at[b * 64 + i * 8 + j], at[b * 64 + j * 8 + i]);",
    "does nothing": "",
    "reverses": "for (int i = 0; i < 128; ++i) std::swap(at[i], at[255 - i]);",
    "permutes, but not in steps": "for (int i = 0; i < 256; ++i) if (int j = (i & 15) << 4 | i >> 4; j < i) std::swap(at[i], at[j]); std::swap(at[3], at[200]);",
    "adds": "for (int i = 0; i < 256; ++i) at[i] ^= 1;",
    "sorts": "for (int i = 1; i < 256; ++i) for (int j = i; j > 0 && at[j] < at[j - 1]; --j) std::swap(at[j], at[j - 1]);",
    "flushes": "for (int i = 0; i < 256; ++i) if ((at[i] & 0x7f80) == 0) at[i] = 0;",
    "changes from call to call": "static int calls = 0; if (++calls > 300) std::swap(at[0], at[1]);",
}
"""Bodies of C++ over 256 elements of 16 bits, by what they do."""
SEEN_THROUGH = {"transposes", "does nothing", "reverses"}
"""Which of them a product can be read through."""


def source(function: str, name: str = "turn") -> str:
    return f'#include <cstdint>\n#include <utility>\nextern "C" void {name}(uint16_t *at) {{ {FUNCTIONS[function]} }}\n'


@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name != "changes from call to call"])
def test_the_product_is_as_if_the_function_had_been_called(program, run, tmp_path: Path, function: str):
    (tmp_path / "turn.cc").write_text(source(function))
    turned = text(CALL)
    code = emitted(turned)
    assert re.search(r"static const vnpu::Rearranged v_rearranged_b\([\w:]*turn,", code)
    assert "if (v_rearranged_b.can_read_operand())" in code
    got, want = (
        run(program(turned, (tmp_path,), options), "product", *operands()) for options in (FAST, WATCHED)
    )
    np.testing.assert_array_equal(got[2], want[2])


def test_transposed_blocks_are_read_in_place(program, run, tmp_path: Path):
    """B as (n, k), its blocks turned in the core: the bits of the product by its transpose."""
    (tmp_path / "turn.cc").write_text(source("transposes"))
    a, b, c = operands()
    plain = run(program(text()), "product", a, b, c)[2]
    # The k tile of L2 is a range of rows now, so the two DMAs into B change their offsets.
    other = (
        text(CALL, TURNED)
        .replace("%sb[%k2, %column]", "%sb[%column, %k2]")
        .replace("%hb[%h0, %h0, %k1, %j0]", "%hb[%h0, %h0, %j0, %k1]")
    )
    got = run(program(other, (tmp_path,)), "product", a, np.ascontiguousarray(b.T), c)[2]
    np.testing.assert_array_equal(got, plain)


@pytest.mark.parametrize("function", ["transposes", "does nothing", "reverses", "adds"])
def test_a_function_that_is_seen_through_is_not_called(program, run, tmp_path: Path, function: str):
    """But for being asked, before the first product."""
    tally = tmp_path / "calls"
    count = f'FILE *calls = fopen("{tally}", "a"); fputc(1, calls); fclose(calls);'
    code = source(function).replace("{ ", "{ " + count + " ", 1)
    (tmp_path / "turn.cc").write_text("#include <cstdio>\n" + code)
    library = program(text(CALL), (tmp_path,))
    calls = []
    for _ in range(2):
        run(library, "product", *operands())
        calls.append(tally.stat().st_size)
    assert (calls[0] == calls[1]) == (function in SEEN_THROUGH)


@pytest.fixture(scope="module")
def rearranged(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """A library with every function, and `is_rearranging(function)`."""
    folder = tmp_path_factory.mktemp("rearranged")
    names = {name: f"function_{number}" for number, name in enumerate(FUNCTIONS)}
    asks = """
#include "vnpu/rearranged.h"
extern "C" {
void beside(vnpu::bf16 *at) { at[256] = at[0]; }
uint32_t aie_host_exchange_modes(uint32_t next) { static uint32_t modes = 0; return std::exchange(modes, next); }
void rounds(vnpu::bf16 *) { aie_host_exchange_modes(6); }
int is_rearranging(void (*function)(vnpu::bf16 *)) { return !vnpu::rearranged(function, 256).empty(); }
}"""
    (folder / "functions.cc").write_text(
        "\n".join([*(source(name, symbol) for name, symbol in names.items()), asks])
    )
    compiler, include = (
        find_compiler(BuildOptions().compiler_flags),
        (f"-I{INCLUDE}", f"-I{OWN_KERNELS / 'host'}", "-fvisibility=default"),
    )
    sources = [
        folder / "functions.cc",
        *(INCLUDE / "vnpu" / name for name in (*RUNTIME, "rearranged.cc")),
    ]
    for path in sources:
        compiler.compile(path, folder / f"{path.stem}.o", include)
    compiler.link([folder / f"{path.stem}.o" for path in sources], folder / "rearranged.so")
    return ctypes.CDLL(str(folder / "rearranged.so"))


@pytest.mark.parametrize("function", [*FUNCTIONS, "writes beside", "changes the rounding"])
def test_only_what_moves_elements_and_does_nothing_else_counts(rearranged, function: str):
    symbol = {"writes beside": "beside", "changes the rounding": "rounds"}.get(function)
    symbol = symbol or f"function_{list(FUNCTIONS).index(function)}"
    moves = {*SEEN_THROUGH, "permutes, but not in steps"}
    assert bool(rearranged.is_rearranging(getattr(rearranged, symbol))) == (function in moves)
