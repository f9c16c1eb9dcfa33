"""The L2 buffers and streams of each memtile, by mlir-air's allocation.

After mlir-air at e972f294. `air-split-l2-memref` (AIRMiscPasses.cpp) cuts an L2 buffer that many streams
enter or leave, in a function that has a segment of more than four cores. air-to-aie (`L2MemrefToMemTileMap`)
gives each part a memtile, by the column of the cores that it serves or else in turns.
AIRToAIESchedulingUtils.cpp gives each stream of a memtile a channel of its own while there are any, and all
the others channel 0.

Left out: several streams in turns on one flow, and buffers that name their memtile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from xdsl.dialects import memref
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from aerie.air_dialect.index_constants import leaves
from aerie.air_dialect.ops import DmaMemcpyNdOp
from aerie.air_dialect.values import root_value
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.descriptors import buffer_bytes
from aerie.device.scopes import PACKET, ArrayConfiguration
from aerie.device.streams import DeviceStream, Key, StreamEnd, device_streams
from aerie.device.transfers import space_of

Uses = list[tuple[DeviceStream, list[StreamEnd]]]
"""Streams, each with its ends at one buffer."""


@dataclass(eq=False)
class BufferPart:
    """One of the `share` equal parts of an L2 buffer, with its streams. aircc makes each part a buffer."""

    buffer: SSAValue
    share: int
    at: int
    puts: Uses = field(default_factory=list)
    gets: Uses = field(default_factory=list)

    @property
    def shape(self) -> tuple[Attribute, int]:
        """(type of the buffer, share): parts of one shape are placed round robin."""
        return self.buffer.type, self.share

    def columns(self) -> set[int]:
        """The columns of cores that the part serves, without streams that serve several columns."""
        column_sets = [
            {x for end in ends for x, _ in stream.cores(end)} for stream, ends in (*self.puts, *self.gets)
        ]
        return {column for columns in column_sets if len(columns) == 1 for column in columns}


@dataclass(eq=False)
class AllocatedMemtile:
    """A memtile and its parts. column: the column that it was chosen for, else None."""

    parts: list[BufferPart] = field(default_factory=list)
    column: int | None = None


@dataclass(frozen=True)
class Unsplittable:
    """An L2 buffer that would be cut where a loop walks the direction of the cut."""

    buffer: SSAValue
    op: Operation


class ArrayAllocation:
    """The memtiles and streams of one configuration of the array, as aircc allocates them."""

    def __init__(self, scope: ArrayConfiguration) -> None:
        self.scope = scope
        options = scope.program.options
        self.streams = device_streams(scope.sides, not options.omit_auto_broadcast, scope.program.channels)
        self.unsplittable: list[Unsplittable] = []

    @cached_property
    def parts(self) -> list[BufferPart]:
        """The L2 buffers after air-split-l2-memref."""
        used: dict[SSAValue, list[tuple[DeviceStream, StreamEnd]]] = defaultdict(list)
        for stream in self.streams.values():
            for end in stream.ends:
                if end.side.space == 1:
                    used[root_value(end.side.memref)].append((stream, end))
        budget = {reads: self._launch_streams(reads) for reads in (True, False)}
        buffers = [
            op.memref
            for op in self.scope.ops
            if isinstance(op, memref.AllocOp) and space_of(op.memref.type) == 1
        ]
        return [part for buffer in buffers for part in self._cut(buffer, used.get(buffer, []), budget)]

    def _launch_streams(self, reads: bool) -> int:
        """The number of streams that read from L3 (reads), or write to it."""
        ends = [(stream.puts if reads else stream.gets) for stream in self.streams.values()]
        return sum(any(end.side.space == 0 for end in each) for each in ends)

    def _cut(
        self, buffer: SSAValue, used: list[tuple[DeviceStream, StreamEnd]], budget: dict[bool, int]
    ) -> Iterator[BufferPart]:
        puts = _by_stream((stream, end) for stream, end in used if end.side.reads)
        gets = _by_stream((stream, end) for stream, end in used if not end.side.reads)
        many, single = (puts, gets) if len(puts) >= len(gets) else (gets, puts)
        places = self._places(buffer, many, single, budget)
        if len(places) < 2:
            yield BufferPart(buffer, 1, 0, puts, gets)
            return
        for place, keys in enumerate(places):
            own = [entry for entry in many if entry[0].key in keys]
            others = [(_member(stream, place), ends) for stream, ends in single]
            pair = (own, others) if many is puts else (others, own)
            yield BufferPart(buffer, len(places), place, *pair)

    def _places(self, buffer: SSAValue, many: Uses, single: Uses, budget: dict[bool, int]) -> list[set[Key]]:
        """The streams of each part; fewer than two sets if the buffer is not cut."""
        made = buffer.owner
        if not self._is_cut or isinstance(made, Block) or made.attributes.get("air.no_split"):
            return []
        if len(many) < 2 or len(single) > 1:
            return []
        if any(stream.cores(end) for stream, ends in single for end in ends):
            return []
        offsets = _offsets_of_rows({stream.key: ends[0].offsets for stream, ends in many})
        dimension = _first_difference(list(offsets.values()))
        if dimension is None:
            return []
        groups: dict[int | None, set[Key]] = defaultdict(set)
        for key, found in offsets.items():
            groups[found[dimension]].add(key)
        if not self._affordable(single, len(groups), budget):
            return []
        if any(len(keys) > 1 for keys in groups.values()):
            self._note_loops(buffer, single, dimension)
        return list(groups.values())

    @cached_property
    def _is_cut(self) -> bool:
        """Whether air-split-l2-memref has not run yet and will look at this function."""
        function = next((op for op in parent_ops(self.scope.root) if isinstance(op, FuncOp)), None)
        siblings = [
            scope
            for scope in self.scope.program.scopes
            if next((op for op in parent_ops(scope.root) if isinstance(op, FuncOp)), None) is function
        ]
        max_cores = self.scope.device.cores_per_memtile
        return not self.scope.is_placed and any(scope.cores > max_cores for scope in siblings)

    def _affordable(self, single: Uses, factor: int, budget: dict[bool, int]) -> bool:
        """Whether the shim has channels for the L3 streams of a cut. If so, they leave the budget."""
        device = self.scope.device
        for stream, ends in single:
            far = stream.puts if not ends[0].side.reads else stream.gets
            if not any(end.side.space == 0 for end in far):
                continue
            reads = far[0].side.reads
            limit = device.launch_mm2s if reads else device.launch_s2mm
            if budget[reads] + factor - 1 > limit:
                return False
            budget[reads] += factor - 1
        return True

    def _note_loops(self, buffer: SSAValue, single: Uses, dimension: int) -> None:
        for _, ends in single:
            for end in ends:
                offsets = end.side.offsets
                if len(offsets) > dimension and leaves(offsets[dimension]):
                    self.unsplittable.append(Unsplittable(buffer, end.side.op))

    @cached_property
    def memtiles(self) -> list[AllocatedMemtile]:
        """The memtiles with their parts."""
        tiles = [AllocatedMemtile() for _ in range(max(1, self.scope.memtiles // self.scope.copies))]
        buckets = _buckets(self.parts)
        columns = [single_column(set().union(*(part.columns() for part in bucket))) for bucket in buckets]
        columns_used = Counter(column for column in columns if column is not None)
        if any(count > 1 for count in columns_used.values()):
            _in_turns(tiles, buckets)
        else:
            _by_column(tiles, buckets, columns)
        return tiles

    def channels(
        self, tile: AllocatedMemtile
    ) -> Mapping[tuple[bool, int], list[tuple[DeviceStream, BufferPart, list[StreamEnd]]]]:
        """The streams on each channel of a memtile, by (whether it sends, number)."""
        channels: dict[tuple[bool, int], list[tuple[DeviceStream, BufferPart, list[StreamEnd]]]] = (
            defaultdict(list)
        )
        limits = self.scope.device.memtile
        for sends, most in ((True, limits.mm2s_channels), (False, limits.s2mm_channels)):
            uses = [
                (stream, part, ends)
                for part in tile.parts
                for stream, ends in (part.puts if sends else part.gets)
            ]
            numbers: dict[Key, int] = {}
            for stream, part, ends in sorted(uses, key=lambda use: not touches_l3(use[0])):
                lane = (PACKET,) if sends and self._is_packet(stream) else stream.key
                number = numbers.setdefault(lane, len(numbers))
                channels[sends, number if number < most else 0].append((stream, part, ends))
        return channels

    def _is_packet(self, stream: DeviceStream) -> bool:
        name = stream.key[0]
        return isinstance(name, str) and self.scope.program.channel_type(name) == PACKET

    def bytes_of(self, tile: AllocatedMemtile) -> int:
        """Bytes of L2 in a memtile."""
        sizes = (
            buffer_bytes(self.scope, part.buffer) // part.share * self.scope.buffer_count(part.buffer)
            for part in tile.parts
        )
        return sum(sizes)


@lru_cache(maxsize=64)
def allocate_array(scope: ArrayConfiguration) -> ArrayAllocation:
    """The allocation of a configuration, cached."""
    return ArrayAllocation(scope)


def touches_l3(stream: DeviceStream) -> bool:
    """Whether a stream starts or ends in L3."""
    return any(end.side.space == 0 for end in stream.ends)


def _member(stream: DeviceStream, number: int) -> DeviceStream:
    """The part of a stream that belongs to one part of a buffer."""
    return DeviceStream((*stream.key, "part", number), stream.puts, stream.gets)


def _by_stream(used: Iterator[tuple[DeviceStream, StreamEnd]]) -> Uses:
    by_stream: dict[Key, tuple[DeviceStream, list[StreamEnd]]] = {}
    for stream, end in used:
        by_stream.setdefault(stream.key, (stream, []))[1].append(end)
    return list(by_stream.values())


def _offsets_of_rows(offsets: dict[Key, tuple[int | None, ...]]) -> dict[Key, tuple[int | None, ...]]:
    """The offsets, with those of the first row for all cores of a column.

    aircc unrolls the loop of a transfer that serves several columns and rows along its first dimension only,
    before it looks for a cut.
    """
    ops = {key[0] for key in offsets}
    if len(ops) != 1 or not isinstance(next(iter(ops)), DmaMemcpyNdOp):
        return offsets
    first: dict[object, tuple[int | None, ...]] = {}
    for key, offset in offsets.items():
        first.setdefault(key[1], offset)
    return {key: first[key[1]] for key in offsets} if len(first) > 1 else offsets


def _first_difference(offsets: list[tuple[int | None, ...]]) -> int | None:
    """The outermost dimension in which offsets differ; None if there is none or ranks differ."""
    if len({len(each) for each in offsets}) != 1:
        return None
    return next((d for d, each in enumerate(zip(*offsets, strict=True)) if len(set(each)) > 1), None)


def single_column(columns: set[int]) -> int | None:
    """The only column; None for none or several."""
    return next(iter(columns)) if len(columns) == 1 else None


def _buckets(parts: list[BufferPart]) -> list[list[BufferPart]]:
    """The parts in groups that share a stream."""
    buckets: list[list[BufferPart]] = []
    for part in parts:
        keys = {stream.key for stream, _ in (*part.puts, *part.gets)}
        bucket = next(
            (b for b in buckets if any(keys & {s.key for s, _ in (*p.puts, *p.gets)} for p in b)), None
        )
        if bucket is None:
            buckets.append([part])
        else:
            bucket.append(part)
    return buckets


def _in_turns(tiles: list[AllocatedMemtile], buckets: list[list[BufferPart]]) -> None:
    """Place parts round robin: one turn per shape, and a common turn for all unique shapes."""
    alike = Counter(bucket[0].shape for bucket in buckets)
    turns: Counter[object] = Counter()
    for bucket in buckets:
        turn = bucket[0].shape if alike[bucket[0].shape] > 1 else None
        tiles[turns[turn] % len(tiles)].parts += bucket
        turns[turn] += 1


def _by_column(
    tiles: list[AllocatedMemtile], buckets: list[list[BufferPart]], columns: list[int | None]
) -> None:
    """Place each part in the memtile of its column; the others in free memtiles, then round robin."""
    free = list(tiles)
    for bucket, column in zip(buckets, columns, strict=True):
        if column is not None:
            tile = free.pop(0) if free else AllocatedMemtile()
            if tile not in tiles:
                tiles.append(tile)
            tile.column = column
            tile.parts += bucket
    others = [bucket for bucket, column in zip(buckets, columns, strict=True) if column is None]
    for turn, bucket in enumerate(others):
        tile = free.pop(0) if free else tiles[turn % len(tiles)]
        tile.parts += bucket
