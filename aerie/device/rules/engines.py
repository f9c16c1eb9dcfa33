"""DMA channels, descriptors, locks and packet ids that a configuration takes, of cores and in sum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from xdsl.ir import SSAValue

from aerie.air_dialect.index_constants import Known, constant_int, leaves
from aerie.air_dialect.ops import (
    ChannelTransferOp,
    HerdOp,
    SegmentOp,
)
from aerie.air_dialect.values import root_value
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.conditions import may_run_on
from aerie.device.descriptors import descriptors
from aerie.device.npu2 import (
    AIRCC,
    DMA_TO_CHANNEL,
    TARGET_MODEL,
)
from aerie.device.report import Fault, Finding, ResourceUsage
from aerie.device.rules.placement import herd_shape
from aerie.device.scopes import PACKET, ArrayConfiguration
from aerie.device.shim_allocation import allocate_shim
from aerie.device.transfers import (
    TransferSide,
    extent_of,
    extents,
    length,
    parallel_range,
)

MAX_POSITIONS = 4096
StreamKey = tuple[object, ...]
"""What occupies a DMA channel: a channel of a bundle, or one source or destination of DMAs."""


def check_core_channels(scope: ArrayConfiguration) -> Iterator[Finding]:
    """DMA channels in and out, of the core of each herd that takes most.

    On the safe side: mlir-air can let several transfers take turns on one channel in some programs.
    """
    advice = "send several over one channel, or compile with --air-channel-multiplexing=L1"
    limits = scope.device.core
    for name, herds in scope.herds.items():
        place = scope.report_name(name)
        streams = [core_streams(scope, herds, core) for core in core_ids(herds[0])]
        into, out = (max((len(found[i]) for found in streams), default=0) for i in range(2))
        yield ResourceUsage(
            place, "input channels", into, limits.s2mm_channels, TARGET_MODEL, advice, herds[0]
        )
        yield ResourceUsage(
            place, "output channels", out, limits.mm2s_channels, TARGET_MODEL, advice, herds[0]
        )


def core_ids(herd: HerdOp) -> list[Known]:
    """The ids of every core of a herd; a herd larger than any device by its first cores."""
    columns, rows = (min(extent, 64) for extent in herd_shape(herd))
    grid = itertools.product(range(columns), range(rows))
    return [dict(zip(herd.ids, core, strict=False)) for core in grid]


def sides_at(
    scope: ArrayConfiguration, herds: Sequence[HerdOp], core: Known
) -> Iterator[tuple[TransferSide, Known]]:
    """The L1 transfers of one core of some herds, each with the core's ids in its herd."""
    numbers = tuple(core.values())
    for herd in herds:
        here: Known = dict(zip(herd.ids, numbers, strict=False))
        for side in scope.l1_sides.get(herd, ()):
            if may_run_on(side.op, herd, here):
                yield side, here


def core_streams(
    scope: ArrayConfiguration, herds: Sequence[HerdOp], core: Known
) -> tuple[set[StreamKey], set[StreamKey]]:
    """The streams into one core, and those out of it; packets share a channel."""
    into: set[StreamKey] = set()
    out: set[StreamKey] = set()
    for side, here in sides_at(scope, herds, core):
        end = (PACKET,) if allocate_shim(scope).is_packet_shared(side) else _far_end(side, here)
        (out if side.reads else into).add(end)
    return into, out


def check_made_packets(scope: ArrayConfiguration) -> Iterator[Finding]:
    """DMAs between L3 and cores that aircc makes packet streams of, for want of shim channels."""
    for space in sorted(allocate_shim(scope).made_packets):
        direction = "from L3 to" if space == 0 else "to L3 from"
        message = (
            f"more streams {direction} cores than the {scope.device.shim.mm2s_channels} channels of a shim "
            "tile; air-dma-to-channel makes packets of all, which take turns on one channel, so stage "
            "through L2 where speed matters"
        )
        yield Fault("packets", scope.place, message, DMA_TO_CHANNEL, scope.root, certain=False)


def _far_end(side: TransferSide, bindings: Known) -> StreamKey:
    """A channel of a bundle, or the memref at the other end of a DMA."""
    if side.channel is None:
        return (root_value(side.other),) if side.other is not None else ()
    assert isinstance(side.op, ChannelTransferOp)
    return (side.channel, *(_index(value, bindings) for value in side.op.indices))


def _index(value: SSAValue, bindings: Known) -> object:
    position = constant_int(value, bindings)
    return root_value(value) if position is None else position


def check_endpoints(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Channels that the shim and the memtiles must offer, over all columns.

    The least that will do: where the compiler spreads an L2 buffer over memtiles it takes more of the
    shim's, and keeps within the limit by itself (aircc passes it as `max-launch-channels`).
    """
    device, memtiles = scope.device, scope.memtiles
    limits = {
        (0, True): ("shim channels from L3", device.launch_mm2s, AIRCC),
        (0, False): ("shim channels to L3", device.launch_s2mm, AIRCC),
        (1, True): ("memtile channels from L2", device.memtile.mm2s_channels * memtiles, TARGET_MODEL),
        (1, False): ("memtile channels to L2", device.memtile.s2mm_channels * memtiles, TARGET_MODEL),
    }
    advice = "stage through L2, broadcast, or use fewer cores"
    for (space, reads), (resource, limit, source) in limits.items():
        used = _streams(scope, space, reads)
        yield ResourceUsage(scope.place, resource, used, limit, source, advice, scope.root)


def _streams(scope: ArrayConfiguration, space: int, reads: bool) -> int:
    """DMA channels of one direction that a memory needs: one per channel of a bundle, or per DMA stream."""
    exact: set[StreamKey] = set()
    counted: dict[StreamKey, int] = {}
    for side in scope.sides:
        if (side.space, side.reads) != (space, reads):
            continue
        found = stream_positions(side)
        if allocate_shim(scope).is_packet_shared(side):
            exact.add((PACKET,))
        elif found is not None:
            exact |= found
        else:
            key = (root_value(side.memref), *_far_end(side, {}))
            counted[key] = max(counted.get(key, 0), parallel_count(side))
    return len(exact) + sum(counted.values())


def stream_positions(side: TransferSide) -> set[StreamKey] | None:
    """The channels of a bundle that a transfer uses; None for a DMA, or where they are not known."""
    if not isinstance(side.op, ChannelTransferOp):
        return None
    choices = [parallel_range(index) for index in side.op.indices]
    known = [choice for choice in choices if choice is not None]
    if len(known) != len(choices) or math.prod(map(length, known)) > MAX_POSITIONS:
        return None
    return {(side.op.chan_name, *position) for position in itertools.product(*known)}


def parallel_count(side: TransferSide) -> int:
    """How many of this transfer run side by side; reads that do not depend on a tile id are broadcast."""
    if isinstance(side.op, ChannelTransferOp) or side.reads:
        values = side.op.indices if isinstance(side.op, ChannelTransferOp) else side.offsets
        used = {leaf for value in values for leaf in leaves(value)}
        return math.prod(map(extent_of, used))
    grids = (op for op in parent_ops(side.op) if isinstance(op, HerdOp | SegmentOp))
    return max(1, math.prod(math.prod(extents(op)) for op in grids))


def check_packets(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Packet flows, each of which needs an id of its own."""
    ops = [op for op in scope.ops if isinstance(op, ChannelTransferOp)]
    names = {op.chan_name for op in ops if scope.program.channel_type(op.chan_name) == PACKET}
    if names:
        declared = [scope.program.channels[name] for name in sorted(names) if name in scope.program.channels]
        flows = sum(math.prod(channel.size) for channel in declared)
        advice = "let flows share a channel, or make some of them npu_dma_stream"
        limit = scope.device.packet_ids
        yield ResourceUsage(scope.place, "packet ids", flows, limit, TARGET_MODEL, advice, scope.root)


# ---- buffer descriptors (BDs): one for each transfer written, two where its buffer is double-buffered ----


def check_core_descriptors(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Descriptors of the core of each herd that has most transfers."""
    for name, herds in scope.herds.items():
        used = max(
            sum(descriptors(scope, side) for side, _ in sides_at(scope, herds, core))
            for core in core_ids(herds[0])
        )
        limit, advice = scope.device.core.descriptors, "make fewer transfers"
        yield ResourceUsage(
            scope.report_name(name), "descriptors", used, limit, TARGET_MODEL, advice, herds[0]
        )


def check_core_locks(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Locks of the core of each herd that has most: two for each DMA or channel of its own."""
    advice = "send several over one channel"
    for name, herds in scope.herds.items():
        used = 2 * max(
            len({side.channel or side.op for side, _ in sides_at(scope, herds, core)})
            for core in core_ids(herds[0])
        )
        yield ResourceUsage(
            scope.report_name(name), "locks", used, scope.device.core_locks, TARGET_MODEL, advice, herds[0]
        )


def check_memtile_descriptors(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Descriptors of all memtiles; those of each are in `tiles`."""
    limit = scope.device.memtile.descriptors
    used = 0
    for side in scope.sides:
        if side.space == 1:
            used += scope.buffer_count(side.memref) * _copies(side)
    advice = "make fewer transfers, or move more in each"
    yield ResourceUsage(
        scope.place,
        "memtile descriptors",
        used,
        limit * scope.memtiles,
        TARGET_MODEL,
        advice,
        scope.root,
    )


def check_shim_descriptors(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Descriptors of all shim tiles that one launch iteration needs, spread evenly."""
    used = sum(_copies(side) for side in scope.sides if side.space == 0)
    limit = scope.device.shim.descriptors * scope.device.columns
    advice = "make fewer transfers, or move more in each"
    yield ResourceUsage(scope.place, "shim descriptors", used, limit, TARGET_MODEL, advice, scope.root)


def _copies(side: TransferSide) -> int:
    """How many times a transfer stands in the array, side by side."""
    found = stream_positions(side)
    return parallel_count(side) if found is None else len(found)
