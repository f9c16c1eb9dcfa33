"""Static check: forms of AIR that mlir-air lowers to something else."""

from __future__ import annotations

from static_texts import assert_clean, program

from virtual_npu.static import check

CASCADE = 'air.channel @c [1] {channel_type = "npu_cascade"}'
ALLOC = "%b = memref.alloc() : memref<128xf32, 2>\n"
SETS = "affine_set<()[s0] : (s0 - 1 == 0)>", "affine_set<()[s0] : (s0 == 0)>"


def chain(walk: str) -> str:
    """Core (0, 1) sends to core (0, 0) over a cascade; `walk` is the part of its buffer."""
    ends = (
        f"affine.if {SETS[0]}()[%y] {{\nair.channel.put @c[%c0] (%b{walk}) : (memref<128xf32, 2>)\n}}\n"
        f"affine.if {SETS[1]}()[%y] {{\nair.channel.get @c[%c0] (%b{walk}) : (memref<128xf32, 2>)\n}}\n"
    )
    return program(ALLOC + ends, module=CASCADE, tiles="%c1, %c2")


def test_a_whole_buffer_over_a_cascade() -> None:
    assert_clean(chain("[] [] []"))


def test_part_of_a_buffer_over_a_cascade() -> None:
    report = check(chain("[%c0] [%c64] [%c1]"))
    assert report.ok
    assert [str(found).partition(": ")[2] for found in report.warnings] == [
        f"air.channel.{end}: f/0/s/h: part of a buffer over a cascade: mlir-air's lowering of cascades "
        "passes over offsets and sizes and moves the whole buffer; send and receive whole buffers of "
        "one type (mlir-air AIRToAIEPass.cpp)"
        for end in ("put", "get")
    ]
