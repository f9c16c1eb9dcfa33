"""The streams of a placed program: which transfers send to which.

One stream is one member of a channel, or a DMA of a herd for one core, row or column of cores. After
mlir-air's `air-broadcast-detection` and `air-dma-to-channel` (e972f294): a DMA whose offsets depend on no
tile id along a side of the herd is one broadcast along that side. Only what is known is modelled: indices
that are constants, tile ids, or indices of an `scf.parallel`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from xdsl.ir import Operation

from aerie.air_dialect.index_constants import Known, constant_int, leaves
from aerie.air_dialect.ops import ChannelOp, ChannelTransferOp, DmaMemcpyNdOp, HerdOp
from aerie.air_dialect.values import root_value
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.conditions import may_run_on
from aerie.device.transfers import TransferSide, extents, length, parallel_range

Core = tuple[int, int]
"""(column, row) of a core in its herd."""
Key = tuple[object, ...]
Position = tuple[object, ...]
"""The indices of a member of a bundle: numbers, or the values that they are computed from."""
MAX_MEMBERS = 1024
"""Maximum number of streams of one transfer that are counted separately."""


@dataclass(frozen=True)
class StreamEnd:
    """One end of a stream: a transfer in L3, of an L2 buffer, or on some core.

    offsets: the offsets of the side in the first iteration of its loops; None for an unknown one.
    """

    side: TransferSide
    core: Core | None = None
    herd: HerdOp | None = None
    offsets: tuple[int | None, ...] = ()


@dataclass
class DeviceStream:
    """The ends that put into a stream, and the ends that get from it."""

    key: Key
    puts: list[StreamEnd] = field(default_factory=list)
    gets: list[StreamEnd] = field(default_factory=list)

    @property
    def ends(self) -> list[StreamEnd]:
        """All ends."""
        return [*self.puts, *self.gets]

    def cores(self, end: StreamEnd) -> set[Core]:
        """The cores at the other end of the stream."""
        others = self.gets if end.side.reads else self.puts
        return {other.core for other in others if other.core is not None}


def device_streams(
    sides: list[TransferSide], broadcast: bool, channels: Mapping[str, ChannelOp]
) -> dict[Key, DeviceStream]:
    """Every stream that the sides make, in the order of the text.

    broadcast: whether DMAs that depend on no tile id become one (not so with `--omit-auto-broadcast`).
    channels: by name. A channel of one member has one stream, with indices or without; a get of one that is
    broadcast names a member by what is left of its indices.
    """
    streams: dict[Key, DeviceStream] = {}
    for side in sides:
        for key, end in _members(side, broadcast, channels):
            stream = streams.setdefault(key, DeviceStream(key))
            (stream.puts if side.reads else stream.gets).append(end)
    return streams


def _members(
    side: TransferSide, broadcast: bool, channels: Mapping[str, ChannelOp]
) -> Iterator[tuple[Key, StreamEnd]]:
    herd = next((op for op in parent_ops(side.op) if isinstance(op, HerdOp)), None)
    if isinstance(side.op, DmaMemcpyNdOp):
        yield from _of_dma(side, herd, broadcast)
    elif isinstance(side.op, ChannelTransferOp):
        yield from _of_channel(side, side.op, herd, channels.get(side.op.chan_name))


def _of_dma(side: TransferSide, herd: HerdOp | None, broadcast: bool) -> Iterator[tuple[Key, StreamEnd]]:
    if herd is None:
        yield (side.op,), StreamEnd(side, offsets=_at(side, _origins(side), {}))
        return
    origins = _origins(side)
    varies = depends_on_tile_ids(side.op, herd) if broadcast else (True, True)
    for core, bindings in cores(herd):
        if may_run_on(side.op, herd, bindings):
            shared = tuple(at if depends else 0 for at, depends in zip(core, varies, strict=True))
            end = StreamEnd(side, core if side.space == 2 else None, herd, _at(side, origins, bindings))
            if side.space == 2 or shared == core:
                yield (side.op, *shared), end


def depends_on_tile_ids(op: Operation, herd: HerdOp) -> tuple[bool, bool]:
    """Whether a DMA depends on the column and on the row of its core, as broadcast detection sees it: by its
    own operands, not by the bounds of loops around it."""
    assert isinstance(op, DmaMemcpyNdOp)
    values = [
        *op.src_offsets,
        *op.src_sizes,
        *op.src_strides,
        *op.dst_offsets,
        *op.dst_sizes,
        *op.dst_strides,
    ]
    used = {root_value(leaf) for value in values for leaf in leaves(value)}
    column, row = ((*herd.ids, None, None))[:2]
    return column in used, row in used


def cores(herd: HerdOp) -> Iterator[tuple[Core, Known]]:
    """The cores of a herd with their ids; at most 16 columns and rows."""
    columns, rows = (min(extent, 16) for extent in (*extents(herd), 1, 1)[:2])
    for core in itertools.product(range(columns), range(rows)):
        yield core, dict(zip(herd.ids, core, strict=False))


def _of_channel(
    side: TransferSide, op: ChannelTransferOp, herd: HerdOp | None, channel: ChannelOp | None
) -> Iterator[tuple[Key, StreamEnd]]:
    origins = _origins(side)
    places: list[tuple[Core | None, Known]] = [(None, {})] if herd is None else list(cores(herd))
    for core, bindings in places:
        if herd is not None and not may_run_on(op, herd, bindings):
            continue
        for position, at in positions(op, bindings):
            member = position if channel is None else _member(position, channel, side.reads)
            yield (op.chan_name, *member), StreamEnd(side, core, herd, _at(side, origins, at))


def _member(position: Position, channel: ChannelOp, reads: bool) -> Position:
    """The member that a position refers to; for a get of a broadcast, the member that it receives."""
    if math.prod(channel.size) == 1:
        return ()
    if reads or not is_broadcast(channel):
        return position
    pairs = zip(position, channel.size, strict=False)
    return tuple(min(at, most - 1) if isinstance(at, int) else at for at, most in pairs)


def is_broadcast(channel: ChannelOp) -> bool:
    """Whether each member of a channel has several receivers."""
    return "broadcast_shape" in channel.properties or "broadcast_shape" in channel.attributes


def positions(op: ChannelTransferOp, bindings: Known) -> list[tuple[Position, Known]]:
    """The members that a transfer names on one core, each with the indices of parallel loops that name it."""
    free = [leaf for index in op.indices for leaf in leaves(index) if constant_int(leaf, bindings) is None]
    spaces = {leaf: parallel_range(leaf) for leaf in dict.fromkeys(free)}
    ranges = {
        leaf: values_range
        for leaf, values_range in spaces.items()
        if values_range is not None and length(values_range) <= MAX_MEMBERS
    }
    result: list[tuple[Position, Known]] = []
    for values in itertools.islice(itertools.product(*ranges.values()), MAX_MEMBERS):
        at = {**bindings, **dict(zip(ranges, values, strict=True))}
        numbers = [constant_int(index, at) for index in op.indices]
        named = [root_value(i) if n is None else n for i, n in zip(op.indices, numbers, strict=True)]
        result.append((tuple(named), at))
    return result


def _origins(side: TransferSide) -> list[Known]:
    """For each offset, every variable that it depends on, at 0."""
    return [dict.fromkeys(leaves(value), 0) for value in side.offsets]


def _at(side: TransferSide, origins: list[Known], bindings: Known) -> tuple[int | None, ...]:
    """The offsets at some tile ids, with every other variable at 0."""
    pairs = zip(side.offsets, origins, strict=True)
    return tuple(constant_int(value, {**origin, **bindings}) for value, origin in pairs)
