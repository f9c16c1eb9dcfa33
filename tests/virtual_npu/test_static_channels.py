"""Static check: DMA channels and buffer descriptors of cores, memtiles and shim, and types of channels."""

from __future__ import annotations

from typing import Any

import pytest

from aerie.device import CheckReport, check
from tests.virtual_npu.static_texts import (
    assert_clean,
    assert_fault,
    assert_warning,
    faults_of,
    program,
    used,
)

NEAR = "%b = memref.alloc() : memref<64xi32, 2>\n"
MIDDLE = "%m = memref.alloc() : memref<64xi32, 1>\n"


def get(channel: str, buffer: str = "%b", type_: str = "memref<64xi32, 2>") -> str:
    return f"air.channel.get @{channel} ({buffer}[] [] []) : ({type_})\n"


def put(channel: str, buffer: str = "%b", type_: str = "memref<64xi32, 2>") -> str:
    return f"air.channel.put @{channel} ({buffer}[] [] []) : ({type_})\n"


def channels(*names: str, type_: str = "npu_dma_stream") -> str:
    return "\n".join(f'air.channel @{name} {{channel_type = "{type_}"}}' for name in names)


def gets(count: int, **options: str) -> str:
    """A herd that gets from so many channels, one of each."""
    names = [f"c{i}" for i in range(count)]
    return program(
        NEAR + "".join(map(get, [f"{name}[]" for name in names])),
        module=channels(*(f"{name} []" for name in names), **options),
    )


def report(herd: str = "", **options: Any) -> CheckReport:
    return check(program(herd, **options))


def test_each_channel_of_a_core_counts_once() -> None:
    twice = NEAR + 2 * get("c[]") + put("d[]")
    found = report(twice, module=channels("c []", "d []"))
    assert (used(found, "input channels"), used(found, "output channels")) == (1, 1)
    assert used(found, "descriptors") == 3


@pytest.mark.parametrize("type_", ["npu_cascade", "npu_dma_packet"])
def test_channels_that_share_or_need_no_dma(type_: str) -> None:
    found = check(gets(3, type_=type_))
    assert used(found, "input channels") == (1 if type_ == "npu_dma_packet" else 0)
    assert faults_of(found) == []


def test_old_spellings_of_channel_types() -> None:
    assert used(check(gets(3, type_="cascade")), "input channels") == 0


def test_conditions_on_tile_ids_are_counted_per_core() -> None:
    herd = NEAR + "".join(
        f"%is{i} = arith.cmpi eq, %x, %c{i} : index\nscf.if %is{i} {{\n{get(f'c{i}[]')}\n}}\n"
        for i in range(4)
    )
    found = report(herd, tiles="%c4, %c1", module=channels(*(f"c{i} []" for i in range(4))))
    assert used(found, "input channels") == 1
    assert used(found, "descriptors") == 1


def test_an_affine_condition() -> None:
    herd = NEAR + (
        "affine.if affine_set<(d0) : (d0 - 1 >= 0)>(%x) {\n"
        + get("c0[]")
        + "} else {\n"
        + get("c1[]")
        + "}\n"
    )
    found = report(herd, tiles="%c4, %c1", module=channels("c0 []", "c1 []"))
    assert used(found, "input channels") == 1


def test_a_condition_of_the_run_counts_both_ways() -> None:
    herd = NEAR + (
        "%v = memref.load %b[%c0] : memref<64xi32, 2>\n%i = arith.index_cast %v : i32 to index\n"
        "%is = arith.cmpi eq, %i, %c0 : index\n"
        f"scf.if %is {{\n{get('c0[]')}}} else {{\n{get('c1[]')}}}\n"
    )
    found = report(herd, module=channels("c0 []", "c1 []"))
    assert used(found, "input channels") == 2


def test_a_bundle_counts_its_channels() -> None:
    found = report(
        NEAR + get("c[%x, %y]"),
        tiles="%c4, %c2",
        module=channels("c [4, 2]", "d [4, 2]"),
        launch=(
            "scf.parallel (%i, %j) = (%c0, %c0) to (%c4, %c2) step (%c1, %c1) {\n"
            + put("c[%i, %j]", "%a", "memref<64xi32>")
            + "scf.reduce\n}\n"
            + put("d[%c0, %c1]", "%a", "memref<64xi32>")
            + put("c[%c0, %c1]", "%a", "memref<64xi32>")
        ),
        args={"a": "memref<64xi32>"},
    )
    assert used(found, "shim channels from L3") == 8  # @d feeds nothing here, and @c[0, 1] is one of the 8
    assert used(found, "shim descriptors") == 9
    assert used(found, "input channels") == 1


PARALLEL = {
    "scf.parallel": "scf.parallel (%i) = (%c0) to (%c4) step (%c1) {{\n{0}scf.reduce\n}}\n",
    "scf.forall": "scf.forall (%i) in (4) {{\n{0}}}\n",
    "scf.forall with steps": "scf.forall (%i) = (0) to (%c4) step (1) {{\n{0}}}\n",
    "affine.parallel": "affine.parallel (%i) = (0) to (4) {{\n{0}}}\n",
}


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_loops_use_channels_side_by_side(name: str) -> None:
    found = report(
        NEAR + get("c[%x]"),
        tiles="%c4, %c1",
        module=channels("c [8]"),
        launch=PARALLEL[name].format(put("c[%i]", "%a", "memref<64xi32>")),
        args={"a": "memref<64xi32>"},
    )
    assert used(found, "shim channels from L3") == 4


def test_transfers_of_the_function_feed_a_bare_herd() -> None:
    text = f"""air.channel @c [4]
    air.channel @d [9]
    func.func @f(%a: memref<64xi32>) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      scf.parallel (%i) = (%c0) to (%c4) step (%c1) {{
        {put("c[%i]", "%a", "memref<64xi32>")}
        scf.reduce
      }}
      air.herd @h tile (%x, %y) in (%sx=%c4, %sy=%c1) {{
        {NEAR}
        {get("c[%x]")}
      }}
      return
    }}"""
    assert used(check(text), "shim channels from L3") == 4


def test_async_forms_count_like_the_others() -> None:
    herd = (
        "%t, %b = air.execute -> (memref<64xi32, 2>) {\n%n = memref.alloc() : memref<64xi32, 2>\n"
        "air.execute_terminator %n : memref<64xi32, 2>\n}\n"
        "%u = air.channel.get async [%t] @c[] (%b[] [] []) : (memref<64xi32, 2>)\n"
        "%v = air.channel.put async [%u] @d[] (%b[] [] []) : (memref<64xi32, 2>)\n"
    )
    found = report(herd, module=channels("c []", "d []"))
    assert (used(found, "input channels"), used(found, "output channels")) == (1, 1)
    assert used(found, "L1 bytes") == 1024 + 256


def many(count: int, level: str, way: str) -> str:
    """A program with so many transfers of the memtile, over channels of their own."""
    names = [f"c{i}" for i in range(count)]
    transfer = put if way == "from" else get
    body = MIDDLE + "".join(transfer(f"{name}[]", "%m", "memref<64xi32, 1>") for name in names)
    return program(segment=body, module=channels(*(f"{name} []" for name in names)), segment_attributes=level)


def chain(count: int) -> str:
    """So many transfers over one channel of one memtile."""
    body = MIDDLE + count * put("c[]", "%m", "memref<64xi32, 1>")
    return program(segment=body, module=channels("c []"))


FAULTS = {
    "inputs of a core": (
        gets(3),
        "limit",
        "air.herd: f/0/s/h: input channels takes 3, npu2 has 2; send several over one channel, or compile wi",
    ),
    "outputs of a core": (
        program(NEAR + "".join(put(f"c{i}[]") for i in range(3)), module=channels("c0 []", "c1 []", "c2 []")),
        "limit",
        "output channels takes 3, npu2 has 2",
    ),
    "descriptors of a core": (
        program(NEAR + 17 * get("c[]"), module=channels("c []")),
        "limit",
        "descriptors takes 17, npu2 has 16; make fewer transfers",
    ),
    "channels into a memtile": (
        many(7, "x_size = 1 : i64", "to"),
        "limit",
        "air.segment: f/0/s: memtile channels to L2 takes 7, npu2 has 6; stage through L2, broadcast, or use",
    ),
    "descriptors of a memtile channel": (
        chain(25),
        "limit",
        "descriptors of one memtile.s even channels takes 25, npu2 has 24; make fewer transfers",
    ),
    "descriptors of a memtile": (
        program(
            segment=MIDDLE + "".join(17 * put(f"c{i}[]", "%m", "memref<64xi32, 1>") for i in range(3)),
            module=channels("c0 []", "c1 []", "c2 []"),
            segment_attributes="x_size = 1 : i64",
        ),
        "limit",
        "memtile descriptors takes 51, npu2 has 48",
    ),
    "shim channels": (
        program(
            NEAR + get("c[%x, %y]"),
            tiles="%c8, %c4",
            module=channels("c [8, 4]"),
            launch=(
                "scf.parallel (%i, %j) = (%c0, %c0) to (%c8, %c4) step (%c1, %c1) {\n"
                + put("c[%i, %j]", "%a", "memref<64xi32>")
                + "scf.reduce\n}\n"
            ),
            args={"a": "memref<64xi32>"},
        ),
        "limit",
        "shim channels from L3 takes 32, npu2 has 16; stage through L2, broadcast, or use fewer cores",
    ),
    "shim descriptors": (
        program(
            NEAR + get("c[]"),
            module=channels("c []"),
            launch=129 * put("c[]", "%a", "memref<64xi32>"),
            args={"a": "memref<64xi32>"},
        ),
        "limit",
        "shim descriptors takes 129, npu2 has 128; make fewer transfers",
    ),
    "packet ids": (
        program(NEAR + get("c[%x, %y]"), module=channels("c [3, 11]", type_="npu_dma_packet")),
        "limit",
        "packet ids takes 33, npu2 has 32; let flows share a channel, or make some of them npu_dma_stream",
    ),
    "a cascade from L2": (
        program(
            NEAR + get("c[]"),
            segment=MIDDLE + put("c[]", "%m", "memref<64xi32, 1>"),
            module=channels("c []", type_="npu_cascade"),
        ),
        "cascade",
        "air.channel.put: f/0/s: a cascade carries only what is in L1, not memref<64xi32, 1",
    ),
    "a cascade of index": (
        program(
            "%b = memref.alloc() : memref<8xindex, 2>\n" + get("c[]", type_="memref<8xindex, 2>"),
            module=channels("c []", type_="npu_cascade"),
        ),
        "cascade",
        "a cascade carries integers or floats, not index",
    ),
    "a cascade with a layout": (
        program(
            "%w = memref.alloc() : memref<8x64xi32, 2>\n"
            "%b = memref.subview %w[0, 0] [8, 8] [1, 1] : memref<8x64xi32, 2> to "
            "memref<8x8xi32, strided<[64, 1]>, 2>\n"
            + get("c[]", type_="memref<8x8xi32, strided<[64, 1]>, 2>"),
            module=channels("c []", type_="npu_cascade"),
        ),
        "cascade",
        "256 bytes go over the cascade 64 at a time, in the order of memory, but memref<8x8xi32, strided",
    ),
    "a memory-mapped write": (
        program(
            NEAR + get("c[]"),
            launch=put("c[]", "%a", "memref<64xi32>"),
            module=channels("c []", type_="npu_mmio"),
            args={"a": "memref<64xi32>"},
        ),
        "mmio",
        "its source is a constant; read it with memref.get_global, or use npu_dma_stream",
    ),
    "a channel of GPUs": (
        program(module=channels("c []", type_="gpu_symmetric_heap")),
        "channel-type",
        "air.channel: module: @c is a channel of GPUs; an NPU has npu_dma_stream",
    ),
    "a channel by number": (
        program(module="air.channel @c [] {air.tile_dma_channel = 2 : i32}"),
        "pinned-channel",
        "air.tile_dma_channel = 2 is not from 0 to 1, which is what npu2 has",
    ),
    "a column by number": (
        program(module="air.channel @c [] {air.shim_col = 8 : i32}"),
        "pinned-channel",
        "air.shim_col = 8 is not from 0 to 7",
    ),
    "a memtile channel by number": (
        program(
            segment=MIDDLE + "air.channel.put @c[] (%m[] [] []) {air.memtile_dma_channel_min = 6 : i32} : "
            "(memref<64xi32, 1>)",
            module=channels("c []"),
        ),
        "pinned-channel",
        "air.memtile_dma_channel_min = 6 is not from 0 to 5, the channels of a memtile",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_channel_faults_are_reported(name: str) -> None:
    assert_fault(*FAULTS[name])


def test_channels_that_fit_have_no_fault() -> None:
    assert_clean(gets(2))
    assert_clean(many(6, "x_size = 1 : i64", "to"))
    assert_clean(chain(24))
    constant = 'memref.global "private" constant @g : memref<64xi32> = dense<1>\n'
    assert_clean(
        program(
            NEAR + get("c[]"),
            launch="%g = memref.get_global @g : memref<64xi32>\n" + put("c[]", "%g", "memref<64xi32>"),
            module=constant + channels("c []", type_="npu_mmio"),
        )
    )


MAPPED = {
    "no values": (
        "",
        "memref<64xi32>",
        "[]",
        "[]",
        "@g has no values to write into the program's image; give it",
    ),
    "a member in time": (
        " = dense<1>",
        "memref<64xi32>",
        "[%k]",
        "[%c0]",
        "the member of @c that is written is no",
    ),
    "no get": (
        " = dense<1>",
        "memref<64xi32>",
        "[%c1]",
        "[%c0]",
        r"no core gets member \[1\] of @c, so there is",
    ),
    "other words": (
        " = dense<1>",
        "memref<32xi32>",
        "[]",
        "[]",
        "memref<32xi32> is written into memref<64xi32, 2>",
    ),
}


@pytest.mark.parametrize("name", MAPPED)
def test_what_is_no_memory_mapped_write(name: str) -> None:
    values, type_, sent, taken, message = MAPPED[name]
    size = "[]" if sent == "[]" else "[2]"
    text = program(
        NEAR + get(f"c{taken}"),
        launch=f"%g = memref.get_global @g : {type_}\n"
        + ("%k = arith.remui %tx, %c2 : index\n" if "k" in sent else "")
        + put(f"c{sent}", "%g", type_),
        trips="(%tx, %ty) in (%tsx=%c1, %tsy=%c1)",
        module=f'memref.global "private" @g : {type_}{values}\n' + channels(f"c {size}", type_="npu_mmio"),
    )
    assert_fault(text, "mmio", message)


def test_a_transfer_outside_of_the_launch() -> None:
    text = program(
        NEAR + get("c[]"),
        function=put("c[]", "%a", "memref<64xi32>"),
        module=channels("c []"),
        args={"a": "memref<64xi32>"},
    )
    message = "air.channel.put: f: a transfer of L3 outside of any launch; air-to-aie finds no shim DMA"
    assert_warning(text, "host-transfer", message)


def test_more_channels_than_the_memtiles_send_on() -> None:
    text = "".join(map(str, check(many(49, "id = 1 : i32", "from")).faults))
    assert "memtile channels from L2 takes 49, npu2 has 48" in text
