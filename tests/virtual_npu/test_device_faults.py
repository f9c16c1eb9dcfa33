# ruff: noqa: E501 - MLIR has long lines
"""Faults of the device that a CPU does not have: each with a program that has it and one that has not, by the static
check and at run."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from air_texts import with_constants
from static_texts import CONSTANTS, assert_clean, assert_fault, assert_warning

from aerie import virtual_npu
from aerie.virtual_npu.errors import GarbageError
from aerie.virtual_npu.static.device import NPU2
from aerie.virtual_npu.static.l1 import addresses

CHECKS = virtual_npu.BuildOptions(checks=True)


def ran(library: virtual_npu.Library, *arrays: np.ndarray) -> virtual_npu.RunResult:
    (entry,) = library.entries
    return library.run(entry, [array.ctypes.data for array in arrays])


def failed(library: virtual_npu.Library, *arrays: np.ndarray) -> virtual_npu.VirtualNpuRuntimeError:
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError) as caught:
        ran(library, *arrays)
    return caught.value


# ---- locks have 6 bits ----

REFEED = """module {
  air.channel @in [1]
  air.channel @again [1]
  func.func @f(%x: memref<16xi32>) {
    air.launch () in () args(%x_l=%x) : memref<16xi32> {
      air.channel.put @in[] (%x_l[] [] []) : (memref<16xi32>)
      air.segment @s {
        {constants}
        {alloc}
        air.channel.get @in[] (%m[] [] []) : (memref<16xi32, 1>)
        {send}
        air.herd @h tile (%tx, %ty) in (%sx=%c1, %sy=%c1) {
          {constants}
          %l = memref.alloc() : memref<16xi32, 2>
          scf.for %i = %c0 to %c{taken} step %c1 {
            air.channel.get @again[] (%l[] [] []) : (memref<16xi32, 2>)
          }
          memref.dealloc %l : memref<16xi32, 2>
        }
        memref.dealloc %m : memref<16xi32, 1>
      }
    }
    return
  }
}
"""
ALLOC = "%m = memref.alloc() : memref<16xi32, 1>"
PUT = "air.channel.put @again[] (%m[] [] []) : (memref<16xi32, 1>)"
WRAPS = "a loop that puts the same {0} times, which becomes air.refeed_count = {0}; a lock counts to 63, so {0} wraps to {1} and the array waits for ever; send the buffer at most 63 times per fill"


def refed(*loops: int, put: str = PUT, nested: bool = False, alloc: str = ALLOC) -> str:
    """A memtile's buffer, filled once and sent by loops of so many trips."""
    heads = [f"scf.for %i{i} = %c0 to %c{trips} step %c1 {{" for i, trips in enumerate(loops)]
    send = (
        "".join(heads) + put + "}" * len(loops) if nested else "\n".join(f"{head} {put} }}" for head in heads)
    )
    constants = "".join(
        f"%c{n} = arith.constant {n} : index\n" for n in sorted({0, 1, sum(loops), *loops, np.prod(loops)})
    )
    text = REFEED.replace("{constants}", constants).replace("{alloc}", alloc).replace("{send}", send)
    return text.replace("{taken}", str(np.prod(loops) if nested else sum(loops)))


@pytest.mark.parametrize(
    ("text", "count"),
    [(refed(74), 74), (refed(40, 24), 64), (refed(8, 8, nested=True), 64)],
    ids=["a loop", "loops one after the other", "loops in one another"],
)
def test_lock_that_would_wrap(text, count, program):
    """74 is the count with which upstream's model waited for ever (mlir-air, pull request 1854)."""
    message = WRAPS.format(count, count % 64)
    assert_fault(text, "refeed", message)
    error = failed(program(text, options=CHECKS), np.zeros(16, np.int32))
    assert error.kind == "lock"
    assert str(error).endswith(f"air.channel.put @again in segment @s: {message}")


BETWEEN = "memref.store %v, %m[%c0] : memref<16xi32, 1>\n"
LOADED = ALLOC + "\n%v = arith.constant 1 : i32"


@pytest.mark.parametrize(
    "text",
    [refed(63), refed(32, 31), refed(9, 7, nested=True), refed(74, put=BETWEEN + PUT, alloc=LOADED)],
    ids=["63", "63 in two loops", "63 in a nest", "a body that does more is no count"],
)
def test_lock_that_counts_far_enough(text, program):
    assert not [
        fault for fault in virtual_npu.Program.from_text(text).check().faults if fault.kind == "refeed"
    ]
    ran(program(text, options=CHECKS), np.zeros(16, np.int32))


def test_checks_alone_look_at_locks(program):
    ran(program(refed(74)), np.zeros(16, np.int32))


@pytest.mark.parametrize("count", [63, 64])
def test_count_of_a_lock_that_is_written(count):
    text = f"module {{ func.func @f() {{ %m = memref.alloc() {{air.refeed_count = {count} : i32}} : memref<64xi32, 1> return }} }}"
    if count <= 63:
        assert_clean(text)
    else:
        assert_fault(text, "refeed", "air.refeed_count = 64; a lock counts to 63, so 64 wraps to 0")


LOOP_IN_LAUNCH = """air.channel @in [1]
func.func @f(%x: memref<{type}>) {{
  air.launch () in () args(%x_l=%x) : memref<{type}> {{
    {constants}
    scf.for %i = %c0 to %c3 step %c1 {{
      air.channel.put @in[] (%x_l[] [] []) : (memref<{type}>)
    }}
  }}
  return
}}
"""


def test_loop_over_puts_of_l3_loses_its_repeats():
    """Seen with aircc at e972f294: three puts became one task of the shim."""
    text = LOOP_IN_LAUNCH.format(type="16xi32", constants=CONSTANTS)
    message = (
        "the same part of L3 3 times; aircc's first pass makes one put of it, and the shim sends that once"
    )
    assert_warning(text, "refeed", message)


def test_loop_over_puts_of_l2_from_elsewhere_is_refused():
    text = LOOP_IN_LAUNCH.format(type="16xi32, 1", constants=CONSTANTS)
    assert_fault(text, "refeed", "3 times, whose memref.alloc cannot be seen; air-annotate-refeed refuses it")


# ---- a shim's offset has 32 bits ----

FAR = """module {
  func.func @f(%x: memref<5368709120xi8>, %k: index) {
    air.herd @h tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%x_h=%x, %at=%k) : memref<5368709120xi8>, index {
      %l = memref.alloc() : memref<64xi8, 2>
      air.dma_memcpy_nd (%l[] [] [], %x_h[%at] [%c64] [%c1]) : (memref<64xi8, 2>, memref<5368709120xi8>)
      memref.dealloc %l : memref<64xi8, 2>
    }
    return
  }
}
"""
LIMIT = 1 << 32


def test_transfer_that_begins_beyond_4_gib(program):
    library = program(FAR, options=CHECKS)
    with tempfile.TemporaryFile() as file:
        file.truncate(5 * (1 << 30))  # a file of holes, which takes no room
        far = np.memmap(file, np.int8, "c")
        ran(library, far, np.array(LIMIT - 64))
        error = failed(library, far, np.array(LIMIT + 64))
    assert error.kind == "offset"
    assert str(error).endswith(
        "begins 4294967360 bytes into %x (memref<5368709120xi8>, argument 0 of @f at line 2); the shim is given offsets in 32 bits, so it would begin at byte 64; let offsets end below 4294967296: put what lies beyond into another argument"
    )


BEYOND = """func.func @f(%x: memref<?xi32>) {{
  air.launch (%i) in (%n=%c4) args(%x_l=%x) : memref<?xi32> {{
    {constants}
    %step = arith.constant {step} : index
    %at = arith.muli %i, %step : index
    air.channel.put @c[] (%x_l[%at] [%c64] [%c1]) : (memref<?xi32>)
  }}
  return
}}
air.channel @c [1]
"""


def beyond(step: int) -> str:
    return BEYOND.format(constants=CONSTANTS, step=step).replace(
        "{\n  air.launch", "{\n%c4 = arith.constant 4 : index\n  air.launch", 1
    )


def test_offset_beyond_4_gib_is_known_from_the_text():
    """The last of four trips begins at three steps."""
    third = (1 << 30) // 3
    assert_clean(beyond(third))
    message = r"the L3 side \(memref<\?xi32>\) has an offset of up to 4294967304 bytes; a shim's descriptor is given the offset in 32 bits, so it would begin at byte 8; offsets end below 4294967296"
    assert_fault(beyond(third + 1), "host-offset", message)


# ---- vectors that are not aligned ----

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
    assert addresses(sizes, NPU2, stack) == expected


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
def test_result_that_hangs_on_what_memory_held(kernel, passed, tmp_path):
    program = uncleared(kernel, *passed, tmp_path)
    program.run(np.zeros(8, np.float32))  # the other checks see nothing of it
    with pytest.raises(GarbageError) as caught:
        program.run(np.zeros(8, np.float32), garbage=4)
    assert caught.value.kind == "garbage"
    assert str(caught.value).startswith("f: the result depends on what memory held before: arg0[0] is ")
    assert (
        "nobody clears L1, L2 or the variables of kernels (.bss) for a program, so write what is read; repeat it with --garbage 1 --seed "
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
