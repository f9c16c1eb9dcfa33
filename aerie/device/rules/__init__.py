"""The rules: each a function that gives what it finds, grouped by what they are about."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aerie.device.report import Finding
from aerie.device.rules import (
    alignment,
    channels,
    constants,
    engines,
    externals,
    host,
    locks,
    lowering,
    members,
    memory,
    placement,
    tiles,
    transfers,
)
from aerie.device.scopes import Program, Scope

OF_PROGRAMS: tuple[Callable[[Program], Iterator[Finding]], ...] = (
    memory.arguments,
    placement.launches,
    placement.bare_herds,
    memory.memories,
    transfers.walks,
    channels.bundle_members,
    channels.types,
    host.parameters,
    host.extents_of_the_caller,
    host.traffic,
    host.copies,
    host.branches,
    host.shared_writes,
    host.strides_of_loops,
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
    constants.constants,
    alignment.buffers,
    engines.core_channels,
    engines.made_packets,
    engines.core_descriptors,
    engines.core_locks,
    memory.l2,
    engines.endpoints,
    engines.memtile_descriptors,
    engines.shim_descriptors,
    engines.packets,
    members.members,
    members.indices,
    tiles.tiles,
    tiles.shrinking,
    tiles.cascades,
)
"""Rules that look at what stands in the array at the same time."""
