"""Each memtile and shim tile by itself, as aircc fills them, and transfers without a flow.

See memtile_allocation.py and shim_allocation.py.

A sum over all tiles may fit where one tile is full. Unrolled segments are counted in sum only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aerie.air_dialect.ops import ChannelTransferOp, DmaMemcpyNdOp
from aerie.device.descriptors import descriptors, shrunk_buffers
from aerie.device.memtile_allocation import AllocatedMemtile, ArrayAllocation, allocate_array
from aerie.device.npu2 import (
    ALLOCATION,
    DESCRIPTOR_IDS,
    LOWER_CASCADES,
    PLACE_TILES,
    SHRINK,
    SPLIT_L2,
)
from aerie.device.report import Fault, Finding, ResourceUsage
from aerie.device.scopes import ArrayConfiguration, op_location
from aerie.device.shim_allocation import allocate_shim
from aerie.device.streams import DeviceStream, StreamEnd, device_streams
from aerie.device.transfers import transfer_sides

CASCADE = "npu_cascade"


def check_tiles(scope: ArrayConfiguration) -> Iterator[Finding]:
    """The fullest memtile and the number of shim tiles of a configuration that is not unrolled."""
    array = allocate_array(scope)
    yield from _fan_in(array.streams.values())
    if scope.copies > 1:
        return
    if any(tile.parts for tile in array.memtiles):
        yield from _memtiles(scope, array)
    shim = allocate_shim(scope)
    if shim.needed and shim.has_channels_enough:
        yield ResourceUsage(
            scope.place,
            "shim tiles",
            shim.needed,
            scope.device.columns,
            f"{ALLOCATION}; {PLACE_TILES}",
            "let fewer streams of L3 meet in one column or memtile: broadcast, share channels, "
            "or use L2 buffers that serve one column each",
            scope.root,
        )
    for found in array.unsplittable:
        message = (
            "an L2 buffer that many streams share is cut into parts, and a loop moves this transfer along "
            "the direction of the cut, which air-split-l2-memref fails on; move the buffer whole"
        )
        yield Fault("split", op_location(found.op), message, SPLIT_L2, found.op)


def _memtiles(scope: ArrayConfiguration, array: ArrayAllocation) -> Iterator[Finding]:
    """The fullest of several memtiles; where there is one, the sums say it."""
    limits, place, root = scope.device.memtile, scope.place, scope.root
    yield from _descriptor_halves(scope, array)
    if len(array.memtiles) > 1:
        most = max(map(array.bytes_of, array.memtiles))
        if sum(map(array.bytes_of, array.memtiles)) <= len(array.memtiles) * scope.device.l2_bytes:
            advice = "use smaller L2 tiles, or cut the buffer so that several memtiles share it"
            limit = scope.device.l2_bytes
            yield ResourceUsage(place, "bytes of one memtile", most, limit, ALLOCATION, advice, root)
        streams = max(_streams(array, tile, False) for tile in array.memtiles)
        advice = "gather fewer streams in one L2 buffer, or cut it so that several memtiles share it"
        limit = limits.s2mm_channels
        yield ResourceUsage(place, "input channels of one memtile", streams, limit, ALLOCATION, advice, root)
    streams = max(_streams(array, tile, True) for tile in array.memtiles)
    if streams > limits.mm2s_channels:
        message = (
            f"{streams} streams leave one memtile, which has {limits.mm2s_channels} channels out; aircc lets "
            "those left over share the first one, whose data then reaches all ends, so cut the buffer or "
            "broadcast"
        )
        yield Fault("shared-channel", place, message, ALLOCATION, root, certain=False)


def _descriptor_halves(scope: ArrayConfiguration, array: ArrayAllocation) -> Iterator[Finding]:
    counts = [_descriptors(array, tile) for tile in array.memtiles]
    limits, place, root = scope.device.memtile, scope.place, scope.root
    if len(counts) == 1 and sum(counts[0]) > limits.descriptors:
        return
    advice = "make fewer transfers of its buffers, or loops that a descriptor can walk"
    even, odd = (max(halves) for halves in zip(*counts, strict=True))
    half, source = limits.descriptors // 2, DESCRIPTOR_IDS
    yield ResourceUsage(place, "descriptors of one memtile's even channels", even, half, source, advice, root)
    yield ResourceUsage(place, "descriptors of one memtile's odd channels", odd, half, source, advice, root)


def _descriptors(array: ArrayAllocation, tile: AllocatedMemtile) -> tuple[int, int]:
    """Descriptors of the even and of the odd channels of a memtile, which have half of them each."""
    counts = [0, 0]
    for (_, channel), uses in array.channels(tile).items():
        counts[channel % 2] += sum(descriptors(array.scope, end.side) for _, _, ends in uses for end in ends)
    return counts[0], counts[1]


def check_shrunk_buffers(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Buffers that are made too small for what is moved into them."""
    for op in shrunk_buffers(scope).values():
        message = (
            "all transfers of this buffer are of one size, at different offsets; aircc makes the buffer "
            "that small, and they overwrite each other, so give each a buffer of its own"
        )
        yield Fault("shrunk", op_location(op), message, SHRINK, op, certain=False)


def _streams(array: ArrayAllocation, tile: AllocatedMemtile, sends: bool) -> int:
    channels = array.channels(tile)
    return len({stream.key for (out, _), uses in channels.items() if out is sends for stream, _, _ in uses})


def _fan_in(streams: Iterable[DeviceStream]) -> Iterator[Fault]:
    """DMAs that several cores write one place with: broadcast detection makes one stream of them."""
    for stream in streams:
        writers = {end.core for end in stream.puts}
        op = stream.key[0]
        if isinstance(op, DmaMemcpyNdOp) and len(writers) > 1:
            message = (
                f"{len(writers)} cores write where no tile id chooses: aircc takes the DMA for one that all "
                "share, and no stream has several sources; let its offsets depend on the tile ids, "
                "not on the bounds of a loop"
            )
            yield Fault("fan-in", op_location(op), message, ALLOCATION, op)


def check_cascades(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Cascades run from a core to its neighbour in the south or in the east."""
    ops = [
        op
        for op in scope.ops
        if isinstance(op, ChannelTransferOp) and scope.program.channel_type(op.chan_name) == CASCADE
    ]
    streams = device_streams([side for op in ops for side in transfer_sides(op)], True, {}).values()
    pairs = ((put, get) for stream in streams for put in stream.puts for get in stream.gets)
    wrong = next((pair for pair in pairs if not _are_neighbours(*pair)), None)
    if wrong is not None:
        put, get = wrong
        message = (
            f"a cascade from core {put.core} to core {get.core}; it runs to the neighbour in the south (y - "
            "1) or in the east (x + 1), so turn the order of the cores around"
        )
        yield Fault("cascade", op_location(put.side.op), message, LOWER_CASCADES, put.side.op)


def _are_neighbours(put: StreamEnd, get: StreamEnd) -> bool:
    """Whether a cascade can run from one end to the other; herds beside each other are placed for it."""
    if put.core is None or get.core is None or put.herd is not get.herd:
        return True
    return (get.core[0] - put.core[0], get.core[1] - put.core[1]) in ((1, 0), (0, -1))
