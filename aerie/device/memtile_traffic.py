"""Bytes that transfers moved into and out of each memtile in a run.

A run counts bytes where the program writes a transfer, which names L2 buffers and no memtile. Which memtile
holds which part of a buffer comes from the static check (memtile_allocation.py). The streams of one transfer
are equal, so each has an equal share of its bytes; a broadcast leaves a memtile once, whatever the number of
its receivers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from xdsl.ir import Operation

from aerie.air_dialect import parse
from aerie.device.memtile_allocation import ArrayAllocation, allocate_array
from aerie.device.npu2 import NPU2, DeviceModel
from aerie.device.report import line_of
from aerie.device.scopes import ArrayConfiguration, CheckedProgram, CheckOptions
from aerie.device.streams import StreamEnd


class MemtileTraffic(NamedTuple):
    """The traffic of one memtile in a run. held: bytes of the L2 buffers that it holds."""

    held: int
    bytes_in: int
    bytes_out: int


def memtiles(
    text: str, seen: Mapping[int, int], device: DeviceModel = NPU2
) -> dict[str, list[MemtileTraffic] | None]:
    """The memtiles of each launch of a program, by its name, from its first column on; None where it has
    several segments, or one that is unrolled: of these the check counts memtiles in sum only.

    seen: bytes that the transfers on each line of the text moved.
    """
    by_launch: dict[str, list[MemtileTraffic] | None] = {}
    for scope in CheckedProgram(parse(text, check_loops=True), device, CheckOptions()).scopes:
        _, launch, *_ = (*scope.place.split("/"), "")
        is_known = launch not in by_launch and scope.copies == 1
        by_launch[launch] = _memtiles(scope, seen) if is_known else None
    return by_launch


def _memtiles(scope: ArrayConfiguration, seen: Mapping[int, int]) -> list[MemtileTraffic]:
    array = allocate_array(scope)
    uses, cores = _uses(array), _cores(array)
    moved_bytes = [Counter[bool]() for _ in array.memtiles]
    for op, ends in uses.items():
        moved = seen.get(line_of(op) or 0, 0)
        for tile, end in ends:
            moved_bytes[tile][end.side.reads] += moved // (
                cores[op] if end.herd else _same_side_count(ends, end)
            )
    held = map(array.bytes_of, array.memtiles)
    return [MemtileTraffic(size, one[False], one[True]) for size, one in zip(held, moved_bytes, strict=True)]


def _uses(array: ArrayAllocation) -> Mapping[Operation, list[tuple[int, StreamEnd]]]:
    """The L2 ends of each transfer, once per stream, each with the number of its memtile."""
    uses: dict[Operation, list[tuple[int, StreamEnd]]] = {}
    for number, end in _l2_ends(array):
        uses.setdefault(end.side.op, []).append((number, end))
    return uses


def _l2_ends(array: ArrayAllocation) -> Iterator[tuple[int, StreamEnd]]:
    for number, tile in enumerate(array.memtiles):
        for part in tile.parts:
            for _, ends in (*part.puts, *part.gets):
                yield from ((number, end) for end in ends)


def _cores(array: ArrayAllocation) -> Counter[Operation]:
    """How many cores do each transfer of a herd."""
    ends = (end for stream in array.streams.values() for end in stream.ends)
    return Counter(end.side.op for end in ends if end.core is not None)


def _same_side_count(ends: list[tuple[int, StreamEnd]], end: StreamEnd) -> int:
    """The number of ends of a transfer that read (or write) as this end does."""
    return sum(other.side.reads == end.side.reads for _, other in ends)
