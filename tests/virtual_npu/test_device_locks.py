# ruff: noqa: E501 - MLIR has long lines
"""Registers of the device that a CPU does not have: values of locks and offsets of the shim, each with a program that goes
beyond them and one that does not, by the static check and at run."""

from __future__ import annotations

import math
import tempfile

import numpy as np
import pytest

from aerie import virtual_npu
from tests.virtual_npu.checked_runs import CHECKS, failed, ran
from tests.virtual_npu.static_texts import CONSTANTS, assert_clean, assert_fault, assert_warning
from tests.virtual_npu.static_texts import program as herd

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
        f"%c{n} = arith.constant {n} : index\n" for n in sorted({0, 1, sum(loops), *loops, math.prod(loops)})
    )
    text = REFEED.replace("{constants}", constants).replace("{alloc}", alloc).replace("{send}", send)
    return text.replace("{taken}", str(math.prod(loops) if nested else sum(loops)))


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


# ---- a core takes the lock of what it puts where the put's block begins ----

STORE = "memref.store %f, %b[%i] : memref<16xf32, 2>"
SEND = "air.channel.put @c[] (%b[] [] []) : (memref<16xf32, 2>)"
IN_LOOP = "scf.for %i = %c0 to %c8 step %c1 {{ {0} }}"
FILLS = "scf.for %k = %c0 to %c16 step %c1 { memref.store %f, %b[%k] : memref<16xf32, 2> }"
IN_BLOCK = "%is = arith.cmpi eq, %i, %c1 : index\nscf.if %is {{ {0} }}"


def sent(body: str) -> str:
    made = "%f = arith.constant 1.0 : f32\n%b = memref.alloc() : memref<16xf32, 2>\n"
    get = "air.channel.get @c[] (%out[] [] []) : (memref<16xf32>)"
    return herd(made + body, launch=get, module="air.channel @c [1]", args={"out": "memref<16xf32>"})


@pytest.mark.parametrize(
    ("fill", "op"),
    [
        (STORE, "memref.store"),
        (FILLS, "memref.store"),
        ("linalg.fill ins(%f : f32) outs(%b : memref<16xf32, 2>)", "linalg.fill"),
    ],
)
def test_lock_that_is_taken_after_the_buffer_is_written(fill, op):
    """air-to-aie (e972f294) put the acquire into the block of the put, behind the store."""
    text = sent(IN_LOOP.format(f"{fill}\n{IN_BLOCK.format(SEND)}"))
    message = rf"where the block of this put begins, after line \d+ \({op}\) has written the buffer: from the second round on it may overwrite what the put before still sends; put it in the same block"
    assert_warning(text, "late-acquire", message)


@pytest.mark.parametrize(
    "body",
    [IN_LOOP.format(f"{STORE}\n{SEND}"), IN_LOOP.format(IN_BLOCK.format(f"{STORE}\n{SEND}")), f"%i = arith.constant 1 : index\n{STORE}\n{IN_BLOCK.format(SEND)}"],
    ids=["in one block", "in one block of the loop", "once"],
)  # fmt: skip
def test_lock_that_is_taken_in_time(body):
    assert_clean(sent(body))


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
        "begins 4294967360 bytes into %x (memref<5368709120xi8>, argument 0 of @f at line 2); the shim gets offsets in 32 bits, so it would begin at byte 64; let offsets end below 4294967296: put the rest into another argument"
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
