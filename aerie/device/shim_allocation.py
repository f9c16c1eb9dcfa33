"""The shim tiles that a configuration needs, and the streams that become packets, by mlir-air's rules.

After mlir-air at e972f294. A stream of L3 takes a channel of the shim tile of its column, or of one more
where that is full (AIRToAIESchedulingUtils.cpp); `aie-place-tiles` (mlir-aie) wants a column for each tile.
`air-dma-to-channel` makes packets of DMAs between L3 and cores where the channels of a column may not do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cached_property, lru_cache

from aerie.device.memtile_allocation import (
    AllocatedMemtile,
    ArrayAllocation,
    allocate_array,
    single_column,
    touches_l3,
)
from aerie.device.scopes import PACKET, ArrayConfiguration, integer_attribute
from aerie.device.streams import DeviceStream, Key
from aerie.device.transfers import TransferSide, space_of


class ShimAllocation:
    """The shim tiles of one configuration of the array."""

    def __init__(self, array: ArrayAllocation) -> None:
        self._array = array
        self._scope = array.scope

    @cached_property
    def tiles(self) -> dict[object, tuple[int, int]]:
        """The number of channels (from L3, to L3) of each group of shim tiles.

        A group belongs to one column, or to a memtile that serves several. Broadcasts, which may use any
        column, are under None.
        """
        groups: dict[object, list[set[Key]]] = defaultdict(lambda: [set(), set()])
        tile_of = {id(part): tile for tile in self._array.memtiles for part in tile.parts}
        for part in self._array.parts:
            for sends, uses in ((False, part.gets), (True, part.puts)):
                for stream, _ in uses:
                    if touches_l3(stream):
                        groups[self._pin(stream) or _group(tile_of[id(part)])][sends].add(stream.key)
        for stream in self._array.streams.values():
            core = next((end.core for end in stream.ends if end.core is not None), None)
            if core is not None and touches_l3(stream):
                key = None if self._is_flexible(stream) else ("column", self._column(stream, core))
                sends = bool(stream.gets and stream.gets[0].side.space == 0)
                groups[self._pin(stream) or key][sends].add(self._lane(stream))
        return {key: (len(into), len(out)) for key, (into, out) in groups.items()}

    @property
    def needed(self) -> int:
        """The number of shim tiles that the L3 streams need."""
        each = self._scope.device.shim.mm2s_channels
        rigid = [counts for key, counts in self.tiles.items() if key is not None]
        tiles = [max(-(-into // each), -(-out // each)) for into, out in rigid]
        free = sum(count * each - into for count, (into, _) in zip(tiles, rigid, strict=True))
        flexible = self.tiles.get(None, (0, 0))[0]
        return sum(tiles) + max(0, -(-(flexible - free) // each))

    @property
    def has_channels_enough(self) -> bool:
        """Whether all columns together have channels for every stream."""
        into, out = (sum(counts[way] for counts in self.tiles.values()) for way in (0, 1))
        return into <= self._scope.device.launch_mm2s and out <= self._scope.device.launch_s2mm

    @cached_property
    def made_packets(self) -> frozenset[int]:
        """The directions between L3 and cores (0: to the cores, 2: from them) whose streams become packets.

        Their streams are too many for the shim channels of a column (air-dma-to-channel).
        """
        return frozenset(
            space for space in (0, 2) if self._pressure(space) > self._scope.device.shim.mm2s_channels
        )

    @cached_property
    def packet_channels(self) -> frozenset[str]:
        """Declared channels that become packets: air-dma-to-channel ignores their type."""
        found = (
            stream.key[0]
            for stream in self._array.streams.values()
            if stream.puts and stream.gets and any(_is_direct(stream, space) for space in self.made_packets)
        )
        return frozenset(name for name in found if isinstance(name, str))

    def is_packet_shared(self, side: TransferSide) -> bool:
        """Whether a transfer is a packet stream, which shares a channel with the others of its tile."""
        if side.channel is not None:
            is_declared = self._scope.program.channel_type(side.channel) == PACKET
            return is_declared or side.channel in self.packet_channels
        if side.other is None or {side.space, space_of(side.other.type)} != {0, 2}:
            return False
        return (side.space if side.reads else 2 - side.space) in self.made_packets

    def _pin(self, stream: DeviceStream) -> object:
        """The column of the shim that a channel names (`air.shim_col`), None for any other stream."""
        channel = self._scope.program.channels.get(str(stream.key[0]))
        column = None if channel is None else integer_attribute(channel, "air.shim_col")
        return None if column is None else ("column", column)

    def _column(self, stream: DeviceStream, core: tuple[int, int]) -> object:
        """The column of a core; a placeholder for herds that aircc places beside others."""
        herd = next(end.herd for end in stream.ends if end.herd is not None)
        pin = integer_attribute(herd, "x_loc")
        if pin is None and len(self._scope.herds) > 1:
            return herd.sym_name, core[0]
        return (pin or 0) + core[0]

    def _is_flexible(self, stream: DeviceStream) -> bool:
        comes_from_l3 = bool(stream.puts) and stream.puts[0].side.space == 0
        return comes_from_l3 and len(stream.gets) > 1 and not self._is_packet(stream)

    def _lane(self, stream: DeviceStream) -> Key:
        """Streams of packets share a channel of their shim tile."""
        return ("packets",) if self._is_packet(stream) else stream.key

    def _is_packet(self, stream: DeviceStream) -> bool:
        name = stream.key[0]
        if isinstance(name, str) and self._scope.program.channel_type(name) == PACKET:
            return True
        if not stream.puts or not stream.gets:
            return False
        space = stream.puts[0].side.space
        return space in self.made_packets and _is_direct(stream, space)

    def _pressure(self, space: int) -> int:
        """The number of streams that may need one column of the shim, as air-dma-to-channel counts them:
        channels by name, and broadcasts over several columns in equal shares."""
        declared: dict[Key, DeviceStream] = {}
        for stream in self._array.streams.values():
            if stream.puts and stream.gets and _is_direct(stream, space):
                is_one = len({end.core for end in stream.gets}) > 1
                declared.setdefault(stream.key if is_one else stream.key[:1], stream)
        spans = Counter(len({end.core[0] for end in stream.ends if end.core}) for stream in declared.values())
        return sum(-(-count // max(1, span)) for span, count in spans.items())


@lru_cache(maxsize=64)
def allocate_shim(scope: ArrayConfiguration) -> ShimAllocation:
    """The shim tiles of a configuration, cached."""
    return ShimAllocation(allocate_array(scope))


def _group(tile: AllocatedMemtile) -> object:
    """The group of shim tiles that feeds a memtile: its column, or else the memtile itself."""
    if tile.column is not None:
        return "column", tile.column
    uses = [use for part in tile.parts for use in (*part.puts, *part.gets)]
    column = single_column({x for stream, ends in uses for end in ends for x, _ in stream.cores(end)})
    return ("memtile", id(tile)) if column is None else ("column", column)


def _is_direct(stream: DeviceStream, space: int) -> bool:
    """Whether a stream joins L3 and cores, from the given memory."""
    return (stream.puts[0].side.space, stream.gets[0].side.space) == (space, 2 - space)
