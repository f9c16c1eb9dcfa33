"""Static check: bytes of L1 and L2, double-buffering, the stack, and memory that no NPU has."""

from __future__ import annotations

import pytest
from xdsl.dialects.func import FuncOp

from aerie.air_dialect import parse
from aerie.device import check
from aerie.device.transfers import element_bits
from tests.virtual_npu.static_texts import assert_clean, assert_fault, faults_of, program, used

FILL = "air.dma_memcpy_nd (%b[] [] [], %a[%c0, %c0] [%c16, %c64] [%c64, %c1]) {{id = 1 : i32}} : ({0}, {1})"
NEAR, FAR = "memref<16x64xbf16, 2>", "memref<64x64xbf16>"
ALLOC = f"%b = memref.alloc() : {NEAR}"
EXECUTED = (
    f"%t, %b = air.execute -> ({NEAR}) {{\n"
    f"%m = memref.alloc() : {NEAR}\nair.execute_terminator %m : {NEAR}\n}}"
)
COPY = FILL.format(NEAR, FAR)
PART = (
    "air.dma_memcpy_nd (%b[%c0, %c0] [%c16, %c64] [%c64, %c1], %a[%c0, %c0] [%c16, %c64] [%c64, %c1]) "
    "{id = 1 : i32} : (memref<256x64xbf16, 2>, memref<64x64xbf16>)"
)
SEEN = "\n%seen = memref.load %b[%c0, %c0] : memref<256x64xbf16, 2>"
KIB = 1024


def loop(body: str, attributes: str = "") -> str:
    return f"scf.for %i = %c0 to %c4 step %c1 {{\n{body}\n}} {attributes}"


def l1(herd: str, **options) -> int:
    return used(check(program(herd), **options), "L1 bytes") - KIB


def l2(segment: str, **options) -> int:
    return used(check(program(segment=segment), **options), "L2 bytes")


@pytest.mark.parametrize(
    ("herd", "copies"),
    [
        (f"{ALLOC}\n{COPY}", 1),
        (loop(f"{ALLOC}\n{COPY}"), 2),
        (f"{ALLOC}\n{loop(COPY)}", 2),
        (f"{EXECUTED}\n{loop(COPY)}", 2),
        (f"{ALLOC}\n{loop(COPY, '{unroll = 2 : i32}')}", 1),
        (loop(f"{ALLOC}\n{COPY}", "{unroll = 2 : i32}"), 2),
        (f"{ALLOC}\n{loop(COPY, '{air.disable_ping_pong}')}", 1),
        (f"{ALLOC}\n{loop(loop('', '{air.disable_ping_pong}').replace('%i', '%j') + COPY)}", 1),
        (loop(ALLOC), 1),
        (loop(f"{ALLOC}\n{COPY}").replace("%c0 to", "%c1 to"), 3),  # three trips, of which one is left over
    ],
)
def test_what_aircc_double_buffers_counts_twice(herd: str, copies: int) -> None:
    assert l1(herd) == copies * 2 * KIB
    assert l1(herd, omit_ping_pong="all") == 2 * KIB


def test_the_stack_counts_with_l1() -> None:
    assert used(check(program()), "L1 bytes") == KIB
    assert used(check(program(), stack_bytes=4096), "L1 bytes") == 4 * KIB


def test_l2_counts_copies_of_the_segment() -> None:
    buffer = "%b = memref.alloc() : memref<32x64xbf16, 1>"
    assert l2(buffer) == 4 * KIB
    twice = program(segment=buffer, unroll="unroll(%u) in (%su=%c2)")
    assert used(check(twice), "L2 bytes") == 8 * KIB


def test_l2_filled_in_a_loop_counts_twice() -> None:
    fill = FILL.format("memref<16x64xbf16, 1>", FAR)
    text = "%b = memref.alloc() : memref<16x64xbf16, 1>\n" + loop(fill)
    assert l2(text) == 4 * KIB
    assert l2(text, omit_ping_pong="all") == 2 * KIB


def test_a_buffer_of_the_segment_is_divided_among_the_cores() -> None:
    text = """func.func @f() {
      %c4 = arith.constant 4 : index
      air.segment @s {
        %c4_0 = arith.constant 4 : index
        %b = memref.alloc() : memref<4x4x64xf32, 2>
        air.herd @h tile (%x, %y) in (%sx=%c4_0, %sy=%c4_0) args(%p=%b) : memref<4x4x64xf32, 2> { }
      }
      return
    }"""
    assert used(check(text), "L1 bytes") == KIB + 256


def test_elements_below_a_byte() -> None:
    assert l1("%b = memref.alloc() : memref<33xi4, 2>") == 17


@pytest.mark.parametrize(
    ("element", "bits"),
    [("f32", 32), ("i4", 4), ("index", 64), ("vector<8xbf16>", None), ("memref<4xf32>", None)],
)
def test_the_bits_of_an_element(element: str, bits: int | None) -> None:
    text = f"func.func private @f(memref<8x{element}>)"
    (declared,) = (op for op in parse(text).walk() if isinstance(op, FuncOp))
    assert element_bits(declared.function_type.inputs.data[0]) == bits


FAULTS = {
    "L1": (
        program("%b = memref.alloc() : memref<16129xf32, 2>"),
        "limit",
        "air.herd: f/0/s/h: L1 bytes takes 65540, npu2 has 65536; use smaller L1 tiles .mlir-aie AIETargetM",
    ),
    "L1 with double-buffering": (
        program(loop("%b = memref.alloc() : memref<256x64xbf16, 2>\n" + PART + SEEN)),
        "limit",
        "L1 bytes takes 66560",
    ),
    "L2": (
        program(segment="%b = memref.alloc() : memref<1048577xf32, 1>"),
        "limit",
        "L2 bytes takes 4194308, npu2 has 4194304; use smaller L2 tiles, or more columns .8 memtiles",
    ),
    "L2 of a narrow segment": (
        program(segment="%b = memref.alloc() : memref<131073xf32, 1>", segment_attributes="x_size = 1 : i64"),
        "limit",
        "L2 bytes takes 524292, npu2 has 524288; .*1 memtiles, one per column",
    ),
    "a size of the run": (
        program(
            "%i = memref.alloc() : memref<1xindex, 2>\n%n = memref.load %i[%c0] : memref<1xindex, 2>\n"
            "%b = memref.alloc(%n) : memref<?xbf16, 2>"
        ),
        "memory",
        "memref.alloc: f/0/s/h: memref<.xbf16, 2> has a size known only at run time; memory of the array is",
    ),
    "a memory that is none": (
        program("%b = memref.alloc() : memref<8xbf16, 3>"),
        "memory",
        "memref<8xbf16, 3> is in no memory of an NPU; there are L3 .0 or none., L2 .1. and L1 .2.",
    ),
    "a named memory": (
        program(
            'air.channel.put @c[] (%a[] [] []) : (memref<8xbf16, "near">)',
            module="air.channel @c []",
            args={"a": 'memref<8xbf16, "near">'},
        ),
        "memory",
        'memref<8xbf16, "near"> is in no memory of an NPU',
    ),
    "elements that are vectors": (
        program(
            "%b = memref.alloc() : memref<8xvector<2xbf16>, 2>\n"
            "air.channel.put @c[] (%b[] [] []) : (memref<8xvector<2xbf16>, 2>)",
            module="air.channel @c []",
        ),
        "memory",
        "air.channel.put: .* elements of memref<8xvector<2xbf16>, 2> are none that a DMA moves; use integers",
    ),
    "unknown rank": (
        program(
            "%b = memref.alloc() : memref<8xbf16, 2>\n"
            "%u = memref.cast %b : memref<8xbf16, 2> to memref<*xbf16, 2>\n"
            "air.channel.put @c[] (%u[] [] []) : (memref<*xbf16, 2>)",
            module="air.channel @c []",
        ),
        "memory",
        "memref<.xbf16, 2 : i64> is a memref of unknown rank; give it a shape",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_memory_that_is_not_there(name: str) -> None:
    assert_fault(*FAULTS[name])


def test_memory_that_is_there() -> None:
    assert_clean(program("%b = memref.alloc() : memref<16128xf32, 2>"))
    assert_clean(program(segment="%b = memref.alloc() : memref<131072xf32, 1>"))


@pytest.mark.parametrize("space", [1, 2])
def test_memory_of_the_array_that_the_caller_has(space: int) -> None:
    text = program(args={"a": f"memref<64xbf16, {space}>"})
    message = rf"memref<64xbf16, {space}> comes from the caller, who has no memory of the array; alloc"
    assert_fault(text, "memory", message)


def test_a_host_buffer_of_unknown_rank() -> None:
    herd = "%b = memref.alloc() : memref<64xbf16, 2>\nair.dma_memcpy_nd (%b[] [] [], %a[%c0] [%c64] [%c1]) : "
    assert_clean(program(herd + "(memref<64xbf16, 2>, memref<*xbf16>)", args={"a": "memref<*xbf16>"}))


def test_sizes_that_are_constants_are_no_sizes_of_the_run() -> None:
    text = program("%b = memref.alloc(%c64) : memref<?x4xbf16, 2>")
    assert used(check(text), "L1 bytes") == KIB + 64 * 4 * 2
    assert faults_of(check(text)) == []


@pytest.mark.parametrize(("looked_at", "used_bytes"), [("", 2 * KIB), (SEEN, 32 * KIB)])
def test_a_buffer_of_which_only_a_part_moves_is_made_small(looked_at: str, used_bytes: int) -> None:
    text = program("%b = memref.alloc() : memref<256x64xbf16, 2>\n" + PART + looked_at)
    assert used(check(text), "L1 bytes") == KIB + used_bytes


def branching(first: str, second: str) -> str:
    """Buffers of a branch of the first column, and of one of the second."""
    branch = "affine.if affine_set<(d0) : (d0 {} == 0)>(%x) {{\n{}\n}}\n"
    return program(branch.format("", first) + branch.format("- 1", second), tiles="%c2, %c1")


def test_a_core_has_no_buffers_of_other_cores() -> None:
    def buffer(name: str, rows: int) -> str:
        return f"%{name} = memref.alloc() : memref<{rows}x256xi32, 2>"

    assert used(check(branching(buffer("near", 40), buffer("next", 30))), "L1 bytes") == 41 * KIB
    both = buffer("near", 40) + "\n" + buffer("b", 30)
    assert_fault(branching(both, buffer("last", 1)), "limit", "L1 bytes takes 72704, npu2 has 65536")
