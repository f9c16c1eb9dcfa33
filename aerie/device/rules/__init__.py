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
    loops,
    lowering,
    members,
    memory,
    placement,
    shifts,
    tiles,
    transfers,
)
from aerie.device.scopes import ArrayConfiguration, CheckedProgram

PROGRAM_RULES: tuple[Callable[[CheckedProgram], Iterator[Finding]], ...] = (
    memory.check_arguments,
    placement.check_launches,
    placement.check_bare_herds,
    memory.check_memories,
    transfers.check_walks,
    channels.check_bundle_members,
    channels.check_channel_types,
    host.check_parameters,
    host.check_caller_extents,
    host.check_traffic,
    host.check_copies,
    host.check_branches,
    host.check_shared_writes,
    host.check_loop_strides,
    locks.check_refeed_counts,
    locks.check_late_acquires,
    loops.check_folded_indices,
    loops.check_received_and_sent,
    externals.check_external_symbols,
    lowering.check_op_forms,
    lowering.check_air_forms,
    lowering.check_stack,
    shifts.check_shifts,
    alignment.check_vector_alignment,
)
"""Rules that look at the whole module."""

CONFIGURATION_RULES: tuple[Callable[[ArrayConfiguration], Iterator[Finding]], ...] = (
    placement.check_segments,
    placement.check_herd_sizes,
    placement.check_positions,
    memory.check_l1,
    constants.check_constants,
    alignment.check_buffer_alignment,
    engines.check_core_channels,
    engines.check_made_packets,
    engines.check_core_descriptors,
    engines.check_core_locks,
    memory.check_l2,
    engines.check_endpoints,
    engines.check_memtile_descriptors,
    engines.check_shim_descriptors,
    engines.check_packets,
    members.check_members,
    members.check_member_indices,
    members.check_cut_broadcasts,
    tiles.check_tiles,
    tiles.check_shrunk_buffers,
    tiles.check_cascades,
)
"""Rules that look at what stands in the array at the same time."""
