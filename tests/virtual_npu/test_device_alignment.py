# ruff: noqa: E501 - MLIR has long lines
"""Vectors that a core would mask: by the static check where the address is known, at run, and in kernels."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.device.l1_placement import assign_addresses
from aerie.device.npu2 import NPU2
from tests.virtual_npu.checked_runs import CHECKS, failed, ran
from tests.virtual_npu.static_texts import CONSTANTS, assert_fault, assert_warning

VECTORS = """module {{
  func.func private @moved(i32, memref<64xf32, 2>) attributes {{link_with = "vectors.o"}}
  func.func @f(%at: index, %out: memref<64xf32>) {{
    air.launch () in () args(%at_l=%at, %out_l=%out) : index, memref<64xf32> {{
      air.segment @s args(%at_s=%at_l, %out_s=%out_l) : index, memref<64xf32> {{
        {constants}
        air.herd @h tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%n=%at_s, %out_h=%out_s) : index, memref<64xf32> {{
          {constants}
          %zero = arith.constant 0.0 : f32
          {buffers}
          %acc = memref.alloc() : memref<64xf32, 2>
          linalg.fill ins(%zero : f32) outs(%acc : memref<64xf32, 2>)
          {body}
          air.dma_memcpy_nd (%out_h[] [] [], %acc[] [] []) : (memref<64xf32>, memref<64xf32, 2>)
          memref.dealloc %acc : memref<64xf32, 2>
        }}
      }}
    }}
    return
  }}
}}
"""
KERNEL = """#include <aie_api/aie.hpp>
extern "C" void moved(int32_t at, float *acc) {
  aie::store_v(acc, aie::load_v<16>(acc + 16));
  aie::store_v(acc + at, aie::zeros<float, 16>());
}
extern "C" void anyhow(int32_t at, float *acc) { aie::store_unaligned_v(acc + at, aie::load_unaligned_v<16>(acc + at)); }
"""
LOAD = "%v = vector.load %acc[{0}] : memref<64xf32, 2>, vector<16xf32>"
STORE = "%v = arith.constant dense<1.0> : vector<16xf32>\n vector.store %v, %acc[{0}] : memref<64xf32, 2>, vector<16xf32>"
WRITE = "%v = arith.constant dense<1.0> : vector<16xf32>\n vector.transfer_write %v, %acc[{0}] {in_bounds = [true]} : vector<16xf32>, memref<64xf32, 2>"
READ = "%v = vector.transfer_read %acc[{0}], %zero {in_bounds = [true]} : memref<64xf32, 2>, vector<16xf32>"
HALF = "%v = vector.load %acc[{0}] : memref<64xf32, 2>, vector<8xf32>"
CALL = "%k = arith.index_cast %n : index to i32\n func.call @moved(%k, %acc) : (i32, memref<64xf32, 2>) -> ()"
SUB = "%part = memref.subview %acc[{0}] [16] [1] : memref<64xf32, 2> to memref<16xf32, strided<[1], offset: ?>, 2>\n %v = vector.load %part[%c0] : memref<16xf32, strided<[1], offset: ?>, 2>, vector<16xf32>"
LOOP = "scf.for %i = %c0 to %c32 step %c8 { {0} }"
ODD = "".join(f"%egress{i} = memref.alloc() : memref<528xbf16, 2>\n" for i in range(4))
"""The first of them is where the smallest buffer comes, which is the fifth, in the first of four banks."""


def vectors(body: str, at: str = "%n", buffers: str = "") -> str:
    return VECTORS.format(constants=CONSTANTS, body=body.replace("{0}", at), buffers=buffers)


@pytest.fixture
def kernels(tmp_path):
    (tmp_path / "vectors.cc").write_text(KERNEL)
    return (tmp_path,)


OFF = "at an address that is {0} bytes behind a multiple of {1}: the core drops the low bits of the address and {2} {0} bytes lower, so the last {0} bytes are never"
MASKED = [
    (
        "vector.load",
        vectors(LOAD),
        8,
        "reads 64 bytes of %acc: memref<64xf32, 2> (allocated at line 33) " + OFF.format(32, 64, "reads"),
    ),
    (
        "vector.store",
        vectors(STORE),
        8,
        "writes 64 bytes of %acc: memref<64xf32, 2> (allocated at line 33) " + OFF.format(32, 64, "writes"),
    ),
    ("vector.transfer_write", vectors(WRITE), 17, OFF.format(4, 64, "writes")),
    ("vector.transfer_read", vectors(READ), 8, OFF.format(32, 64, "reads")),
    ("vector.load", vectors(HALF), 4, OFF.format(16, 32, "reads")),
    ("vector.load", vectors(SUB), 8, OFF.format(32, 64, "reads")),
    ("vector.load", vectors(LOOP.replace("{0}", LOAD), "%i"), 0, OFF.format(32, 64, "reads")),
    ("vector.load", vectors(LOAD, "%c0", ODD), 0, OFF.format(32, 64, "reads")),
    (
        "func.call @moved",
        vectors(CALL),
        8,
        "aie::store_v of 64 bytes in argument 1, %acc (memref<64xf32, 2>, allocated at line 33), "
        + OFF.format(32, 64, "writes"),
    ),
    ("func.call @moved", vectors(CALL, buffers=ODD), 0, "aie::load_v of 64 bytes in argument 1, "),
]


@pytest.mark.parametrize(("op", "text", "at", "message"), MASKED)
def test_vector_that_a_core_would_mask(op, text, at, message, program, kernels):
    error = failed(program(text, kernels, CHECKS), np.array(at), np.zeros(64, np.float32))
    assert error.kind == "misaligned"
    assert f"{op} in herd @h (0, 0): " in str(error)
    assert message in str(error)


EVEN = ODD.replace("528", "544")
UNALIGNED = CALL.replace("@moved", "@anyhow")
ALIGNED = [
    (vectors(LOAD), 16),
    (vectors(HALF), 8),
    (vectors(READ, "%c1"), 0),
    (vectors(SUB), 32),
    (vectors(LOOP.replace("{0}", HALF), "%i"), 0),
    (vectors(LOAD, "%c0", EVEN), 0),
    (vectors(CALL), 32),
    (vectors(UNALIGNED).replace("@moved", "@anyhow"), 3),
]


@pytest.mark.parametrize(("text", "at"), ALIGNED)
def test_vector_that_a_core_takes(text, at, program, kernels):
    ran(program(text, kernels, CHECKS), np.array(at), np.zeros(64, np.float32))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (vectors(LOAD, "%c8"), "vector.load: .* 512 bits at byte 32 of its memref; a core drops the low bits of an address, so it reads 32 bytes lower; vectors of 512 bits begin at multiples of 64 bytes"),
        (vectors(HALF, "%c4"), "vector.load: .* 256 bits at byte 16 of its memref; .* it reads 16 bytes lower; vectors of 256 bits begin at multiples of 32 bytes"),
        (vectors(WRITE, "%c8"), "vector.transfer_write: .* it writes 32 bytes lower"),
        (vectors(READ, "%c8"), "vector.transfer_read: .* it reads 32 bytes lower"),
        (vectors(LOAD, "%c16", ODD), r"%acc \(memref<64xf32, 2>\) comes to byte 3104 of a core's L1, 32 behind a multiple of 64: buffers are aligned to 32 bytes, .* written 32 bytes lower; give L1 buffers sizes that are multiples of 64 bytes"),
    ],
)  # fmt: skip
def test_address_that_is_known_to_be_masked(text, message):
    assert_fault(text, "misaligned", message, stack_bytes=2048)


def test_npu1_has_no_vectors_of_512_bits():
    text = vectors(LOAD, "%c8")
    assert virtual_npu.Program.from_text(text).check("npu1").ok


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (vectors(READ, "%c4"), "vector-alignment", "512 bits at byte 16; the compiler reads twice as much and shifts"),
        (vectors(LOOP.replace("{0}", LOAD), "%i"), "misaligned", "512 bits at steps of 32 bytes; a core drops the low bits"),
    ],
)  # fmt: skip
def test_address_that_may_be_masked(text, kind, message):
    assert_warning(text, kind, message)


LAYOUTS = [
    ([1056, 256], 2048, [2048, 16384]),
    ([20000, 1056, 256], 2048, [2048, 22048, 23104]),
    ([16384, 16384, 16384, 1056, 256, 100], 1024, [16384, 32768, 49152, 1024, 2080, 2336]),
    ([40, 33, 33, 33, 40], 1024, [1024, 32768, 49152, 1088, 16384]),
]


@pytest.mark.parametrize(("sizes", "stack", "expected"), LAYOUTS)
def test_addresses_are_those_of_the_compiler(sizes, stack, expected):
    """As aie-assign-buffer-addresses gave them for these sizes."""
    assert assign_addresses(sizes, NPU2, stack) == expected
