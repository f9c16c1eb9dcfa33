"""The rules: each a function that gives what it finds, grouped by what they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aerie.virtual_npu.static.report import Finding
from aerie.virtual_npu.static.rules import (
    alignment,
    channels,
    externals,
    locks,
    lowering,
    memory,
    placement,
    tiles,
    transfers,
)
from aerie.virtual_npu.static.scopes import Program, Scope

OF_PROGRAMS: tuple[Callable[[Program], Iterator[Finding]], ...] = (
    memory.arguments,
    placement.launches,
    placement.bare_herds,
    memory.memories,
    transfers.walks,
    transfers.bundle_members,
    channels.types,
    locks.refeed_counts,
    locks.late_acquires,
    externals.symbols,
    lowering.forms,
    lowering.known_bad,
    lowering.stack,
    alignment.vectors,
)
"""Rules that look at the whole module."""

OF_SCOPES: tuple[Callable[[Scope], Iterator[Finding]], ...] = (
    placement.segments,
    placement.herd_sizes,
    placement.positions,
    memory.l1,
    alignment.buffers,
    channels.core_channels,
    channels.made_packets,
    channels.core_descriptors,
    channels.core_locks,
    memory.l2,
    channels.endpoints,
    channels.memtile_descriptors,
    channels.shim_descriptors,
    channels.packets,
    tiles.tiles,
    tiles.shrunk,
    tiles.cascades,
)
"""Rules that look at what stands in the array at the same time."""
