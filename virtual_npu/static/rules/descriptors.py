"""Buffer descriptors (BDs): one for each transfer written, twice where its buffer is double-buffered."""

from __future__ import annotations

from collections.abc import Iterator

from virtual_npu.static.patterns import Side
from virtual_npu.static.report import Finding, Usage
from virtual_npu.static.rules.channels import Stream, cores, side_by_side_count, sides_at, stream_positions
from virtual_npu.static.scopes import Scope
from virtual_npu.static.sources import TARGET_MODEL


def core_descriptors(scope: Scope) -> Iterator[Finding]:
    """Descriptors of the core of each herd that has most transfers."""
    for name, herds in scope.herds.items():
        used = max(
            sum(scope.buffers_of(side.memref) for side, _ in sides_at(scope, herds, core))
            for core in cores(herds[0])
        )
        limit, advice = scope.device.core.descriptors, "make fewer transfers"
        yield Usage(scope.place_of(name), "descriptors", used, limit, TARGET_MODEL, advice, herds[0])


def memtile_descriptors(scope: Scope) -> Iterator[Finding]:
    """Descriptors of all memtiles, and of the memtile channel that has most.

    Half of a memtile's descriptors belong to its even channels and half to its odd ones
    (`isBdChannelAccessible`), so one channel walks at most half of them.
    """
    limit = scope.device.memtile.descriptors
    chains: dict[Stream, int] = {}
    used = 0
    for side in scope.sides:
        if side.space == 1:
            copies = scope.buffers_of(side.memref)
            used += copies * _count(scope, side)
            for stream in stream_positions(scope.program, side) or ():
                key = (side.reads, *stream)
                chains[key] = chains.get(key, 0) + copies
    advice = "make fewer transfers, or move more in each"
    yield Usage(
        scope.place,
        "memtile descriptors",
        used,
        limit * scope.memtiles,
        TARGET_MODEL,
        advice,
        scope.root,
    )
    longest, half = max(chains.values(), default=0), limit // 2
    if longest > half:
        yield Usage(
            scope.place, "descriptors of one memtile channel", longest, half, TARGET_MODEL, advice, scope.root
        )


def shim_descriptors(scope: Scope) -> Iterator[Finding]:
    """Descriptors of all shim tiles that one launch iteration needs, spread evenly."""
    used = sum(_count(scope, side) for side in scope.sides if side.space == 0)
    limit = scope.device.shim.descriptors * scope.device.columns
    advice = "make fewer transfers, or move more in each"
    yield Usage(scope.place, "shim descriptors", used, limit, TARGET_MODEL, advice, scope.root)


def _count(scope: Scope, side: Side) -> int:
    """How many times a transfer stands in the array, side by side."""
    found = stream_positions(scope.program, side)
    return side_by_side_count(side) if found is None else len(found)
