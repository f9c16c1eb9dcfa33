"""Object FIFOs as buffers, locks, descriptors and flows, as the compiler makes them.

A FIFO between cores that share memory is one pool of buffers; any other has a pool at its producer and one at
each consumer, with a DMA between them. What a link joins shares one pool: each part of its objects has a pair
of locks of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute

from aerie.air_dialect.aie import object_fifos as ops
from aerie.air_dialect.aie.formats import integer_of, integers
from aerie.common.shown_names import symbol_name
from aerie.virtual_npu.aie.design import (
    MEMTILE,
    SHIM,
    Bd,
    Buffer,
    Channel,
    Device,
    Dimension,
    LockUse,
    Place,
    place_of,
)
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.op_errors import line_of, unsupported

MAX_CHANNELS = {SHIM: 2, MEMTILE: 6}
"""DMA channels of a direction by row; a core's tile has two."""


@dataclass
class Pool:
    """The buffers of an end of a FIFO, with the locks of each part: how many are free, and how many full."""

    buffers: list[int]
    type: MemRefType
    locks: list[tuple[int, int]]
    parts: list[tuple[int, int]]
    """Offset and length of each part, in elements."""
    repeat: int = 1


@dataclass
class Fifo:
    """An object FIFO. ends: the pool of each tile, of the producer first; None for a shim, which has none."""

    op: ops.ObjectFifoOp
    pools: list[Pool | None] = field(default_factory=list)
    is_shared: bool = False
    """Whether producer and consumer use one pool."""

    @property
    def name(self) -> str:
        """Its symbol."""
        return self.op.sym_name.data

    @property
    def type(self) -> MemRefType:
        """The type of its objects."""
        buffer = self.op.fifo_type.buffer
        assert isinstance(buffer, MemRefType)
        return buffer

    @property
    def places(self) -> list[Place]:
        """Its tiles, the producer first."""
        return [place_of(tile) for tile in (self.op.producer, *self.op.consumers)]

    def depth(self, end: int) -> int:
        """How many buffers the pool of an end has."""
        depths = integers(self.op.depths)
        return depths[0] if len(depths) == 1 else depths[end]


@dataclass(frozen=True)
class _Link:
    op: ops.ObjectFifoLinkOp
    sources: list[Fifo]
    dests: list[Fifo]


def lower_object_fifos(device: Device) -> dict[str, Fifo]:
    """Add what the object FIFOs of a device consist of to its tables; gives them by name.

    Raises UnsupportedOpError for a form that is not built.
    """
    found = {
        op.sym_name.data: Fifo(op) for op in device.op.body.block.ops if isinstance(op, ops.ObjectFifoOp)
    }
    links = [_link(op, found) for op in device.op.body.block.ops if isinstance(op, ops.ObjectFifoLinkOp)]
    for fifo in found.values():
        _check(fifo)
        fifo.pools = [None] * len(fifo.places)
    for link in links:
        _make_linked_pool(device, link)
    linked = {fifo.name for link in links for fifo in (*link.sources, *link.dests)}
    for fifo in found.values():
        fifo.is_shared = fifo.name not in linked and _shares_memory(fifo)
        _make_pools(device, fifo)
        if not fifo.is_shared:
            _connect(device, fifo)
    return found


_NOT_BUILT = ("aie_stream", "iter_count", "plio")


def _check(fifo: Fifo) -> None:
    for name in _NOT_BUILT:
        if integer_of(fifo.op, name, 0):
            raise unsupported(fifo.op, f"{name} of {symbol_name(fifo.name)} is not supported")
    values = fifo.op.initial_values
    if values is not None and len(values.data) != fifo.depth(0):
        raise unsupported(
            fifo.op,
            f"{symbol_name(fifo.name)} has {fifo.depth(0)} objects and {len(values.data)} initial values: "
            "give one for each",
        )
    if values is not None and fifo.places[0][1] == SHIM:
        raise unsupported(
            fifo.op, f"{symbol_name(fifo.name)} begins at a shim, which holds no initial values"
        )


def _link(op: ops.ObjectFifoLinkOp, fifos: dict[str, Fifo]) -> _Link:
    names = [[ops.symbol_of(reference) for reference in side.data] for side in (op.sources, op.dests)]
    for name in (*names[0], *names[1]):
        if name not in fifos:
            raise unsupported(op, f"no aie.objectfifo {symbol_name(name)}")
    if len(names[0]) > 1 and len(names[1]) > 1:
        raise unsupported(op, "joins and distributes at once: write two links")
    return _Link(op, *([fifos[name] for name in side] for side in names))


# ---- pools ----


def _make_linked_pool(device: Device, link: _Link) -> None:
    """One pool for all FIFOs that a link joins: of the whole objects, cut where the offsets say."""
    sources, dests = link.sources, link.dests
    is_join = len(sources) > 1
    whole = dests[0] if is_join else sources[0]
    place = place_of(dests[0].op.producer)
    end = 0 if is_join else whole.places.index(place)
    parts = sources if is_join else dests
    offsets = integers(link.op.source_offsets if is_join else link.op.dest_offsets)
    size = prod(whole.type.get_shape())
    starts = offsets or [0] * len(parts)
    if len(starts) != len(parts):
        raise unsupported(link.op, f"has {len(parts)} parts and {len(starts)} offsets: give one for each")
    if sorted(starts) != starts:
        raise unsupported(
            link.op,
            f"its offsets {starts} do not rise: the compiler takes a part to end where the next one "
            "begins, so name the FIFOs in the order of their offsets",
        )
    stops = [*starts[1:], size] if len(parts) > 1 else [size]
    cut = [(start, stop - start) for start, stop in zip(starts, stops, strict=True)]
    repeat = max(integer_of(fifo.op, "repeat_count", 1) for fifo in dests)
    depth = max(whole.depth(end), 1)
    pool = _pool(device, whole, place, depth, whole.name, cut, repeat, ())
    for fifo in sources:
        fifo.pools[fifo.places.index(place, 1)] = _part_of(pool, sources.index(fifo), is_join)
    for fifo in dests:
        fifo.pools[0] = _part_of(pool, dests.index(fifo), len(dests) > 1)


def _part_of(pool: Pool, number: int, is_part: bool) -> Pool:
    """The pool as a FIFO sees it that has only one part of each object."""
    if not is_part:
        return pool
    return Pool(pool.buffers, pool.type, [pool.locks[number]], [pool.parts[number]], pool.repeat)


def _pool(
    device: Device, fifo: Fifo, place: Place, depth: int, name: str, parts: Sequence[tuple[int, int]],
    repeat: int, initial: Sequence[Attribute],
) -> Pool:  # fmt: skip
    buffers = [
        device.add_buffer(
            Buffer(f"{name}_buff_{n}", place, fifo.type, initial[n] if n < len(initial) else None)
        )
        for n in range(depth)
    ]
    locks = []
    for number in range(len(parts)):
        free = device.add_lock(f"{name}_prod_lock_{number}", place, (depth - len(initial)) * repeat)
        full = device.add_lock(f"{name}_cons_lock_{number}", place, len(initial) * repeat)
        locks.append((free, full))
    return Pool(buffers, fifo.type, locks, list(parts), repeat)


def _make_pools(device: Device, fifo: Fifo) -> None:
    size = prod(fifo.type.get_shape())
    values = list(fifo.op.initial_values.data) if fifo.op.initial_values is not None else []
    for end, place in enumerate(fifo.places):
        if fifo.pools[end] is not None or place[1] == SHIM:
            continue
        if fifo.is_shared and end > 0:
            fifo.pools[end] = fifo.pools[0]
            continue
        name = (
            fifo.name
            if end == 0
            else f"{fifo.name}_cons"
            if len(fifo.places) == 2
            else f"{fifo.name}_{end - 1}_cons"
        )
        repeat = integer_of(fifo.op, "repeat_count", 1) if end == 0 else 1
        depth = max(fifo.depth(end), 1)
        fifo.pools[end] = _pool(
            device, fifo, place, depth, name, [(0, size)], repeat, values if end == 0 else ()
        )


def _shares_memory(fifo: Fifo) -> bool:
    """Whether the two tiles of a FIFO are cores that reach one memory, and nothing asks for a DMA."""
    places = fifo.places
    if len(places) != 2 or min(place[1] for place in places) <= MEMTILE or integer_of(fifo.op, "via_DMA", 0):
        return False
    if fifo.op.to_stream is not None and integers(fifo.op.to_stream):
        return False
    if fifo.op.from_stream is not None or integer_of(fifo.op, "repeat_count", 1) > 1:
        return False
    columns, rows = (abs(a - b) for a, b in zip(*places, strict=True))
    return bool(columns + rows <= 1)


# ---- DMAs ----


def _connect(device: Device, fifo: Fifo) -> None:
    """The channels of a FIFO, their descriptors, and the flows between them."""
    places = fifo.places
    source = _free_channel(
        device, fifo, places[0], sends=True, pinned=integer_of(fifo.op, "prod_dma_channel", -1)
    )
    device.note_pad_value(source, fifo.op, "padValue")
    _fill(device, fifo, source, 0, _dimensions(fifo.op.to_stream, fifo.op))
    for end, place in enumerate(places[1:], 1):
        sink = _free_channel(device, fifo, place, sends=False)
        given = fifo.op.from_stream.data[end - 1] if fifo.op.from_stream is not None else None
        _fill(device, fifo, sink, end, _dimensions(given, None))
        device.flows.append((source, sink))


def _free_channel(device: Device, fifo: Fifo, place: Place, *, sends: bool, pinned: int = -1) -> Channel:
    most = MAX_CHANNELS.get(place[1], 2)
    for number in range(most) if pinned < 0 else (pinned,):
        channel = Channel(place, sends, number)
        if channel not in device.channels:
            device.channel(place, sends, number)
            return channel
    direction = "MM2S" if sends else "S2MM"
    raise unsupported(
        fifo.op,
        f"{symbol_name(fifo.name)} needs one more {direction} channel of tile {place}, which has {most}",
    )


def _fill(device: Device, fifo: Fifo, channel: Channel, end: int, dimensions: list[Dimension]) -> None:
    """The descriptors of a channel: in turn over the parts of the buffers of its pool."""
    pool = fifo.pools[end]
    if pool is None:
        device.allocations[fifo.name] = channel, None
        device.allocations[f"{fifo.name}_shim_alloc"] = channel, None
        return
    width = types.byte_width(pool.type.element_type)
    chain: list[int] = []
    times = pool.repeat if channel.sends else 1
    count = 1 if channel.sends else pool.repeat
    for buffer in pool.buffers:
        for _ in range(times):
            for (offset, length), (free, full) in zip(pool.parts, pool.locks, strict=True):
                padded = prod(d.size + d.before + d.after for d in dimensions) if dimensions else length
                bd = Bd(line_of(fifo.op), len(chain), buffer, offset, max(length, padded), width, dimensions)
                if not integer_of(fifo.op, "disable_synchronization", 0):
                    bd.acquire = LockUse(full if channel.sends else free, count)
                    bd.release = LockUse(free if channel.sends else full, count)
                chain.append(device.add_bd(bd))
    for number, following in zip(chain, chain[1:] + chain[:1], strict=True):
        device.bds[number].next = following
    device.add_task(channel, chain[0])


def _dimensions(given: Attribute | None, op: ops.ObjectFifoOp | None) -> list[Dimension]:
    numbers = integers(given)
    pads = ops.padding_of(op) if op is not None else []
    pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
    pads = pads or [(0, 0)] * len(pairs)
    return [Dimension(size, stride, *pad) for (size, stride), pad in zip(pairs, pads, strict=True)]
