"""Static check: sizes and places of herds, unrolled segments, trips of launches, arguments of the host."""

from __future__ import annotations

import pytest

from aerie.device import NPU1, NPU2, check
from tests.virtual_npu.static_texts import (
    CONSTANTS,
    assert_clean,
    assert_fault,
    assert_warning,
    program,
    used,
)


def second(x: str, y: str, attributes: str = "id = 1 : i32") -> str:
    """Another herd in the same segment."""
    return f"air.herd @other tile (%x, %y) in (%sx={x}, %sy={y}) attributes {{{attributes}}} {{ }}"


def place(x: int, y: int) -> str:
    return f"x_loc = {x} : i64, y_loc = {y} : i64"


CLEAN = {
    "a whole array": program(tiles="%c8, %c4"),
    "two herds side by side": program(tiles="%c4, %c4", segment=second("%c4", "%c4")),
    "phases of one herd": program(
        tiles="%c8, %c4", segment="air.herd @h tile (%x, %y) in (%sx=%c8, %sy=%c4) { }"
    ),
    "pinned": program(
        tiles="%c4, %c4", herd_attributes=place(4, 2), segment=second("%c4", "%c4", place(0, 2))
    ),
    "a part of the array": program(
        tiles="%c2, %c2", segment_attributes=f"{place(4, 3)}, x_size = 4 : i64, y_size = 2 : i64"
    ),
    "as aircc places it": program(
        tiles="%c8, %c4",
        herd_attributes=place(0, 2),
        segment_attributes=f"{place(0, 2)}, x_size = 8 : i64, y_size = 6 : i64",
    ),
    "two copies": program(tiles="%c4, %c4", unroll="unroll(%u) in (%su=%c2)"),
    "trips": program(trips="(%i, %j) in (%si=%c64, %sj=%c64)"),
}


@pytest.mark.parametrize("name", CLEAN)
def test_what_can_be_placed(name: str) -> None:
    assert_clean(CLEAN[name])


FAULTS = {
    "columns": (program(tiles="%c9, %c1"), "limit", r"columns \(x\) takes 9, npu2 has 8; x counts columns"),
    "rows": (program(tiles="%c1, %c5"), "limit", r"rows \(y\) takes 5, npu2 has 4; x counts columns and y"),
    "unrolled columns": (
        program(tiles="%c5, %c1", unroll="unroll(%u) in (%su=%c2)"),
        "limit",
        r"columns \(x\) takes 5, npu2 has 4",
    ),
    "columns of the segment": (
        program(tiles="%c3, %c1", segment_attributes="x_size = 2 : i64"),
        "limit",
        r"columns \(x\) takes 3, npu2 has 2",
    ),
    "rows of the segment": (
        program(tiles="%c1, %c3", segment_attributes="y_loc = 4 : i64"),
        "limit",
        r"rows \(y\) takes 3, npu2 has 2",
    ),
    "columns reached": (
        program(segment_attributes="x_loc = 5 : i64, x_size = 4 : i64"),
        "limit",
        "columns reached takes 9, npu2 has 8; make x_loc . x_size smaller",
    ),
    "row of the shim": (
        program(segment_attributes="y_loc = 0 : i64"),
        "placement",
        "line 28: air.segment: f/0/s: y_loc 0 is no row of cores; they are in rows 2 to 5",
    ),
    "pinned above": (
        program(tiles="%c2, %c1", herd_attributes=place(7, 6)),
        "placement",
        "x_loc 7, y_loc 6 puts 2 x 1 cores outside of the npu2.s columns and rows; move it, or let it be",
    ),
    "overlap": (
        program(tiles="%c2, %c2", herd_attributes=place(1, 3), segment=second("%c2", "%c2", place(0, 2))),
        "placement",
        "x_loc 1, y_loc 3 overlaps herd other; move one, or let it be placed",
    ),
    "phases that differ": (
        program(
            herd_attributes=place(1, 3),
            segment="air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c1) { }",
        ),
        "placement",
        "herds of one name are one herd, but their x_loc and y_loc differ",
    ),
    "no room": (
        program(tiles="%c5, %c3", segment=second("%c5", "%c2")),
        "placement",
        "f/0/s/other: no room for 5 x 2 cores next to the other herds on 8 x 4",
    ),
    "unrolled rows": (
        program(unroll="unroll(%u, %v) in (%su=%c1, %sv=%c2)"),
        "unroll",
        "unrolled 2 times along y; the array is divided by columns only, so unroll along x",
    ),
    "no trips": (
        program(trips="(%i) in (%si=%c0)"),
        "extent",
        "air.launch: f/0: an extent of 0, so nothing would run; make it at least 1",
    ),
    "a buffer of 4 GiB": (
        program(args={"a": "memref<65536x32768xbf16>"}),
        "host-buffer",
        "argument 0 has 4294967296 bytes; offsets of 4294967296 and more are cut to 32 bits, so split it",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_placed(name: str) -> None:
    assert_fault(*FAULTS[name])


def test_too_many_copies() -> None:
    text = program(unroll="unroll(%u) in (%su=%c9)")
    assert_fault(text, "limit", "unrolled copies takes 9, npu2 has 8; each copy needs a column; unroll less")


def test_an_unroll_factor_that_is_not_constant() -> None:
    text = program(args={"a": "memref<8xi32>", "n": "index"}, unroll="unroll(%u) in (%su=%n)")
    assert_fault(text, "unroll", "an unroll factor that is no constant; each copy is compiled for itself")


def test_a_herd_of_one_dimension() -> None:
    text = f"func.func @f() {{\n{CONSTANTS}air.herd @h tile (%x) in (%sx=%c1) {{ }}\nreturn\n}}"
    assert_fault(text, "herd-rank", r"1 dimension; mlir-air reads two, so write \(%x, %y\)")


def test_herds_side_by_side_share_the_array() -> None:
    found = check(program(tiles="%c8, %c3", segment=second("%c8", "%c3"))).faults
    assert any("cores takes 48, npu2 has 32; herds of different names" in str(fault) for fault in found)


def test_copies_count_together() -> None:
    report = check(program(tiles="%c4, %c4", unroll="unroll(%u) in (%su=%c2)"))
    assert used(report, "cores") == 32
    assert used(report, "unrolled copies") == 2


def test_a_bare_herd_has_the_whole_array() -> None:
    text = f"func.func @f() {{\n{CONSTANTS}air.herd tile (%x, %y) in (%sx=%c8, %sy=%c4) {{ }}\nreturn\n}}"
    report = check(text)
    assert report.ok
    assert {usage.place for usage in report.usages} == {"f", "f/herd_0"}
    nameless = check(program().replace("@s", ""))
    assert "f/0/segment_0/h" in {usage.place for usage in nameless.usages}


def test_every_segment_has_the_array_for_itself() -> None:
    other = f"air.segment @t {{\n{CONSTANTS}{second('%c8', '%c4')}\n}}"
    assert_clean(program(tiles="%c8, %c4", launch=other))


def test_several_functions_have_separate_reports() -> None:
    report = check(program() + program(tiles="%c9, %c1").replace("@f(", "@g("))
    assert [(fault.place, fault.kind) for fault in report.faults] == [("g/0/s/h", "limit")]
    assert {usage.place.split("/")[0] for usage in report.usages} == {"f", "g"}


def test_host_arguments_of_an_xclbin() -> None:
    six = {f"a{i}": "memref<8xi32>" for i in range(6)}
    assert_clean(program(args=six))
    assert_fault(
        program(args=six),
        "limit",
        r"func.func: f: host arguments takes 6, npu1 has 5; put several into one.*xrt.py: xclbin takes 5",
        device=NPU1,
    )


def test_npu1_has_four_columns() -> None:
    assert_clean(program(tiles="%c4, %c4"), device=NPU1)
    assert_fault(program(tiles="%c5, %c1"), "limit", r"columns \(x\) takes 5, npu1 has 4", device=NPU1)


def test_the_devices_are_described_in_full() -> None:
    assert NPU2.l1_budget == 63488
    assert (NPU2.l2_total_bytes, NPU1.l2_total_bytes) == (4 << 20, 2 << 20)
    assert (NPU2.launch_mm2s, NPU2.launch_s2mm) == (16, 16)
    assert (NPU1.launch_mm2s, NPU1.launch_s2mm) == (8, 8)
    assert (NPU2.shim.max_wrap, NPU2.core.max_wrap) == (1023, 255)
    assert (NPU2.architecture, NPU1.architecture) == ("aie2p", "aie2")
    assert (NPU2.elf, NPU1.elf) == (True, False)


def test_a_bare_herd_beside_launches() -> None:
    text = program(function="air.herd @bare tile (%x, %y) in (%sx=%c1, %sy=%c1) { }")
    assert_fault(
        text, "bare-herd", "air.herd: f/bare: a herd without a launch in a function that has launches"
    )


def test_a_pin_outside_of_its_segment() -> None:
    text = program(herd_attributes=place(5, 2), segment_attributes="x_size = 4 : i64")
    assert_warning(text, "placement", "x_loc 5, y_loc 2 puts 1 x 1 cores outside of the segment's columns")


@pytest.mark.parametrize("at", [(7, 2), (0, 1)])
def test_a_pin_beside_the_cores_is_passed_over(at: tuple[int, int]) -> None:
    text = program(tiles="%c2, %c1", herd_attributes=place(*at))
    assert_warning(text, "placement", f"x_loc {at[0]}, y_loc {at[1]} puts 2 x 1 cores outside")


MANY = program(trips="(%i) in (%si=%n)", function="%n = arith.constant 256 : index")


def test_many_points_of_a_launch_are_warned_of() -> None:
    """Upstream runs launches of more; where they become one task's repeats, a board is known to fail."""
    message = (
        "256 points of the launch in one dimension: where aircc makes one task of them, its repeat count"
    )
    assert_warning(MANY, "trips", message)
    assert_clean(MANY, loop_tiling=(128,))
    assert_clean(MANY.replace("constant 256", "constant 255"))
