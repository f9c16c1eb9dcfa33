"""What stands in each memtile, and which shim tiles a configuration needs: mlir-air's allocation, followed.

After mlir-air at e972f294. `air-split-l2-memref` (AIRMiscPasses.cpp) cuts an L2 buffer that many streams
enter or leave. air-to-aie (`L2MemrefToMemTileMap`) gives each part a memtile, by the column of the cores that
it serves or else in turns. AIRToAIESchedulingUtils.cpp gives each stream of a memtile a channel of its own
while there are any, and all the others channel 0; and a stream of L3 a channel of the shim tile of its
column, or of one more where that is full. `aie-place-tiles` (mlir-aie) wants a column for each.

Left out: several streams in turns on one flow, and buffers that name their memtile.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from xdsl.dialects import memref, scf
from xdsl.ir import Attribute, Operation, SSAValue

from aerie.air_dialect.ops import ChannelOp, HerdOp, HierarchyOp
from aerie.air_dialect.readings import leaves, number
from aerie.air_dialect.values import origin
from aerie.air_dialect.verifiers import enclosing
from aerie.virtual_npu.static.copies import trips
from aerie.virtual_npu.static.device import DmaLimits
from aerie.virtual_npu.static.scopes import Scope, integer_attribute
from aerie.virtual_npu.static.streams import End, Key, Stream, offset_at, streams_of
from aerie.virtual_npu.static.transfers import Side, memref_bytes, space_of

Uses = list[tuple[Stream, list[End]]]
"""Streams, each with its ends at one buffer."""


@dataclass(eq=False)
class Part:
    """One of the `share` equal parts of an L2 buffer, a buffer of its own, and the streams that use it."""

    buffer: SSAValue
    share: int
    at: int
    puts: Uses = field(default_factory=list)
    gets: Uses = field(default_factory=list)

    @property
    def shape(self) -> tuple[Attribute, int]:
        """What parts have in common that are placed in turns."""
        return self.buffer.type, self.share

    def columns(self) -> set[int]:
        """The columns of cores that it serves, without streams that serve several."""
        found = [
            {x for end in ends for x, _ in stream.cores(end)} for stream, ends in (*self.puts, *self.gets)
        ]
        return {column for columns in found if len(columns) == 1 for column in columns}


@dataclass(eq=False)
class Memtile:
    """A memtile and its parts; `column` where it was chosen for one."""

    parts: list[Part] = field(default_factory=list)
    column: int | None = None


@dataclass(frozen=True)
class Unsplittable:
    """An L2 buffer that would be cut where a loop walks the direction of the cut."""

    buffer: SSAValue
    op: Operation


class Array:
    """One configuration of the array as aircc would make it."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        options = scope.program.options
        sizes = {
            name: channel.size for name, channel in scope.program.channels.items() if _is_broadcast(channel)
        }
        self.streams = streams_of(scope.sides, not options.omit_auto_broadcast, sizes)
        self.unsplittable: list[Unsplittable] = []

    @cached_property
    def parts(self) -> list[Part]:
        """L2 buffers as they come out of air-split-l2-memref."""
        used: dict[SSAValue, list[tuple[Stream, End]]] = defaultdict(list)
        for stream in self.streams.values():
            for end in stream.ends:
                if end.side.space == 1:
                    used[origin(end.side.memref)].append((stream, end))
        budget = {reads: self._launch_streams(reads) for reads in (True, False)}
        made = [
            op.memref
            for op in self.scope.ops
            if isinstance(op, memref.AllocOp) and space_of(op.memref.type) == 1
        ]
        return [part for buffer in made for part in self._cut(buffer, used.get(buffer, []), budget)]

    def _launch_streams(self, reads: bool) -> int:
        """Streams of the launch that come from L3 (reads), or go there."""
        ends = [(stream.puts if reads else stream.gets) for stream in self.streams.values()]
        return sum(any(end.side.space == 0 for end in each) for each in ends)

    def _cut(
        self, buffer: SSAValue, used: list[tuple[Stream, End]], budget: dict[bool, int]
    ) -> Iterator[Part]:
        puts = _by_stream((stream, end) for stream, end in used if end.side.reads)
        gets = _by_stream((stream, end) for stream, end in used if not end.side.reads)
        many, single = (puts, gets) if len(puts) >= len(gets) else (gets, puts)
        places = self._places(buffer, many, single, budget)
        if len(places) < 2:
            yield Part(buffer, 1, 0, puts, gets)
            return
        for place, keys in enumerate(places):
            own = [entry for entry in many if entry[0].key in keys]
            others = [(_member(stream, place), ends) for stream, ends in single]
            pair = (own, others) if many is puts else (others, own)
            yield Part(buffer, len(places), place, *pair)

    def _places(self, buffer: SSAValue, many: Uses, single: Uses, budget: dict[bool, int]) -> list[set[Key]]:
        """The streams of each part; fewer than two where the buffer stays whole."""
        if len(many) < 2 or len(single) > 1 or buffer.owner.attributes.get("air.no_split"):  # type: ignore[union-attr]
            return []
        if any(stream.cores(end) for stream, ends in single for end in ends):
            return []
        offsets = {stream.key: ends[0].offsets for stream, ends in many}
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

    def _affordable(self, single: Uses, factor: int, budget: dict[bool, int]) -> bool:
        """Whether the shim has channels for the streams of L3 that come of a cut; takes them if so."""
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
    def memtiles(self) -> list[Memtile]:
        """The memtiles with what is in them."""
        tiles = [Memtile() for _ in range(max(1, self.scope.memtiles // self.scope.copies))]
        buckets = _buckets(self.parts)
        columns = [_only(set().union(*(part.columns() for part in bucket))) for bucket in buckets]
        wanted = Counter(column for column in columns if column is not None)
        if any(count > 1 for count in wanted.values()):
            _in_turns(tiles, buckets)
        else:
            _by_column(tiles, buckets, columns)
        return tiles

    def channels(self, tile: Memtile) -> Mapping[tuple[bool, int], list[tuple[Stream, Part, list[End]]]]:
        """The streams on each channel of a memtile, by (whether it sends, number)."""
        found: dict[tuple[bool, int], list[tuple[Stream, Part, list[End]]]] = defaultdict(list)
        limits = self.scope.device.memtile
        for sends, most in ((True, limits.mm2s_channels), (False, limits.s2mm_channels)):
            uses = [
                (stream, part, ends)
                for part in tile.parts
                for stream, ends in (part.puts if sends else part.gets)
            ]
            numbers: dict[Key, int] = {}
            for stream, part, ends in sorted(uses, key=lambda use: not _touches_l3(use[0])):
                number = numbers.setdefault(stream.key, len(numbers))
                found[sends, number if number < most else 0].append((stream, part, ends))
        return found

    def descriptors(self, part: Part, end: End) -> int:
        """Descriptors of one transfer of an L2 buffer: one for each copy, and each step of loops that no
        descriptor walks."""
        if self.shrunk.get(part.buffer, end.side.op) is not end.side.op:
            return 0
        return self.scope.buffers_of(part.buffer) * _steps(end.side, self.scope.device.memtile)

    @cached_property
    def shrunk(self) -> dict[SSAValue, Operation]:
        """Buffers that air-shrink-memref-sizes-by-access cuts to the size of one transfer, with the first of
        several transfers of a buffer and a direction, which become one: nothing but transfers uses them, all
        of one size, each of a part."""
        found: dict[SSAValue, Operation] = {}
        for buffer, used in _by_buffer(self.scope.sides).items():
            if len(used) > 2 and len({side.sizes for side in used}) == 1 and _are_parts(used):
                found[buffer] = used[0].op
        return found

    def bytes_of(self, tile: Memtile) -> int:
        """Bytes of L2 in a memtile."""
        sizes = (
            (memref_bytes(part.buffer.type) or 0) // part.share * self.scope.buffers_of(part.buffer)
            for part in tile.parts
        )
        return sum(sizes)

    # ---- shim tiles ----

    @cached_property
    def shim_tiles(self) -> dict[object, tuple[int, int]]:
        """Channels (from L3, to L3) that each group of shim tiles must have: those of one column, or of a
        memtile that serves several. Broadcasts, which may go anywhere, are under None."""
        found: dict[object, list[set[Key]]] = defaultdict(lambda: [set(), set()])
        homes = {id(part): tile for tile in self.memtiles for part in tile.parts}
        for part in self.parts:
            for sends, uses in ((False, part.gets), (True, part.puts)):
                for stream, _ in uses:
                    if _touches_l3(stream):
                        found[self._pin(stream) or self._group(homes[id(part)])][sends].add(stream.key)
        for stream in self.streams.values():
            core = next((end.core for end in stream.ends if end.core is not None), None)
            if core is not None and _touches_l3(stream):
                key = None if self._is_flexible(stream) else ("column", self._column(stream, core))
                found[self._pin(stream) or key][bool(stream.gets and stream.gets[0].side.space == 0)].add(
                    self._lane(stream)
                )
        return {key: (len(into), len(out)) for key, (into, out) in found.items()}

    @property
    def shim_tiles_needed(self) -> int:
        """Shim tiles that the streams of L3 take."""
        each = self.scope.device.shim.mm2s_channels
        rigid = [counts for key, counts in self.shim_tiles.items() if key is not None]
        tiles = [max(-(-into // each), -(-out // each)) for into, out in rigid]
        free = sum(count * each - into for count, (into, _) in zip(tiles, rigid, strict=True))
        flexible = self.shim_tiles.get(None, (0, 0))[0]
        return sum(tiles) + max(0, -(-(flexible - free) // each))

    def _pin(self, stream: Stream) -> object:
        """The column of the shim that a channel names (`air.shim_col`), None for any other stream."""
        channel = self.scope.program.channels.get(str(stream.key[0]))
        column = None if channel is None else integer_attribute(channel, "air.shim_col")
        return None if column is None else ("column", column)

    def _group(self, tile: Memtile) -> object:
        """What decides which shim tiles feed a memtile: its column, or else the memtile itself."""
        if tile.column is not None:
            return "column", tile.column
        uses = [use for part in tile.parts for use in (*part.puts, *part.gets)]
        column = _only({x for stream, ends in uses for end in ends for x, _ in stream.cores(end)})
        return ("memtile", id(tile)) if column is None else ("column", column)

    def _column(self, stream: Stream, core: tuple[int, int]) -> object:
        """The column of a core; of herds that are placed beside others, one of their own."""
        herd = next(end.herd for end in stream.ends if end.herd is not None)
        pin = integer_attribute(herd, "x_loc")
        if pin is None and len(self.scope.herds) > 1:
            return herd.sym_name, core[0]
        return (pin or 0) + core[0]

    def _is_flexible(self, stream: Stream) -> bool:
        return (
            stream.puts[:1] != []
            and stream.puts[0].side.space == 0
            and len(stream.gets) > 1
            and not self._is_packet(stream)
        )

    def _lane(self, stream: Stream) -> Key:
        """Streams of packets share a channel of their shim tile."""
        return ("packets",) if self._is_packet(stream) else stream.key

    def _is_packet(self, stream: Stream) -> bool:
        if (
            isinstance(stream.key[0], str)
            and self.scope.program.channel_type(stream.key[0]) == "npu_dma_packet"
        ):
            return True
        return (
            bool(stream.puts)
            and bool(stream.gets)
            and stream.puts[0].side.space in self.made_packets
            and _is_direct(stream, stream.puts[0].side.space)
        )

    @cached_property
    def made_packets(self) -> frozenset[int]:
        """The directions between L3 and cores, 0 to the cores and 2 from them, whose streams become packets:
        too many for the shim channels of a column (air-dma-to-channel)."""
        return frozenset(
            space for space in (0, 2) if self._pressure(space) > self.scope.device.shim.mm2s_channels
        )

    def _pressure(self, space: int) -> int:
        """Streams that may want one column of the shim, as air-dma-to-channel reckons: channels by name, and
        broadcasts over several columns in equal shares."""
        declared: dict[Key, Stream] = {}
        for stream in self.streams.values():
            if stream.puts and stream.gets and _is_direct(stream, space):
                is_one = len(stream.ends) > 2
                declared.setdefault(stream.key if is_one else stream.key[:1], stream)
        spans = Counter(len({end.core[0] for end in stream.ends if end.core}) for stream in declared.values())
        return sum(-(-count // max(1, span)) for span, count in spans.items())


@lru_cache(maxsize=64)
def array_of(scope: Scope) -> Array:
    """What aircc makes of a configuration, worked out once."""
    return Array(scope)


def _is_direct(stream: Stream, space: int) -> bool:
    """Whether a stream joins L3 and cores, from the given memory."""
    return (stream.puts[0].side.space, stream.gets[0].side.space) == (space, 2 - space)


def _is_broadcast(channel: ChannelOp) -> bool:
    return "broadcast_shape" in channel.properties or "broadcast_shape" in channel.attributes


def _touches_l3(stream: Stream) -> bool:
    return any(end.side.space == 0 for end in stream.ends)


def _member(stream: Stream, number: int) -> Stream:
    """The part of a stream that is for one part of a buffer."""
    return Stream((*stream.key, "part", number), stream.puts, stream.gets)


def _by_buffer(sides: list[Side]) -> dict[SSAValue, list[Side]]:
    """The transfers of buffers that nothing else uses."""
    found: dict[SSAValue, list[Side]] = defaultdict(list)
    for side in sides:
        buffer = origin(side.memref)
        if isinstance(buffer.owner, memref.AllocOp) and buffer is side.memref:
            found[buffer].append(side)
    return {
        buffer: used
        for buffer, used in found.items()
        if {use.operation for use in buffer.uses if use.operation.name != "memref.dealloc"}
        == {s.op for s in used}
    }


def _are_parts(used: list[Side]) -> bool:
    """Whether every transfer is of a part, at an offset that is a constant."""
    volumes = [math.prod(size for size, _ in side.known_dims or ()) for side in used]
    whole = math.prod(used[0].type.get_shape())
    offsets = [number(offset) for side in used for offset in side.offsets]
    return None not in offsets and all(side.offsets for side in used) and max(volumes) < whole


def _by_stream(used: Iterator[tuple[Stream, End]]) -> Uses:
    found: dict[Key, tuple[Stream, list[End]]] = {}
    for stream, end in used:
        found.setdefault(stream.key, (stream, []))[1].append(end)
    return list(found.values())


def _first_difference(offsets: list[tuple[int | None, ...]]) -> int | None:
    """The outermost dimension in which offsets differ; None where there is none, or ranks differ."""
    if len({len(each) for each in offsets}) != 1:
        return None
    return next((d for d, each in enumerate(zip(*offsets, strict=True)) if len(set(each)) > 1), None)


def _only(columns: set[int]) -> int | None:
    return next(iter(columns)) if len(columns) == 1 else None


def _buckets(parts: list[Part]) -> list[list[Part]]:
    """Parts that share a stream stand together."""
    buckets: list[list[Part]] = []
    for part in parts:
        keys = {stream.key for stream, _ in (*part.puts, *part.gets)}
        home = next(
            (b for b in buckets if any(keys & {s.key for s, _ in (*p.puts, *p.gets)} for p in b)), None
        )
        if home is None:
            buckets.append([part])
        else:
            home.append(part)
    return buckets


def _in_turns(tiles: list[Memtile], buckets: list[list[Part]]) -> None:
    """Those of one shape around the memtiles; shapes of their own in a common turn."""
    alike = Counter(bucket[0].shape for bucket in buckets)
    turns: Counter[object] = Counter()
    for bucket in buckets:
        turn = bucket[0].shape if alike[bucket[0].shape] > 1 else None
        tiles[turns[turn] % len(tiles)].parts += bucket
        turns[turn] += 1


def _by_column(tiles: list[Memtile], buckets: list[list[Part]], columns: list[int | None]) -> None:
    """Each to the memtile of its column; the others to what is left, then in turns."""
    free = list(tiles)
    for bucket, column in zip(buckets, columns, strict=True):
        if column is not None:
            tile = free.pop(0) if free else Memtile()
            if tile not in tiles:
                tiles.append(tile)
            tile.column = column
            tile.parts += bucket
    others = [bucket for bucket, column in zip(buckets, columns, strict=True) if column is None]
    for turn, bucket in enumerate(others):
        tile = free.pop(0) if free else tiles[turn % len(tiles)]
        tile.parts += bucket


def _steps(side: Side, limits: DmaLimits) -> int:
    """How many descriptors one transfer becomes: loops that its offsets depend on are dimensions while there
    are any left, and are unrolled else."""
    dims = side.known_dims
    if dims is None:
        return 1
    walk, unrolled = _merged(dims), 1
    for loop in _loops(side):
        count, stride = trips(loop), _stride(side, loop)
        if not count or count == 1 or not stride:
            continue
        longer = _merged([(count, stride), *walk])
        if (
            unrolled == 1
            and len(longer) <= limits.dims
            and all(size <= limits.max_wrap for size, _ in longer[:-1])
        ):
            walk = longer
        else:
            unrolled *= count
    return unrolled


def _merged(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for size, stride in dims:
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            size *= found.pop()[0]
        found.append((size, stride))
    return found


def _loops(side: Side) -> Iterator[scf.ForOp]:
    """The loops around a transfer in its segment, innermost first."""
    for op in enclosing(side.op):
        if isinstance(op, scf.ForOp):
            yield op
        if isinstance(op, HierarchyOp) and not isinstance(op, HerdOp):
            return


def _stride(side: Side, loop: scf.ForOp) -> int | None:
    """How many elements further a transfer begins, one trip later."""
    variable, step = loop.body.block.args[0], number(loop.step)
    strides = side.strides[-len(side.offsets) :] if side.offsets else ()
    total = 0
    for offset, stride in zip(side.offsets, strides, strict=False):
        first, then = offset_at(offset, {}), offset_at(offset, {variable: step or 1})
        if first is None or then is None or stride is None:
            return None
        total += (then - first) * stride
    return total
