"""The members of a bundle of channels: each must have both of its ends, on tiles that one flow joins.

After mlir-air at e972f294. air-to-aie makes a channel of each member and a flow of each channel
(AIRToAIEPass.cpp, AIRToAIESchedulingUtils.cpp). A member that L3 puts and nobody gets, or the other way
round, it refuses; of several cores at one end it keeps the last, and the others lose their flows without a
word. The host's side then looks up a member by its number among those that have flows (AIRLoweringPass.cpp).
air-specialize-dma-broadcast cuts a broadcast bundle into channels before (AIRMiscPasses.cpp).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from xdsl.ir import Operation

from aerie.air_dialect.ops import ChannelGetOp, ChannelOp, ChannelTransferOp, HerdOp
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.conditions import may_run_on
from aerie.device.memtile_allocation import allocate_array
from aerie.device.npu2 import ALLOCATION, LOWERING, SPECIALIZE_BROADCAST, TO_AIE
from aerie.device.report import Fault, Finding
from aerie.device.scopes import PACKET, ArrayConfiguration, op_location
from aerie.device.streams import DeviceStream, Position, StreamEnd, cores, is_broadcast, positions
from aerie.device.transfers import TransferSide, extents

ChannelMembers = Mapping[Position, DeviceStream]
MAX_NAMED = 3
"""Most members that a message names."""


def check_members(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Bundles, and channels of one member, whose ends do not meet."""
    for name, streams in _by_channel(scope).items():
        channel = scope.program.channels.get(name)
        if (
            channel is None
            or not any(s.puts for s in streams.values())
            or not any(s.gets for s in streams.values())
        ):
            continue  # its other end is in another configuration, or nowhere, which `channels.types` reports
        yield from _unpaired(name, streams)
        yield from _several_cores(scope, channel, streams)
        yield from _numbers_at_the_host(channel, streams)


def _by_channel(scope: ArrayConfiguration) -> dict[str, dict[Position, DeviceStream]]:
    """The members of each channel all of whose indices are known."""
    by_channel: dict[str, dict[Position, DeviceStream]] = {}
    unknown = set()
    for key, stream in allocate_array(scope).streams.items():
        name, *at = key
        if isinstance(name, str):
            if not _is_beyond(at, scope.program.channels.get(name)):
                by_channel.setdefault(name, {})[tuple(at)] = stream
            if not all(isinstance(index, int) for index in at):
                unknown.add(name)
    return {name: streams for name, streams in by_channel.items() if name not in unknown}


def _is_beyond(at: Sequence[object], channel: ChannelOp | None) -> bool:
    """Whether it is no member, which `check_member_indices` reports."""
    return channel is not None and any(map(_outside, at, channel.size))


def _named(name: str, at: Sequence[Position]) -> str:
    shown = ", ".join(f"@{name}{list(position) or ''}" for position in at[:MAX_NAMED])
    return f"{shown} and {len(at) - MAX_NAMED} more" if len(at) > MAX_NAMED else shown


# ---- members with one end ----


def _unpaired(name: str, members: ChannelMembers) -> Iterator[Fault]:
    sides = (
        ("put and never got", {at: stream.puts for at, stream in members.items() if not stream.gets}),
        ("got and never put", {at: stream.gets for at, stream in members.items() if not stream.puts}),
    )
    for what, lonely in sides:
        if lonely:
            op = next(iter(lonely.values()))[0].side.op
            waits = "so a core or memtile waits for ever"
            of_l3 = any(end.side.space == 0 for ends in lonely.values() for end in ends)
            why = "for which air-to-aie finds no tile at the other end" if of_l3 else waits
            verb = "is" if len(lonely) == 1 else "are"
            message = f"{_named(name, list(lonely))} {verb} {what}, {why}; use the same members on both sides"
            yield Fault("unpaired", op_location(op), message, ALLOCATION, op)


# ---- several cores at one end ----


def _several_cores(scope: ArrayConfiguration, channel: ChannelOp, members: ChannelMembers) -> Iterator[Fault]:
    if scope.program.channel_type(channel.sym_name) == PACKET:
        return
    for at, stream in members.items():
        name = _named(channel.sym_name, [at])
        if (count := _count(stream.puts)) > 1:
            op, advice = stream.puts[0].side.op, "use npu_dma_packet"
            yield Fault("fan-in", op_location(op), _lost(count, "put into", name, advice), ALLOCATION, op)
            return
        if (count := _count(stream.gets)) > 1 and not is_broadcast(channel):
            op, advice = stream.gets[0].side.op, "give the channel a broadcast_shape"
            yield Fault("fan-out", op_location(op), _lost(count, "get from", name, advice), ALLOCATION, op)
            return


def _lost(count: int, what: str, name: str, advice: str) -> str:
    return (
        f"{count} cores {what} {name}: a flow joins two tiles, so air-to-aie keeps one core and drops the "
        f"others' flows without a word; let each core use a member of its own, or {advice}"
    )


def _count(ends: Sequence[StreamEnd]) -> int:
    return len({_core(end) for end in ends if end.core is not None})


def _core(end: StreamEnd) -> object:
    """A core: phases of one herd share theirs."""
    return end.herd and (end.herd.sym_name or id(end.herd)), end.core


# ---- how the host finds a member ----


def _numbers_at_the_host(channel: ChannelOp, members: ChannelMembers) -> Iterator[Fault]:
    """A transfer of L3 whose member's number is none of those that have flows."""
    extents = channel.size
    flows = [at for at, stream in members.items() if stream.puts and stream.gets]
    if math.prod(extents) <= len(flows):
        return
    for at in flows:
        host = next((end.side.op for end in members[at].ends if end.side.space == 0), None)
        number = _number(at, extents)
        if host is not None and number >= len(flows):
            message = (
                f"{_named(channel.sym_name, [at])} is number {number}, and {len(flows)} of the channel's "
                f"{math.prod(extents)} members are used: the host's side looks for it by that number among "
                "those used and finds none; use the first members of the bundle, or make it smaller"
            )
            yield Fault("bundle-index", op_location(host), message, LOWERING, host)
            return


def _number(at: Position, extents: Sequence[int]) -> int:
    """A member's number, the last index fastest."""
    number = 0
    for index, extent in zip(at, extents, strict=False):
        number = number * extent + int(str(index))
    return number


# ---- indices that no member has ----


def check_member_indices(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Indices beyond the bundle on some core; those that are constants the dialect refuses itself."""
    seen: set[Operation] = set()
    for side in scope.sides:
        op = side.op
        if isinstance(op, ChannelTransferOp) and op not in seen:
            seen.add(op)
            channel = scope.program.channels.get(op.chan_name)
            if channel is not None and op.indices:
                yield from _beyond(side, op, channel)


def _beyond(side: TransferSide, op: ChannelTransferOp, channel: ChannelOp) -> Iterator[Fault]:
    extents = channel.size if side.reads else channel.broadcast_shape or channel.size
    if math.prod(extents) == 1:
        return  # all indices of a single channel name it
    for at in _reached(op):
        pairs = enumerate(zip(at, extents, strict=False))
        ignored = 1 if is_broadcast(channel) else 0  # an extent along which a broadcast looks at no index
        axis = next((i for i, (n, most) in pairs if most != ignored and _outside(n, most)), None)
        if axis is not None:
            message = (
                f"index {axis} of @{channel.sym_name} is {at[axis]}, and the channel has {extents[axis]} "
                "members there: air-to-aie takes the transfer out, and the core goes on without its data; "
                "make the bundle as large as the herd"
            )
            yield Fault("bundle-index", op_location(op), message, TO_AIE, op)
            return


def _outside(index: object, extent: int) -> bool:
    return isinstance(index, int) and not 0 <= index < extent


def _reached(op: ChannelTransferOp) -> Iterator[Position]:
    """The members that a transfer names, on every core that runs it."""
    herd = next((parent for parent in parent_ops(op) if isinstance(parent, HerdOp)), None)
    places = [{}] if herd is None else [known for _, known in cores(herd) if may_run_on(op, herd, known)]
    return itertools.chain.from_iterable((at for at, _ in positions(op, known)) for known in places)


# ---- a broadcast bundle that is cut apart ----


def check_cut_broadcasts(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Cores that get the last part of a broadcast bundle in place of their own.

    The pass chooses the part by affine.if on the ids of the herd, and bounds the id that is not the index by
    the number of columns, rows too. Cores of further rows fall through to the last part.
    """
    if scope.program.options.omit_auto_broadcast:
        return
    for op in scope.ops:
        herd = next((parent for parent in parent_ops(op) if isinstance(parent, HerdOp)), None)
        channel = scope.program.channels.get(op.chan_name) if isinstance(op, ChannelGetOp) else None
        if isinstance(op, ChannelGetOp) and herd is not None and channel is not None:
            yield from _cut_apart(op, herd, channel)


def _cut_apart(op: ChannelGetOp, herd: HerdOp, channel: ChannelOp) -> Iterator[Fault]:
    receivers = channel.broadcast_shape or []
    axis = next((i for i, extent in enumerate(channel.size) if extent > 1), None)
    if axis is None or len(receivers) != len(channel.size) or receivers[axis] < 2:
        return
    columns = extents(herd)[0]
    if op.indices[axis] is not herd.ids[0]:
        return
    last = receivers[axis] - 1
    wrong = [
        (x, y) for (x, y), known in cores(herd) if y >= columns and x != last and may_run_on(op, herd, known)
    ]
    if wrong:
        message = (
            f"core {wrong[0]} gets part {last} of @{channel.sym_name} in place of part {wrong[0][0]}, "
            f"without a word: a pass bounds the rows of the herd by its columns, {columns} of them, so this "
            f"holds from row {columns} on; give the herd as many columns as rows, or one column"
        )
        yield Fault("cut-broadcast", op_location(op), message, SPECIALIZE_BROADCAST, op)
