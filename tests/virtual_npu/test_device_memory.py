# ruff: noqa: E501 - MLIR has long lines
"""Memory that holds what nobody meant: garbage of the beginning, stale rows in a block of block floats, a buffer that is
written again too soon; each with a program that it harms and one that it does not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu.errors import GarbageError
from tests.virtual_npu.air_texts import with_constants
from tests.virtual_npu.bfp16_model import product
from tests.virtual_npu.checked_runs import CHECKS, ran

BF16 = ml_dtypes.bfloat16

# ---- memory that nobody cleared ----

STATICS = """#include <cstdint>
static float total[8];
extern "C" {
void adds(float *x) { for (int i = 0; i < 8; ++i) x[i] = total[i] += x[i]; }
void sets(float *x) { static float kept[8]; for (int i = 0; i < 8; ++i) kept[i] = x[i]; for (int i = 0; i < 8; ++i) x[i] = kept[i]; }
void peeks(float *x) { x[0] += x[15] > 0 ? 1.0f : 0.0f; }
void counts(int32_t *n, float *x) { x[0] = float(n[0] & 0xffff); }
}
"""
UNCLEARED = """module {{
  func.func private @{kernel}({types}) attributes {{link_with = "statics.o"}}
  func.func @f(%out: memref<8xf32>) {{
    air.herd @h tile (%tx, %ty) in (%sx=%c2, %sy=%c1) args(%o=%out) : memref<8xf32> {{
      %one = arith.constant 1.0 : f32
      %n = memref.alloc() : memref<4xi32, 2>
      %x = memref.alloc() : memref<16xf32, 2>
      %begin = memref.subview %x[0] [8] [1] : memref<16xf32, 2> to memref<8xf32, strided<[1]>, 2>
      linalg.fill ins(%one : f32) outs(%begin : memref<8xf32, strided<[1]>, 2>)
      func.call @{kernel}({values}) : ({types}) -> ()
      %first = arith.cmpi eq, %tx, %c0 : index
      scf.if %first {{
        air.dma_memcpy_nd (%o[] [] [], %x[%c0] [%c8] [%c1]) : (memref<8xf32>, memref<16xf32, 2>)
      }}
      memref.dealloc %n : memref<4xi32, 2>
      memref.dealloc %x : memref<16xf32, 2>
    }}
    return
  }}
}}
"""


def uncleared(kernel: str, values: str, types: str, folder) -> virtual_npu.Program:
    (folder / "statics.cc").write_text(STATICS)
    text = with_constants(UNCLEARED.format(kernel=kernel, values=values, types=types))
    return virtual_npu.Program.from_text(text, kernel_dirs=(folder,))


FLOATS, BOTH = ("%x", "memref<16xf32, 2>"), ("%n, %x", "memref<4xi32, 2>, memref<16xf32, 2>")


@pytest.mark.parametrize(("kernel", "passed"), [("adds", FLOATS), ("peeks", FLOATS), ("counts", BOTH)])
def test_a_result_that_depends_on_initial_memory(kernel, passed, tmp_path):
    values, types = passed
    program = uncleared(kernel, values, types, tmp_path)
    program.run(np.zeros(8, np.float32))  # the other checks see nothing of it
    with pytest.raises(GarbageError) as caught:
        program.run(np.zeros(8, np.float32), garbage=4)
    assert caught.value.kind == "garbage"
    assert str(caught.value).startswith(
        "f: the result depends on the initial contents of memory: arg0[0] is "
    )
    assert (
        "L1, L2 and the variables of kernels (.bss) are not cleared for a program, so write what is read; repeat it with --garbage 1 --seed "
        in str(caught.value)
    )


def test_result_of_what_was_written_stays(tmp_path):
    result = uncleared("sets", *FLOATS, tmp_path).run(np.zeros(8, np.float32), garbage=2)
    np.testing.assert_array_equal(result.outputs[0], np.ones(8, np.float32))


def test_garbage_is_the_same_for_a_seed(tmp_path):
    library = uncleared("peeks", *FLOATS, tmp_path).library

    def first(seed: int) -> float:
        out = np.zeros(8, np.float32)
        library.run("f", [out.ctypes.data], virtual_npu.RunOptions(garbage=seed))
        return float(out[0])

    found = [first(seed) for seed in range(1, 17)]
    assert found == [first(seed) for seed in range(1, 17)]
    assert set(found) == {1.0, 2.0}


# ---- rows that nobody means, in a block that shares an exponent ----

KEYS, CONTEXT = 16, 12
STALE = """#mk = affine_map<(m, n, k) -> (m, k)>
#kn = affine_map<(m, n, k) -> (k, n)>
#mn = affine_map<(m, n, k) -> (m, n)>
module {
  func.func private @weighted(memref<8x16xbf16, 2>, memref<16x8xbf16, 2>, memref<8x8xf32, 2>) attributes {link_with = "weighted.o", link_defines = "AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16=1"}
  func.func @f(%s: memref<8x16xbf16>, %v: memref<16x8xbf16>, %out: memref<8x8xf32>) {
    air.herd @h tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%s3=%s, %v3=%v, %o3=%out) : memref<8x16xbf16>, memref<16x8xbf16>, memref<8x8xf32> {
      %pad = arith.constant 0.0 : bf16
      %zero = arith.constant dense<0.0> : vector<8x8xf32>
      %sl = memref.alloc() : memref<8x16xbf16, 2>
      %vl = memref.alloc() : memref<16x8xbf16, 2>
      %ol = memref.alloc() : memref<8x8xf32, 2>
      air.dma_memcpy_nd (%sl[] [] [], %s3[] [] []) : (memref<8x16xbf16, 2>, memref<8x16xbf16>)
      air.dma_memcpy_nd (%vl[] [] [], %v3[] [] []) : (memref<16x8xbf16, 2>, memref<16x8xbf16>)
      vector.transfer_write %zero, %ol[%c0, %c0] {in_bounds = [true, true]} : vector<8x8xf32>, memref<8x8xf32, 2>
      {product}
      air.dma_memcpy_nd (%o3[] [] [], %ol[] [] []) : (memref<8x8xf32>, memref<8x8xf32, 2>)
      memref.dealloc %sl : memref<8x16xbf16, 2>
      memref.dealloc %vl : memref<16x8xbf16, 2>
      memref.dealloc %ol : memref<8x8xf32, 2>
    }
    return
  }
}
"""
CONTRACT = """scf.for %k = %c0 to %c16 step %c8 {
        %a = vector.transfer_read %sl[%c0, %k], %pad {in_bounds = [true, true]} : memref<8x16xbf16, 2>, vector<8x8xbf16>
        %b = vector.transfer_read %vl[%k, %c0], %pad {in_bounds = [true, true]} : memref<16x8xbf16, 2>, vector<8x8xbf16>
        %c = vector.transfer_read %ol[%c0, %c0], %zero_f {in_bounds = [true, true]} : memref<8x8xf32, 2>, vector<8x8xf32>
        %d = vector.contract {indexing_maps = [#mk, #kn, #mn], iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %a, %b, %c : vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>
        vector.transfer_write %d, %ol[%c0, %c0] {in_bounds = [true, true]} : vector<8x8xf32>, memref<8x8xf32, 2>
      }"""
IN_TEXT = STALE.replace("{product}", "%zero_f = arith.constant 0.0 : f32\n" + CONTRACT)
IN_CPP = STALE.replace(
    "{product}",
    "func.call @weighted(%sl, %vl, %ol) : (memref<8x16xbf16, 2>, memref<16x8xbf16, 2>, memref<8x8xf32, 2>) -> ()",
)
WEIGHTED = """#include <aie_api/aie.hpp>
extern "C" void weighted(const bfloat16 *s, const bfloat16 *v, float *out) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  aie::mmul<8, 8, 8, bfloat16, bfloat16> block(aie::load_v<64>(out));
  for (int k = 0; k < 16; k += 8) {
    aie::vector<bfloat16, 64> a;
    for (int m = 0; m < 8; ++m) a.insert(m, aie::load_unaligned_v<8>(s + m * 16 + k));
    block.mac(a, aie::load_v<64>(v + k * 8));
  }
  aie::store_v(out, block.to_vector<float>());
}
"""
STOLEN = "numbers 4 to 7 of a block of the right factor meet only zeros, but 8 numbers share an exponent: they take {} of the others' 7 bits of mantissa, so the result depends on their content; clear them (rows beyond the context, say), or end them at a multiple of 8"


def weights_and_values(stale: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights that are zero beyond the context, and values from 1 to 2 that are `stale` there."""
    rng = np.random.default_rng(5)
    weights, values = rng.uniform(0.1, 1, (8, KEYS)), rng.uniform(1, 1.99, (KEYS, 8))
    weights[:, CONTEXT:], values[CONTEXT:] = 0, stale
    return weights.astype(BF16), values.astype(BF16)


@pytest.mark.parametrize("numerics", ["exact", "bfp16"])
@pytest.mark.parametrize("text", [IN_TEXT, IN_CPP], ids=["vector.contract", "aie::mmul"])
def test_stale_rows_take_bits_through_a_shared_exponent(numerics, text, program, tmp_path):
    """Only block floats hang on rows that have no weight; which bits go is as in the model, and a note tells."""
    (tmp_path / "weighted.cc").write_text(WEIGHTED)
    library = program(text, (tmp_path,), virtual_npu.BuildOptions(checks=True, numerics=numerics))
    outputs, notes = {}, {}
    for stale in (0.0, 1.5, 24.0, 4096.0):
        weights, values = weights_and_values(stale)
        out = np.zeros((8, 8), np.float32)
        notes[stale] = ran(library, weights, values, out).notes
        outputs[stale] = out
        if numerics == "bfp16":
            expected = product(weights.astype(np.float32), values.astype(np.float32), np.zeros((8, 8)))
            np.testing.assert_array_equal(out, expected)
    same = [np.array_equal(outputs[0.0], outputs[stale]) for stale in (1.5, 24.0, 4096.0)]
    assert same == ([True, True, True] if numerics == "exact" else [True, False, False])
    messages = [[note.split(": ", 2)[2] for note in notes[stale]] for stale in (0.0, 1.5, 24.0, 4096.0)]
    taken = [[], [], [STOLEN.format(4)], [STOLEN.format(7)]]
    assert messages == ([[]] * 4 if numerics == "exact" else taken)


# ---- a buffer that is written again before a put has read it ----

REFILLED = """module {
  air.channel @c [1]
  func.func @f(%out: memref<4x16xf32>) {
    air.launch () in () args(%o=%out) : memref<4x16xf32> {
      scf.for %i = %c0 to %c4 step %c1 {
        air.channel.get @c[] (%o[%i, %c0] [%c1, %c16] [%c16, %c1]) : (memref<4x16xf32>)
      }
      air.segment @s {
        air.herd @h tile (%tx, %ty) in (%sx=%c1, %sy=%c1) {
          %f = arith.constant 1.0 : f32
          %made, %buf = air.execute -> (memref<16xf32, 2>) {
            %alloc = memref.alloc() : memref<16xf32, 2>
            air.execute_terminator %alloc : memref<16xf32, 2>
          }
          %end = scf.for %i = %c0 to %c4 step %c1 iter_args(%before = %made) -> (!air.async.token) {
            %filled = air.execute [%before] {
              linalg.fill ins(%f : f32) outs(%buf : memref<16xf32, 2>)
            }
            %sent = air.channel.put async [%filled] @c[] (%buf[] [] []) : (memref<16xf32, 2>)
            scf.yield %{kept} : !air.async.token
          }
          %freed = air.execute [%end] {
            memref.dealloc %buf : memref<16xf32, 2>
          }
        }
      }
    }
    return
  }
}
"""


def test_a_fill_that_does_not_wait_for_the_put_is_reported(program):
    """As a put of upstream's took its lock after the core had written the buffer, and each fill but the first lost a row."""
    out = np.zeros((4, 16), np.float32)
    assert ran(program(REFILLED.replace("{kept}", "sent"), options=CHECKS), out).notes == ()
    # what waits for the fills alone may not free the buffer either, which is a fault of its own
    kept = REFILLED.replace("{kept}", "filled").replace("memref.dealloc %buf : memref<16xf32, 2>", "")
    (note,) = (each for each in ran(program(kept, options=CHECKS), out).notes if "never freed" not in each)
    assert (
        "missing token, a data race but for the order of the tile: this writes element 0 of %alloc, which line 19: air.channel.put @c in herd @h (0, 0) reads"
        in note
    )
