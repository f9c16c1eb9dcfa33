"""What a channel may be: what each type of it carries, what is pinned, and which member a transfer names."""

from __future__ import annotations

import math
from collections.abc import Iterator

from xdsl.dialects import memref, scf
from xdsl.dialects.builtin import AnyFloat, DenseIntOrFPElementsAttr, IntegerType, MemRefType, NoneAttr
from xdsl.ir import Attribute, Operation

from aerie.air_dialect.index_constants import constant_ints, leaves
from aerie.air_dialect.ops import (
    ChannelGetOp,
    ChannelOp,
    ChannelPutOp,
    ChannelTransferOp,
    HerdOp,
    HierarchyOp,
    LaunchOp,
    SegmentOp,
)
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.values import root_value
from aerie.air_dialect.verifiers import loop_of_induction_variable, parent_ops
from aerie.device.buffer_copies import trip_count
from aerie.device.npu2 import (
    ALLOCATION,
    CHANNEL_API,
    DIALECT,
    SCHEDULE_OPT,
    TO_AIE,
)
from aerie.device.report import Fault, Finding
from aerie.device.scopes import CheckedProgram, integer_attribute, op_location
from aerie.device.transfers import (
    memref_bytes,
    space_of,
)


def check_channel_types(program: CheckedProgram) -> Iterator[Finding]:
    """What channels of each type can do: packets, cascades, memory-mapped writes."""
    for channel in program.channels.values():
        if channel.channel_type == "gpu_symmetric_heap":
            message = f"@{channel.sym_name} is a channel of GPUs; an NPU has npu_dma_stream and the like"
            yield Fault("channel-type", op_location(channel), message, ALLOCATION, channel)
        if channel.old_channel_type is not None:
            message = (
                f'@{channel.sym_name} is of channel_type "{channel.old_channel_type}", which mlir-air refuses'
                f' since May 2026; write "{channel.channel_type}"'
            )
            yield Fault("channel-type", op_location(channel), message, DIALECT, channel)
        yield from _pinned_channels(program, channel)
        yield from _one_sided(program, channel)
    for op in program.module.walk():
        if not isinstance(op, ChannelTransferOp):
            continue
        kind = program.channel_type(op.chan_name)
        if kind == "npu_cascade":
            yield from _cascade(program, op)
        if kind == "npu_mmio" and isinstance(op, ChannelPutOp):
            yield from _memory_mapped(program, op)
        yield from _of_the_function(op)
        yield from _memtile_floor(program, op)
        yield from _without_index(program, op)


def _cascade(program: CheckedProgram, op: ChannelTransferOp) -> Iterator[Fault]:
    """The cascade joins neighbouring cores and carries 512 bits at a time."""
    place, type_ = op_location(op), op.memref.type
    space = space_of(type_)
    if space in (0, 1):
        message = (
            f"a cascade carries only what is in L1, not {attribute_text(type_)}; cores alone have it, so use "
            "npu_dma_stream"
        )
        yield Fault("cascade", place, message, ALLOCATION, op)
    if not isinstance(type_, MemRefType):
        return
    if not isinstance(type_.element_type, IntegerType | AnyFloat):
        message = f"a cascade carries integers or floats, not {attribute_text(type_.element_type)}"
        yield Fault("cascade", place, message, TO_AIE, op)
    nbytes, width = memref_bytes(type_), program.device.cascade_bits // 8
    if nbytes is not None and nbytes % width:
        message = (
            f"{nbytes} bytes go over the cascade, which carries {width} at a time; use a multiple of that"
        )
        yield Fault("cascade", place, message, TO_AIE, op)
    if nbytes is not None and nbytes > width and not isinstance(type_.layout, NoneAttr):
        message = (
            f"{nbytes} bytes go over the cascade {width} at a time, in the order of memory, but "
            f"{attribute_text(type_)} has a layout; use a buffer of its own"
        )
        yield Fault("cascade", place, message, TO_AIE, op)


def _memory_mapped(program: CheckedProgram, op: ChannelPutOp) -> Iterator[Fault]:
    """The tools write the words of a constant into each core's buffer before it starts."""
    if (message := _unwritable(program, op)) is not None:
        yield Fault("mmio", op_location(op), message, TO_AIE, op)


def _unwritable(program: CheckedProgram, op: ChannelPutOp) -> str | None:
    source = root_value(op.memref).owner
    if not isinstance(source, memref.GetGlobalOp):
        return (
            "a memory-mapped write is part of the program's image, so its source is a constant; read it with "
            "memref.get_global, or use npu_dma_stream"
        )
    if not isinstance(_initial_value(program, source), DenseIntOrFPElementsAttr):
        return f"{source.name_} has no values to write into the program's image; give it dense ones"
    indices = constant_ints(op.indices)
    if indices is None:
        return (
            f"the member of @{op.chan_name} that is written is not a constant, and a core cannot get "
            "it; write one put for each"
        )
    ends = program.channel_ends[op.chan_name]
    gets = [
        end for end in ends if isinstance(end, ChannelGetOp) and constant_ints(end.indices) in (indices, None)
    ]
    if not gets:
        return f"no core gets member {indices} of @{op.chan_name}, so there is nowhere to write; add the get"
    sent, taken = (end.memref.type for end in (op, gets[0]))
    if isinstance(sent, MemRefType) and isinstance(taken, MemRefType) and _contents(sent) != _contents(taken):
        return (
            f"{attribute_text(sent)} is written into {attribute_text(taken)}; a memory-mapped write copies "
            "words, so make both alike"
        )
    return None


def _initial_value(program: CheckedProgram, source: memref.GetGlobalOp) -> Attribute | None:
    found = (op for op in program.module.walk() if isinstance(op, memref.GlobalOp))
    named = (op for op in found if op.sym_name.data == source.name_.root_reference.data)
    return next((op.properties.get("initial_value") for op in named), None)


def _contents(type_: MemRefType[Attribute]) -> tuple[Attribute, int]:
    return type_.element_type, math.prod(type_.get_shape())


def _of_the_function(op: ChannelTransferOp) -> Iterator[Fault]:
    """mlir-air measured it on npu1 only."""
    if space_of(op.memref.type) == 0 and not any(
        isinstance(parent, HierarchyOp) for parent in parent_ops(op)
    ):
        message = (
            "a transfer of L3 outside of any launch; air-to-aie finds no shim DMA for it, so put it into the "
            "launch or segment"
        )
        yield Fault("host-transfer", op_location(op), message, CHANNEL_API, op, certain=False)


def _without_index(program: CheckedProgram, op: ChannelTransferOp) -> Iterator[Fault]:
    channel = program.channels.get(op.chan_name)
    members = 1 if channel is None else math.prod(channel.size)
    if members > 1 and not op.indices:
        message = (
            f"@{op.chan_name} has {members} members, and the operation has no index; write one "
            "for each dimension"
        )
        yield Fault("channel-index", op_location(op), message, TO_AIE, op)


def _one_sided(program: CheckedProgram, channel: ChannelOp) -> Iterator[Fault]:
    ends = program.channel_ends.get(channel.sym_name, [])
    directions = {isinstance(op, ChannelPutOp) for op in ends}
    if len(directions) == 1:
        here, other = ("put", "get") if True in directions else ("get", "put")
        message = (
            f"@{channel.sym_name} has a {here} and no {other}, so the {here} waits for ever; write both ends"
        )
        yield Fault("unpaired", op_location(ends[0]), message, ALLOCATION, ends[0])


def _pinned_channels(program: CheckedProgram, channel: ChannelOp) -> Iterator[Fault]:
    """Attributes that choose a channel or a column by number."""
    device = program.device
    limits = {"air.tile_dma_channel": device.core.mm2s_channels, "air.shim_col": device.columns}
    for name, limit in limits.items():
        chosen = integer_attribute(channel, name)
        if chosen is not None and not 0 <= chosen < limit:
            message = f"{name} = {chosen} is not from 0 to {limit - 1}, which is what {device.name} has"
            yield Fault("pinned-channel", op_location(channel), message, ALLOCATION, channel)


def _memtile_floor(program: CheckedProgram, op: ChannelTransferOp) -> Iterator[Fault]:
    name, limit = "air.memtile_dma_channel_min", program.device.memtile.mm2s_channels
    chosen = integer_attribute(op, name)
    if chosen is not None and not 0 <= chosen < limit:
        message = f"{name} = {chosen} is not from 0 to {limit - 1}, the channels of a memtile"
        yield Fault("pinned-channel", op_location(op), message, ALLOCATION, op)


# ---- which channel of a bundle ----


def check_bundle_members(program: CheckedProgram) -> Iterator[Finding]:
    """Channels of a bundle that a sequential loop chooses, which aircc refuses or makes one transfer of.

    Run with mlir-air e972f294: its verifiers refuse the induction variable itself, since April 2026; before,
    a loop in the launch became one transfer of the first member. An index made from it is refused by
    air-to-aie in a launch; in a segment air-opt-memtile-dma-bds makes one transfer of the loop, and no tool
    says so; where air-ping-pong-transform unrolls a loop of two trips, all is well.
    """
    for op in program.module.walk():
        if isinstance(op, ChannelTransferOp):
            yield from (fault for axis in range(len(op.indices)) for fault in _chosen_in_time(op, axis))


def _chosen_in_time(op: ChannelTransferOp, axis: int) -> Iterator[Fault]:
    index = op.indices[axis]
    loop = next(
        (loop for leaf in leaves(index) if (loop := loop_of_induction_variable(leaf)) is not None), None
    )
    if loop is None:
        return
    certain = True
    if loop_of_induction_variable(index) is not None:
        found, source = "which mlir-air's verifiers refuse", DIALECT
        what = "is the induction variable of an scf.for"
    else:
        what = "changes with an scf.for"
        level = next((type(parent) for parent in parent_ops(op) if isinstance(parent, _LEVELS)), None)
        found, source = _IN_TIME.get(level, _IN_TIME[None])
        certain = level not in (HerdOp, SegmentOp) or not _ping_pong_unrolls(loop)
    advice = "use an scf.parallel or a coordinate of the herd, or unroll the loop"
    unless = "" if certain else " unless air-ping-pong-transform unrolls the loop"
    message = f"index {axis} of @{op.chan_name} {what}, {found}{unless}; {advice}"
    yield Fault("bundle-index", op_location(op), message, source, op, certain)


_LEVELS = (LaunchOp, SegmentOp, HerdOp)
_IN_TIME: dict[type[Operation] | None, tuple[str, str]] = {
    None: ("for which air-to-aie finds no shim DMA", TO_AIE),
    SegmentOp: (
        "for which aircc makes one transfer of one member, so that the others wait for ever",
        SCHEDULE_OPT,
    ),
    HerdOp: ("for which air-to-aie finds no channel of the core", TO_AIE),
}
"""What becomes of an index made from a loop's variable, with the file, by where the transfer stands."""


def _ping_pong_unrolls(loop: scf.ForOp) -> bool:
    """Whether a loop of two trips makes its buffers, so that air-ping-pong-transform leaves no loop of it."""
    return trip_count(loop) == 2 and any(isinstance(op, memref.AllocOp) for op in loop.walk())
