"""Static check: sizes, strides, offsets, lengths and padding that the DMA of a tile cannot walk."""

from __future__ import annotations

from typing import Any

import pytest

from aerie.air_dialect import AirParseError, parse
from aerie.device import check
from tests.virtual_npu.bundle_texts import FORALL, of_herd, of_launch, of_segment
from tests.virtual_npu.static_texts import assert_clean, assert_fault, assert_warning, program


def moved(pattern: str, type_: str, level: str = "launch", attributes: str = "", put: bool = True) -> str:
    """One transfer of one memory over a channel; `pattern` is the three lists, in plain numbers."""
    op, space = ("put", type_) if put else ("get", type_)
    transfer = f"air.channel.{op} @c[] (%b{pattern}) {attributes} : ({space})"
    body = f"%b = memref.alloc() : {type_}\n{transfer}"
    if level == "launch":
        body = transfer.replace("%b", "%a")
        return program(launch=body, args={"a": type_}, module="air.channel @c []")
    levels: dict[str, Any] = {level: body}
    return program(**levels, module="air.channel @c []")


L3 = "memref<64x64xbf16>"
NOTHING = (
    f"%n = arith.subi %c1, %c1 : index\nair.channel.put @c[] (%a[%c0, %c0] [%n, %c8] [%c64, %c1]) : ({L3})"
)

CLEAN = {
    "a block": moved("[0, 0] [4, 8] [64, 1]", L3),
    "the whole": moved("[] [] []", "memref<2048x2048xbf16>"),
    "a whole buffer of L1": moved("[] [] []", "memref<64x64xbf16, 2>", "herd"),
    "words with any stride": moved("[0, 0] [64, 64] [1, 64]", "memref<64x64xf32>"),
    "a repeat": moved("[0, 0, 0] [256, 4, 8] [0, 64, 1]", L3),
    "repeats within": moved("[0, 0, 0, 0] [2, 4, 4, 8] [512, 0, 64, 1]", L3),
    "four dimensions of a memtile": moved(
        "[0, 0, 0, 0] [4, 4, 4, 4] [4, 256, 16, 2]", "memref<4096xf32, 1>", "segment"
    ),
    "three dimensions of a core": moved("[0, 0, 0] [4, 4, 4] [4, 256, 16]", "memref<4096xf32, 2>", "herd"),
    "four that are three": moved(
        "[0, 0, 0, 0] [4, 8, 4, 8] [64, 8, 256, 1]", "memref<4x4x8x8xbf16, 2>", "herd"
    ),
    "a size to be cut": moved("[0, 0] [2, 4096] [8192, 2]", "memref<16384xf32>"),
    "a long run of a core": moved("[] [] []", "memref<16128xf32, 2>", "herd"),
    "padding in words": moved(
        "[0, 0] [4, 6] [64, 1]",
        "memref<64x64xbf16, 1>",
        "segment",
        "{pad_before = array<i32: 0, 0>, pad_after = array<i32: 1, 2>}",
    ),
    "sizes of the run": moved("[%x, 0] [4, 8] [64, 1]", "memref<64x64xbf16, 2>", "herd"),
}


@pytest.mark.parametrize("name", CLEAN)
def test_what_a_dma_can_walk(name: str) -> None:
    assert_clean(CLEAN[name])


FAULTS: dict[str, tuple[Any, str, str]] = {
    "a stride between elements": (
        moved("[0, 0] [4, 8] [64, 2]", L3),
        "innermost-stride",
        "air.channel.put: f/0: the L3 side .memref<64x64xbf16>. has innermost stride 2: elements of 16 bits",
    ),
    "a transpose of bytes": (
        moved("[0, 0] [4, 8] [4, 16]", "memref<8x16xi8, 1>", "segment"),
        "innermost-stride",
        "innermost stride 16: elements of 8 bits move only in runs of stride 1; move blocks and transpose",
    ),
    "a stride between wide elements": (
        moved("[0, 0] [8, 8] [16, 2]", "memref<8x16xi64, 1>", "segment"),
        "innermost-stride",
        "innermost stride 2: elements of 64 bits",
    ),
    "an odd run": (
        moved("[0, 0] [4, 7] [64, 1]", L3),
        "granule",
        "runs of 14 bytes, no multiple of 4; use an even number of elements .mlir-aie AIEXDialect.cpp",
    ),
    "an odd run of bytes": (
        moved("[0, 0] [4, 6] [64, 1]", "memref<64x64xi8>"),
        "granule",
        "runs of 6 bytes, no multiple of 4; use a multiple of 4 bytes",
    ),
    "an odd length": (
        moved("[] [] []", "memref<33xbf16, 2>", "herd"),
        "granule",
        "runs of 66 bytes, no multiple of 4",
    ),
    "an odd stride": (
        moved("[0, 0] [4, 8] [65, 1]", L3),
        "granule",
        "a stride of 130 bytes, no multiple of 4 bytes; use an even number of elements",
    ),
    "an odd offset": (
        moved("[0, 1] [4, 8] [64, 1]", L3),
        "alignment",
        "an offset that may be no multiple of 4 bytes; use an even number of elements .* DMABDOp::verify",
    ),
    "an odd offset of a loop": (
        program(
            "%b = memref.alloc() : memref<64x64xbf16, 2>\nscf.for %i = %c0 to %c8 step %c1 {\n"
            "air.channel.put @c[] (%b[%c0, %i] [%c4, %c8] [%c64, %c1]) : (memref<64x64xbf16, 2>)\n}",
            module="air.channel @c []",
        ),
        "alignment",
        "the L1 side .* an offset that may be no multiple of 4 bytes",
    ),
    "size 0": (
        parse(program(launch=NOTHING, module="air.channel @c []"), strict=False),
        "size",
        "size 0 in dimension 0; a transfer needs at least one element, so make every size at least 1",
    ),
    "a negative stride": (
        moved("[0, 0] [4, 8] [-64, 1]", L3),
        "stride",
        "stride -64 in dimension 0; a DMA walks upwards only, so turn the order around on the core",
    ),
    "stride 0 within": (
        moved("[0, 0, 0] [4, 4, 8] [64, 0, 1]", "memref<64x64xbf16, 1>", "segment"),
        "stride",
        "stride 0 over 4 elements; only the outermost dimension can repeat, so put it there",
    ),
    "too many repeats": (
        moved("[0, 0, 0] [257, 4, 8] [0, 64, 1]", L3),
        "repeat",
        "a walk that repeats 257 times; a repeat count of 8 bits allows 256, so move it in parts",
    ),
    "beyond the end": (
        moved("[61, 0] [4, 8] [64, 1]", L3),
        "bounds",
        "a walk that reaches element 4103 of 4096; make offsets, sizes or strides smaller",
    ),
    "too long for a core": (
        moved("[0, 0] [5, 4000] [1, 1]", "memref<8000xi32, 2>", "herd"),
        "length",
        "80000 bytes in one transfer; a descriptor holds 65532, so move it in parts",
    ),
    "too long for a memtile": (
        moved("[0, 0] [2, 65792] [1, 1]", "memref<65800xi32, 1>", "segment"),
        "length",
        "526336 bytes in one transfer; a descriptor holds 524284, so move it in parts",
    ),
    "too far for a core": (
        moved("[0, 0] [2, 4] [8193, 1]", "memref<8200xi32, 2>", "herd"),
        "stride",
        "a stride of 32772 bytes; a descriptor holds 32768, so lay the buffer out differently",
    ),
    "too far for the shim": (
        moved("[0, 0] [2, 4] [1048577, 1]", "memref<2x1048577xi32>"),
        "stride",
        "a stride of 4194308 bytes; a descriptor holds 4194304",
    ),
    "too many dimensions for a core": (
        moved("[0, 0, 0, 0] [4, 4, 4, 4] [4, 256, 16, 2]", "memref<4096xf32, 2>", "herd"),
        "dimensions",
        "4 dimensions; a descriptor walks 3; move less at a time or lay the buffer out differently",
    ),
    "too many dimensions for a memtile": (
        moved("[0, 0, 0, 0, 0] [2, 4, 4, 4, 4] [1, 4, 256, 16, 2]", "memref<4096xf32, 1>", "segment"),
        "dimensions",
        "5 dimensions; a descriptor walks 4;",
    ),
    "too many dimensions for the shim": (
        moved("[0, 0, 0, 0, 0] [2, 4, 4, 4, 4] [1, 4, 256, 16, 2]", "memref<4096xf32>"),
        "dimensions",
        "5 dimensions; a task walks 3 and one iteration or repeat, and mlir-air drops the others; move less",
    ),
    "a size that no register holds": (
        moved("[0, 0] [509, 4] [8, 1]", "memref<509x8xf32, 2>", "herd"),
        "dimensions",
        "too many dimensions after cutting sizes above 255; a descriptor walks 3",
    ),
    "wide elements at the shim": (
        moved("[] [] []", "memref<64xi64>"),
        "element-width",
        "elements of 64 bits; the shim moves elements of 8, 16 or 32 bits, so move them as i32 .* AIRRtToNpu",
    ),
    "padding of a core": (
        moved(
            "[0, 0] [4, 8] [64, 1]",
            "memref<64x64xbf16, 2>",
            "herd",
            "{pad_before = array<i32: 0, 0>, pad_after = array<i32: 1, 0>}",
        ),
        "padding",
        "padding on its way out of L1; only memtiles pad, so stage it through L2",
    ),
    "padding of half a word": (
        moved(
            "[0, 0] [4, 8] [64, 1]",
            "memref<64x64xbf16, 1>",
            "segment",
            "{pad_before = array<i32: 0, 1>, pad_after = array<i32: 0, 1>}",
        ),
        "padding",
        "innermost padding of 1 and 1 elements of 16 bits; a memtile pads whole words of 4 bytes",
    ),
    "padding of a size of the run": (
        program(
            segment="%b = memref.alloc() : memref<64x64xbf16, 1>\nscf.for %i = %c1 to %c8 step %c1 {\n"
            "air.channel.put @c[] (%b[%c0, %c0] [%i, %c8] [%c64, %c1]) "
            "{pad_before = array<i32: 0, 0>, pad_after = array<i32: 1, 0>} : (memref<64x64xbf16, 1>)\n}",
            module="air.channel @c []",
        ),
        "padding",
        "padding with sizes that are not constant; write numbers",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_no_dma_can_walk(name: str) -> None:
    text, kind, message = FAULTS[name]
    assert_fault(text, kind, message)


def test_a_size_that_is_computed_is_refused_as_one_that_is_written() -> None:
    with pytest.raises(AirParseError, match="src has a size of 0: every size must be at least 1"):
        parse(program(launch=NOTHING, module="air.channel @c []"))


def test_a_repeat_takes_a_dimension_of_the_shim_only() -> None:
    pattern = "[0, 0, 0, 0, 0] [3, 4, 4, 4, 4] [0, 4, 256, 16, 2]"
    assert_clean(moved(pattern, "memref<4096xf32, 1>", "segment"))
    assert_fault(moved(pattern, "memref<4096xf32>"), "dimensions", "5 dimensions; a task walks 3 and one")


LOOPS = {
    "a size above a register": (
        moved("[0, 0, 0, 0] [2, 3, 2, 2048] [7, 3, 1, 16]", "memref<65536xf32>"),
        "dimensions",
        "sizes above 1023 in 4 dimensions, which no single task walks; it becomes a loop of several",
    ),
    "many iterations": (
        moved("[0, 0, 0, 0] [65, 3, 2, 2] [19, 3, 1, 16]", "memref<65536xf32>"),
        "iteration",
        "an outermost size of 65 in 4 dimensions; a task iterates 64 times at most",
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_what_becomes_a_loop_of_the_host(name: str) -> None:
    assert_warning(*LOOPS[name])


def test_both_sides_of_a_dma_are_looked_at() -> None:
    text = program(
        "%b = memref.alloc() : memref<4x7xbf16, 2>\n"
        "air.dma_memcpy_nd (%b[] [] [], %a[0, 0] [4, 7] [64, 1]) {id = 1 : i32} : "
        "(memref<4x7xbf16, 2>, memref<64x64xbf16>)"
    )
    faults = check(text).faults
    assert [fault.kind for fault in faults] == ["granule"]
    assert "the L3 side" in faults[0].message
    assert faults[0].line == text[: text.index("air.dma")].count("\n") + 1


def offset(index: str, tiles: str = "%c4, %c1") -> str:
    """A transfer at offset %o, computed by `index` from the loop's %i, the core's %x or the table %t."""
    return program(
        "%b = memref.alloc() : memref<64x64xbf16, 2>\n%t = memref.alloc() : memref<4xindex, 2>\n"
        f"scf.for %i = %c0 to %c8 step %c2 {{\n{index}\n"
        "air.channel.put @c[] (%b[%c0, %o] [%c4, %c8] [%c64, %c1]) : (memref<64x64xbf16, 2>)\n}",
        module="air.channel @c []",
        tiles=tiles,
    )


@pytest.mark.parametrize(
    "index",
    [
        "%o = arith.addi %i, %c4 : index",
        "%o = affine.apply affine_map<(d0) -> (d0 * 6 + 2)>(%x)",
        "%o = arith.muli %x, %i : index",
        "%p = arith.index_cast %i : index to i32\n%o = arith.index_cast %p : i32 to index",
    ],
)
def test_offsets_of_whole_words(index: str) -> None:
    assert_clean(offset(index))


def test_a_coordinate_that_is_always_zero() -> None:
    odd = "%o = arith.addi %x, %i : index"
    assert_clean(offset(odd, "%c1, %c4"))
    assert_fault(offset(odd, "%c2, %c1"), "alignment", "an offset that may be no multiple of 4 bytes")


def test_an_offset_of_the_run_is_only_warned_about() -> None:
    loaded = "%o = memref.load %t[%c0] : memref<4xindex, 2>"
    assert_warning(offset(loaded), "alignment", "an offset that may be no multiple of 4 bytes")
    halved = "%o = affine.apply affine_map<(d0) -> (d0 floordiv 2)>(%i)"
    assert_warning(offset(halved), "alignment", "an offset that may be no multiple of 4 bytes")


def affine_loop(step: int) -> str:
    """A transfer at the variable of an affine loop."""
    return program(
        f"%b = memref.alloc() : memref<64x64xbf16, 2>\naffine.for %i = 0 to 8 step {step} {{\n"
        "air.channel.put @c[] (%b[%c0, %i] [%c4, %c8] [%c64, %c1]) : (memref<64x64xbf16, 2>)\n}",
        module="air.channel @c []",
    )


def test_an_affine_loop() -> None:
    assert_clean(affine_loop(2))
    assert_fault(affine_loop(1), "alignment", "an offset that may be no multiple of 4 bytes")


def test_a_loop_of_one_trip_stays_where_it_begins() -> None:
    text = program(
        "%b = memref.alloc() : memref<64x64xbf16, 2>\nscf.for %i = %c4 to %c5 step %c1 {\n"
        "air.channel.put @c[] (%b[%c0, %i] [%c4, %c8] [%c64, %c1]) : (memref<64x64xbf16, 2>)\n}",
        module="air.channel @c []",
    )
    assert_clean(text)


def test_a_layout_says_the_strides_of_the_whole() -> None:
    strided = "memref<4x8xbf16, strided<[65, 1]>, 1>"
    text = program(
        segment="%w = memref.alloc() : memref<64x65xbf16, 1>\n"
        "%b = memref.subview %w[0, 0] [4, 8] [1, 1] : memref<64x65xbf16, 1> to " + strided + "\n"
        f"air.channel.put @c[] (%b[] [] []) : ({strided})",
        module="air.channel @c []",
    )
    assert_fault(text, "granule", "a stride of 130 bytes")


IN_TIME = {
    "the induction variable": (
        of_launch("%i"),
        "index 0 of @to is the induction variable of an scf.for, which mlir-air's verifiers refuse; use an "
        "scf.parallel or a coordinate of the herd, or unroll the loop (mlir-air AIRDialect.cpp)",
    ),
    "made from it, in a launch": (
        of_launch(),
        "index 0 of @to changes with an scf.for, for which air-to-aie finds no shim DMA; use an scf.parallel",
    ),
    "made from it, in a segment": (
        of_segment(),
        "index 0 of @to changes with an scf.for, for which aircc makes one transfer of one "
        "member, so that the others wait for ever; use an scf.parallel",
    ),
    "made from it, in a herd": (
        of_herd("%c16"),
        "index 0 of @to changes with an scf.for, for which air-to-aie finds no channel of the core; use an",
    ),
}


@pytest.mark.parametrize("name", IN_TIME)
def test_a_channel_that_a_sequential_loop_chooses(name: str) -> None:
    text, message = IN_TIME[name]
    found = check(text).faults
    assert {fault.kind for fault in found} == {"bundle-index"}
    assert message in str(found[0])


def test_a_channel_that_a_loop_in_space_chooses() -> None:
    """Or one that air-ping-pong-transform unrolls: that is a warning."""
    assert_clean(of_launch("%i", FORALL))
    assert_clean(of_launch(head=FORALL))
    message = (
        "for which air-to-aie finds no channel of the core unless air-ping-pong-transform unrolls the loop; "
    )
    warnings = {fault.kind: fault.message for fault in check(of_herd()).warnings}
    assert message in warnings["bundle-index"]


def test_a_stride_too_far_for_a_memtile() -> None:
    report = check(moved("[0, 0] [2, 4] [131073, 1]", "memref<131080xi32, 1>", "segment"))
    assert any("a stride of 524292 bytes; a descriptor holds 524288" in str(fault) for fault in report.faults)
