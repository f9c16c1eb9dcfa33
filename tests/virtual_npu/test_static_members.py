"""Static check: members of a bundle, whose ends one flow joins; names of types; branches, loops, packets."""

from __future__ import annotations

from functools import partial

import pytest

from aerie.device import CheckReport, check
from tests.virtual_npu.static_texts import program

NEAR = "%b = memref.alloc() : memref<64xi32, 2>\n"
FAR = {"a": "memref<64xi32>"}


def bundle(
    size: str,
    put: str,
    get: str,
    *,
    tiles: str = "%c2, %c2",
    over: str = "(%c2, %c2)",
    attributes: str = "",
    back: bool = False,
) -> CheckReport:
    """What L3 puts into members, and the cores of a herd get; `back` turns the direction round."""
    there, here = ("get", "put") if back else ("put", "get")
    host = f"air.channel.{there} @c[{put}] (%a[] [] []) : (memref<64xi32>)\n"
    if over:
        host = f"scf.parallel (%i, %j) = (%c0, %c0) to {over} step (%c1, %c1) {{\n{host}scf.reduce\n}}\n"
    core = f"air.channel.{here} @c[{get}] (%b[] [] []) : (memref<64xi32, 2>)\n"
    text = program(
        NEAR + core, launch=host, module=f"air.channel @c {size} {attributes}", tiles=tiles, args=FAR
    )
    return check(text)


def kinds(report: CheckReport) -> dict[str, str]:
    """The first message of each kind."""
    return {fault.kind: fault.message for fault in reversed(report.faults)}


JOINED = {
    "a member for each core": partial(bundle, "[2, 2]", "%i, %j", "%x, %y"),
    "turned on both sides": partial(bundle, "[2, 2]", "%j, %i", "%y, %x"),
    "the other way": partial(bundle, "[2, 2]", "%i, %j", "%x, %y", back=True),
    "one member": partial(bundle, "[]", "", "", tiles="%c1, %c1", over=""),
    "one member with indices": partial(bundle, "[1, 1]", "", "%x, %y", tiles="%c1, %c1", over=""),
    "a broadcast": partial(bundle, "[1, 1]", "", "%x, %y", over="", attributes="{broadcast_shape = [2, 2]}"),
    "a broadcast of rows": partial(
        bundle, "[1, 2]", "%i, %j", "%x, %y", over="(%c1, %c2)", attributes="{broadcast_shape = [2, 2]}"
    ),
    "the first members of many": partial(bundle, "[4, 2]", "%i, %j", "%x, %y"),
}


@pytest.mark.parametrize("name", JOINED)
def test_ends_that_meet(name: str) -> None:
    assert kinds(JOINED[name]()) == {}


APART = {
    "a put without a loop": (
        partial(bundle, "[2, 2]", "%c0, %c0", "%x, %y", over=""),
        "unpaired",
        "@c[0, 1], @c[1, 0], @c[1, 1] are got and never put, so a core or memtile waits for ever",
    ),
    "members that no core gets": (
        partial(bundle, "[4, 2]", "%i, %j", "%x, %y", over="(%c4, %c2)"),
        "unpaired",
        "@c[2, 0], @c[2, 1], @c[3, 0] and 1 more are put and never got, for which air-to-aie finds no tile",
    ),
    "constants that differ": (
        partial(bundle, "[2, 2]", "%c1, %c0", "%c0, %c1", tiles="%c1, %c1", over=""),
        "unpaired",
        "@c[1, 0] is put and never got",
    ),
    "swapped indices": (
        partial(bundle, "[4, 2]", "%i, %j", "%y, %x", over="(%c4, %c2)", tiles="%c2, %c2"),
        "unpaired",
        "@c[2, 0], @c[2, 1], @c[3, 0] and 1 more are put and never got",
    ),
    "a core beyond the bundle": (
        partial(bundle, "[2, 2]", "%i, %j", "%x, %y", tiles="%c4, %c2"),
        "bundle-index",
        "index 0 of @c is 2, and the channel has 2 members there: air-to-aie takes the transfer out",
    ),
    "four cores into one member": (
        partial(bundle, "[]", "", "", over="", back=True),
        "fan-in",
        "4 cores put into @c: a flow joins two tiles, so air-to-aie keeps one core and drops the others'",
    ),
    "four cores from one member": (
        partial(bundle, "[]", "", "", over=""),
        "fan-out",
        "4 cores get from @c: .* or give the channel a broadcast_shape",
    ),
    "a member that the host does not find": (
        partial(bundle, "[4, 2]", "%c3, %c1", "%c3, %c1", tiles="%c1, %c1", over=""),
        "bundle-index",
        "@c[3, 1] is number 7, and 1 of the channel's 8 members are used: the host's side looks for it by ",
    ),
}


@pytest.mark.parametrize("name", APART)
def test_ends_that_do_not_meet(name: str) -> None:
    make, kind, message = APART[name]
    found = kinds(make())[kind]
    first, *rest = message.split(".*")
    assert found.startswith(first)
    assert all(part in found for part in rest)


@pytest.mark.parametrize("old", ["dma_stream", "dma_packet", "cascade"])
def test_old_names_of_channel_types(old: str) -> None:
    text = 'air.channel @c [] {channel_type = "%s"}'
    message = f'@c is of channel_type "{old}", which mlir-air refuses since May 2026; write "npu_{old}"'
    assert kinds(check(text % old)) == {"channel-type": message}
    assert kinds(check(text % f"npu_{old}")) == {}


def test_a_generic_channel_may_leave_out_its_size() -> None:
    short, plain = '"air.channel"() <{sym_name = "c"}> : () -> ()', "air.channel @c []"
    text = program(
        NEAR + "air.channel.get @c[] (%b[] [] []) : (memref<64xi32, 2>)",
        launch="air.channel.put @c[] (%a[] [] []) : (memref<64xi32>)\n",
        module=plain,
        args=FAR,
    )
    assert check(text.replace(plain, short)).table() == check(text).table()


# ---- branches and loops around DMAs of L3 ----

READ = (
    "air.dma_memcpy_nd (%b[%c0] [%c64] [%c1], %a[%c0] [%c64] [%c1]) {id = 1 : i32} : "
    "(memref<64xi32, 2>, memref<64xi32>)\n"
)
IS_FIRST = "%is = arith.cmpi eq, %x, %c0 : index\n"


def herd(body: str) -> dict[str, tuple[bool, str]]:
    report = check(program(NEAR + body, tiles="%c2, %c1", args=FAR))
    return {
        fault.kind: (fault.certain, fault.message)
        for fault in (*report.faults, *report.warnings)
        if fault.kind in ("branch", "traffic")
    }


def test_a_dma_of_l3_in_a_branch() -> None:
    found = herd(IS_FIRST + f"scf.if %is {{\n{READ}}}")["branch"]
    assert found[0]
    assert found[1].startswith(
        "a DMA of L3 in an scf.if on a tile id: air-dma-to-channel takes its L3 side to"
    )
    assert herd(f"affine.if affine_set<(d0) : (d0 == 0)>(%x) {{\n{READ}}}") == {}
    assert herd(f"%is = arith.constant true\nscf.if %is {{\n{READ}}}") == {}


def test_a_dma_of_l3_that_data_decide() -> None:
    body = "%v = memref.load %b[%c0] : memref<64xi32, 2>\n%is = arith.cmpi eq, %v, %v : i32\n"
    certain, message = herd(body + f"scf.if %is {{\n{READ}}}")["branch"]
    assert not certain
    assert message.startswith("a DMA of L3 in an scf.if on a value of the core")


@pytest.mark.parametrize(
    ("trips", "moves"), [("%c0 to %c0", False), ("%c4 to %c2", False), ("%c0 to %c1", True)]
)
def test_loops_of_no_trips_move_nothing(trips: str, moves: bool) -> None:
    found = herd(f"scf.for %i = {trips} step %c1 {{\n{READ}}}")
    message = "nothing moves between L3 and the array but in loops of no trips, so aircc makes no sequence"
    assert ("traffic" not in found) if moves else found["traffic"][1].startswith(message)


# ---- streams that become packets ----


def streams(count: int) -> CheckReport:
    """One core that gets so many channels from L3."""
    names = [f"c{i}" for i in range(count)]
    return check(
        program(
            NEAR
            + "".join(f"air.channel.get @{name}[] (%b[] [] []) : (memref<64xi32, 2>)\n" for name in names),
            launch="".join(f"air.channel.put @{name}[] (%a[] [] []) : (memref<64xi32>)\n" for name in names),
            module="\n".join(f"air.channel @{name} []" for name in names),
            args=FAR,
        )
    )


@pytest.mark.parametrize(("count", "taken"), [(2, 2), (3, 1), (7, 1)])
def test_declared_channels_become_packets_too(count: int, taken: int) -> None:
    report = streams(count)
    used = {usage.resource: usage.used for usage in report.usages}
    assert (used["input channels"], used["shim channels from L3"]) == (taken, taken)
    assert kinds(report) == {}
    assert [warning.kind for warning in report.warnings] == ["packets"] * (count > 2)


CUT = {
    "more rows than columns": ("[2, 1]", "[2, 4]", "%c2, %c4", "(%c2, %c1)", True),
    "as many": ("[2, 1]", "[2, 2]", "%c2, %c2", "(%c2, %c1)", False),
    "one column": ("[1, 4]", "[1, 4]", "%c1, %c4", "(%c1, %c4)", False),
    "a part for each row": ("[1, 4]", "[2, 4]", "%c2, %c4", "(%c1, %c4)", False),
    "no broadcast": ("[2, 4]", "", "%c2, %c4", "(%c2, %c4)", False),
}
"""Members, receivers, cores of the herd, what L3 puts, and whether cores get the data of others."""


@pytest.mark.parametrize("name", CUT)
def test_a_broadcast_bundle_in_a_herd_of_more_rows_than_columns(name: str) -> None:
    """mlir-air e972f294 gives rows 2 and 3 of column 0 the data of column 1, and no stage says so."""
    size, receivers, tiles, over, is_refused = CUT[name]
    attributes = f"{{broadcast_shape = {receivers}}}" if receivers else ""
    report = bundle(size, "%i, %j", "%x, %y", tiles=tiles, over=over, attributes=attributes)
    message = (
        "core (0, 2) gets part 1 of @c in place of part 0, without a word: a pass bounds the rows of the "
        "herd by its columns, 2 of them, so this holds from row 2 on; give the herd as many columns as rows, "
        "or one column"
    )
    assert kinds(report) == ({"cut-broadcast": message} if is_refused else {})
