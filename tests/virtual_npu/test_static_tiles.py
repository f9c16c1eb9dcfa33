"""Static check: each memtile and shim tile by itself, copies of buffers, cascades, streams without a flow."""

from __future__ import annotations

import pytest

from aerie.device import check
from aerie.device.memtile_traffic import MemtileTraffic, memtiles
from tests.virtual_npu.static_texts import assert_fault, assert_warning, faults_of, program, used

FAR = {"a": "memref<4096xbf16>"}
NEAR = "%b = memref.alloc() : memref<64xbf16, 2>\n"
TYPES = "(memref<64xbf16, 2>, memref<4096xbf16>)"
READ = f"air.dma_memcpy_nd (%b[] [] [], %a[%at] [%c64] [%c1]) {{id = 1 : i32}} : {TYPES}\n"
AT = "%at = affine.apply affine_map<()[s0, s1] -> (s0 * 256 + s1 * 64)>()[%x, %y]\n"
SHARED = (
    f"{NEAR}%low = affine.apply affine_map<()[s0] -> (s0 * 64)>()[%x]\n"
    "%high = affine.apply affine_map<()[s0] -> (s0 * 64 + 64)>()[%x]\n"
    "scf.for %at = %low to %high step %c64 {\n"
    "air.dma_memcpy_nd (%a[%at] [%c64] [%c1], %b[] [] []) {id = 1 : i32} : "
    "(memref<4096xbf16>, memref<64xbf16, 2>)\n}"
)


def cascade(x: str, to: str) -> str:
    """A core of the upper row sends to the lower one, or the other way."""
    return program(
        f"{NEAR}%up = arith.cmpi eq, %y, {x} : index\nscf.if %up {{\n"
        "air.channel.put @c[] (%b[] [] []) : (memref<64xbf16, 2>)\n} else {\n"
        "air.channel.get @c[] (%b[] [] []) : (memref<64xbf16, 2>)\n}",
        tiles="%c1, %c2",
        module=f'air.channel @c [] {{channel_type = "npu_cascade"}} // {to}',
    )


def test_shim_tiles_are_counted_by_column() -> None:
    """Three streams of a column want two shim tiles: 15 streams of 16, and ten tiles of eight."""
    text = program(f"{NEAR}{AT}{READ}", tiles="%c5, %c3", args=FAR)
    assert used(check(text), "shim channels from L3") == 15
    assert_fault(text, "limit", "shim tiles takes 10, npu2 has 8; let fewer streams of L3 meet in one column")


def test_cores_that_share_a_write_are_no_stream() -> None:
    text = program(SHARED, tiles="%c4, %c1", args=FAR)
    assert_fault(text, "fan-in", "4 cores write where no tile id chooses: .* not on the bounds of a loop")


def test_a_cascade_runs_south() -> None:
    assert faults_of(check(cascade("%c1", "south"))) == []
    assert_fault(
        cascade("%c0", "north"), "cascade", r"from core \(0, 0\) to core \(0, 1\); it runs to the neigh"
    )


def test_a_cascade_carries_whole_words() -> None:
    text = cascade("%c1", "south").replace("memref<64xbf16, 2>", "memref<8xbf16, 2>")
    faults = faults_of(check(text))
    assert {fault.kind for fault in faults} == {"cascade"}
    assert "16 bytes go over the cascade, which carries 64 at a time" in str(faults[0])


def test_many_streams_of_one_core_become_packets() -> None:
    far = dict.fromkeys("acd", "memref<4096xbf16>")
    reads = "".join(READ.replace("%a[%at]", f"%{name}[%c0]").replace("%b[", f"%{name}b[") for name in far)
    made = "".join(NEAR.replace("%b", f"%{name}b") for name in far)
    assert_warning(program(made + reads, args=far), "packets", "makes packets of all, which take turns")


def test_a_channel_of_many_members_needs_an_index() -> None:
    text = program(
        NEAR + "air.channel.put @c[%x] (%b[] [] []) : (memref<64xbf16, 2>)",
        launch="air.channel.get @c[] (%a[%c0] [%c64] [%c1]) : (memref<4096xbf16>)",
        module="air.channel @c [2]",
        tiles="%c2, %c1",
        args=FAR,
    )
    kinds = {fault.kind: str(fault) for fault in check(text).faults}
    assert "@c has 2 members, and the operation has no index" in kinds["channel-index"]


@pytest.mark.parametrize(("trips", "copies"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3)])
def test_an_odd_trip_has_a_copy_of_its_own(trips: int, copies: int) -> None:
    loop = f"scf.for %i = %c0 to %c{trips} step %c1 {{\n{READ.replace('%at', '%c0')}}}"
    assert used(check(program(NEAR + loop, args=FAR), stack_bytes=1), "L1 bytes") == 1 + copies * 128


@pytest.mark.parametrize(("omit", "copies"), [("", 2), ("L1", 1), ("L2", 2), ("all", 1)])
def test_double_buffers_are_left_out_by_memory(omit: str, copies: int) -> None:
    loop = f"scf.for %i = %c0 to %c4 step %c1 {{\n{READ.replace('%at', '%c0')}}}"
    report = check(program(NEAR + loop, args=FAR), stack_bytes=1, omit_ping_pong=omit)
    assert used(report, "L1 bytes") == 1 + copies * 128


def test_a_size_that_no_descriptor_holds() -> None:
    text = program(
        "%n = arith.constant 2000 : index\n%b = memref.alloc() : memref<4000xbf16, 2>\n"
        "%m = arith.constant 2 : index\n"
        "air.dma_memcpy_nd (%b[%c0, %c0] [%n, %c1] [%m, %c1], %a[%c0] [%n] [%c1]) "
        "{id = 1 : i32} : (memref<4000xbf16, 2>, memref<4096xbf16>)",
        args=FAR,
    )
    assert "a size of 2000 in a walk; no descriptor holds more than 1023" in str(check(text).faults)


def test_a_buffer_of_parts_is_made_small() -> None:
    gets = "".join(
        f"air.channel.get @c[] (%s[%c{at}] [%c8] [%c1]) : (memref<64xbf16, 1>)\n" for at in (0, 8, 16)
    )
    text = program(
        segment="%s = memref.alloc() : memref<64xbf16, 1>\n" + gets,
        launch="air.channel.put @c[] (%a[%c0] [%c8] [%c1]) : (memref<4096xbf16>)\n" * 3,
        module="air.channel @c []",
        args=FAR,
    )
    assert_warning(text, "shrunk", "at different offsets; aircc makes the buffer that small")


@pytest.mark.parametrize(("columns", "tiles"), [((0, 0, 0), 2), ((0, 1, 2), 3)])
def test_a_channel_names_the_column_of_its_shim_tile(columns: tuple[int, ...], tiles: int) -> None:
    text = program(
        segment="".join(
            f"%s{i} = memref.alloc() : memref<64xbf16, 1>\n"
            f"air.channel.get @c{i}[] (%s{i}[] [] []) : (memref<64xbf16, 1>)\n"
            for i in range(3)
        ),
        launch="".join(
            f"air.channel.put @c{i}[] (%a[%c0] [%c64] [%c1]) : (memref<4096xbf16>)\n" for i in range(3)
        ),
        module="".join(
            f"air.channel @c{i} [] {{air.shim_col = {column} : i32}}\n" for i, column in enumerate(columns)
        ),
        args=FAR,
    )
    assert used(check(text), "shim tiles") == tiles


IN = "air.dma_memcpy_nd (%l2[] [] [], %a[%c0] [%c64] [%c1]) : (memref<64xbf16, 1>, memref<4096xbf16>)"
OUT = "air.dma_memcpy_nd (%b[] [] [], %l2[] [] []) : (memref<64xbf16, 2>, memref<64xbf16, 1>)"


def through_l2(unroll: str = "") -> tuple[str, dict[int, int]]:
    """64 numbers that come into L2 and go from there to 4 cores, and the bytes that a run counts by line."""
    herd = f"{NEAR}{OUT}"
    segment = f"%l2 = memref.alloc() : memref<64xbf16, 1>\n{IN}\n"
    text = program(herd, segment=segment, tiles="%c4, %c1", args=FAR, unroll=unroll)
    captured = "args(%a=%a, %l2=%l2) : memref<4096xbf16>, memref<64xbf16, 1>"
    head, herd_line = text.rsplit("args(%a=%a) : memref<4096xbf16>", 1)
    text = head + captured + herd_line
    lines = [line.strip() for line in text.splitlines()]
    return text, {lines.index(IN) + 1: 128, lines.index(OUT) + 1: 4 * 128}


def test_a_broadcast_leaves_a_memtile_once() -> None:
    (tiles,) = memtiles(*through_l2()).values()
    assert tiles is not None
    assert [one for one in tiles if one.held] == [MemtileTraffic(128, 128, 128)]
    assert {one for one in tiles if not one.held} == {MemtileTraffic(0, 0, 0)}


def test_memtiles_of_an_unrolled_segment_are_not_known_singly() -> None:
    assert [*memtiles(*through_l2("unroll (%ux) in (%sux=%c2)")).values()] == [None]
