"""The parts of a program that are configured on the array one after the other.

A segment is compiled to one configuration of the array (mlir-air AIRToAIEPass.cpp makes an `aie.device` of
each), so what is in it is there at the same time. Herds of a launch without a segment share one, and a herd
without a launch gets both from aircc (`air-insert-launch-around-herd`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.ops import (
    ChannelOp,
    ChannelTransferOp,
    DmaMemcpyNdOp,
    HerdOp,
    LaunchOp,
    SegmentOp,
)
from aerie.air_dialect.values import root_value
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.buffer_copies import BufferCopies
from aerie.device.npu2 import DeviceModel
from aerie.device.transfers import TransferSide, extents, transfer_sides

PACKET = "npu_dma_packet"
NO_DMA = ("npu_cascade", "npu_mmio", "gpu_symmetric_heap")
"""Channel types that take no DMA channel."""


@dataclass(frozen=True)
class CheckOptions:
    """The compile options that change what a program takes of the device.

    omit_ping_pong: what aircc does not double-buffer (the value of `--omit-ping-pong-transform`): `L1`, `L2`,
    `all`, or nothing.
    stack_bytes: stack of a core (aircc `--stack-size`), None for the device's default.
    kernel_dirs: folders with the sources of external kernels.
    bf16_emulation: whether aircc emulates f32 vectors (`--bf16-emulation`).
    omit_auto_broadcast: whether each core keeps its own DMA of shared data (`--omit-auto-broadcast`).
    loop_tiling: the values of `--air-runtime-loop-tiling-sizes`, empty for none; None if unknown.
    """

    omit_ping_pong: str = ""
    stack_bytes: int | None = None
    kernel_dirs: tuple[Path, ...] = ()
    bf16_emulation: bool = False
    omit_auto_broadcast: bool = False
    loop_tiling: tuple[int, ...] | None = None


@dataclass(frozen=True)
class CheckedProgram:
    """A module with its target device and compile options."""

    module: ModuleOp
    device: DeviceModel
    options: CheckOptions

    @property
    def stack_bytes(self) -> int:
        """The stack of a core."""
        return self.options.stack_bytes or self.device.stack_bytes

    @cached_property
    def channels(self) -> dict[str, ChannelOp]:
        """Every channel by name."""
        return {op.sym_name: op for op in self.module.walk() if isinstance(op, ChannelOp)}

    @cached_property
    def channel_ends(self) -> dict[str, list[ChannelTransferOp]]:
        """The puts and gets of every channel, in the order of the text."""
        ends: dict[str, list[ChannelTransferOp]] = {}
        for op in self.module.walk():
            if isinstance(op, ChannelTransferOp):
                ends.setdefault(op.chan_name, []).append(op)
        return ends

    def channel_type(self, name: str) -> str:
        """The type of a channel, such as npu_dma_stream."""
        channel = self.channels.get(name)
        return "npu_dma_stream" if channel is None else channel.channel_type

    @cached_property
    def functions(self) -> list[FuncOp]:
        """Functions with a body."""
        return [op for op in self.module.walk() if isinstance(op, FuncOp) and not op.is_declaration]

    @cached_property
    def scopes(self) -> list[ArrayConfiguration]:
        """The array configurations, in the order of the text."""
        return [ArrayConfiguration(self, place, root) for place, root in _roots(self.module)]

    @cached_property
    def transfers(self) -> list[TransferSide]:
        """Both sides of every transfer that a DMA does."""
        return [side for op in self.module.walk() for side in self.dma_sides(op)]

    def dma_sides(self, op: Operation) -> tuple[TransferSide, ...]:
        """The sides of one transfer; none for cascades and memory-mapped writes."""
        if isinstance(op, ChannelTransferOp) and self.channel_type(op.chan_name) in NO_DMA:
            return ()
        return transfer_sides(op)


@dataclass(frozen=True, eq=False)
class ArrayConfiguration:
    """One configuration of the array: a segment, the herds of a launch without one, or a bare herd."""

    program: CheckedProgram
    place: str
    root: Operation

    @property
    def device(self) -> DeviceModel:
        """The target device."""
        return self.program.device

    @cached_property
    def ops(self) -> list[Operation]:
        """The operations inside."""
        return list(self.root.walk())

    @cached_property
    def sides(self) -> list[TransferSide]:
        """The transfers inside, and those of the launch around it that feed it or empty it."""
        inside = {op for op in self.ops if isinstance(op, ChannelTransferOp)}
        names = {op.chan_name for op in inside}
        around = [
            op
            for op in self._around()
            if isinstance(op, DmaMemcpyNdOp) or (isinstance(op, ChannelTransferOp) and op.chan_name in names)
        ]
        return [side for op in (*self.ops, *around) for side in self.program.dma_sides(op)]

    @cached_property
    def _copies(self) -> BufferCopies:
        return BufferCopies(self.root, self.program.options.omit_ping_pong)

    def buffer_count(self, memref: SSAValue) -> int:
        """The number of copies of a buffer: 2 or 3 if aircc double-buffers it, else 1."""
        return self._copies.copies_of(root_value(memref))

    @cached_property
    def l1_sides(self) -> dict[HerdOp, list[TransferSide]]:
        """The transfers of L1 in each herd."""
        by_herd: dict[HerdOp, list[TransferSide]] = {}
        for side in self.sides:
            herd = next((op for op in parent_ops(side.op) if isinstance(op, HerdOp)), None)
            if herd is not None and side.space == 2:
                by_herd.setdefault(herd, []).append(side)
        return by_herd

    def _around(self) -> Iterator[Operation]:
        """Operations of the launch, or else the function, that are in no other configuration."""
        outer = next((op for op in parent_ops(self.root) if isinstance(op, LaunchOp | FuncOp)), None)
        if isinstance(self.root, LaunchOp) or outer is None:
            return
        others = {scope.root for scope in self.program.scopes}
        pending = [outer]
        while pending:
            op = pending.pop()
            for inner in (inner for region in op.regions for block in region.blocks for inner in block.ops):
                if inner not in others and not isinstance(inner, LaunchOp):
                    yield inner
                    pending.append(inner)

    @cached_property
    def herds(self) -> dict[str, list[HerdOp]]:
        """Herds by name; those of one name are phases of one herd."""
        by_name: dict[str, list[HerdOp]] = {}
        for op in self.ops:
            if isinstance(op, HerdOp):
                by_name.setdefault(op.sym_name or f"herd_{len(by_name)}", []).append(op)
        return by_name

    @cached_property
    def segment(self) -> SegmentOp | None:
        """The segment, None where aircc will make one."""
        return self.root if isinstance(self.root, SegmentOp) else None

    @property
    def cores(self) -> int:
        """The number of cores of one copy."""
        return sum(math.prod(extents(herds[0])) for herds in self.herds.values())

    @cached_property
    def is_placed(self) -> bool:
        """Whether aircc has placed it: every herd has a token and a column, and no DMA is left."""
        herds = [herd for each in self.herds.values() for herd in each]
        return (
            bool(herds)
            and not any(isinstance(op, DmaMemcpyNdOp) for op in self.ops)
            and all(
                herd.async_token is not None and integer_attribute(herd, "x_loc") is not None
                for herd in herds
            )
        )

    @property
    def copies(self) -> int:
        """The number of copies that run side by side: the segment's unroll factor."""
        return max(1, math.prod(extents(self.segment))) if self.segment else 1

    @property
    def columns(self) -> int:
        """The number of columns that one copy may use: its share of the device, or less by `x_size`."""
        share = max(1, self.device.columns // self.copies)
        requested = self._attribute("x_size")
        return share if requested is None else min(share, -(-requested // self.copies))

    @property
    def rows(self) -> int:
        """The number of rows of cores that one copy may use."""
        requested = self._attribute("y_size")
        first = self._attribute("y_loc") or self.device.first_core_row
        available = self.device.rows - (first - self.device.first_core_row)
        return available if requested is None else min(available, requested)

    @property
    def memtiles(self) -> int:
        """The number of memtiles of all copies: one per column that the segment has or its herds need."""
        share = max(1, self.device.columns // self.copies)
        footprint = sum(extents(herds[0])[0] if herds[0].sizes else 1 for herds in self.herds.values())
        return min(share, max(self.columns, footprint)) * self.copies

    def _attribute(self, name: str) -> int | None:
        return None if self.segment is None else integer_attribute(self.segment, name)

    def report_name(self, name: str) -> str:
        """The name of a herd in the report."""
        return self.place if isinstance(self.root, HerdOp) else f"{self.place}/{name}"


def integer_attribute(op: Operation, name: str) -> int | None:
    """An integer among the attributes and properties of an operation."""
    value = op.attributes.get(name, op.properties.get(name))
    return value.value.data if isinstance(value, IntegerAttr) else None


def op_location(op: Operation) -> str:
    """function/launch/segment/herd of an operation, by name, or by number in the order of the text."""
    around = [op, *parent_ops(op)]
    named = [found for found in around if isinstance(found, FuncOp | LaunchOp | SegmentOp | HerdOp)]
    return "/".join(_name(found) for found in reversed(named)) or "module"


def _name(op: FuncOp | LaunchOp | SegmentOp | HerdOp) -> str:
    if isinstance(op, FuncOp):
        return op.sym_name.data
    if op.sym_name:
        return op.sym_name
    outer = next((p for p in parent_ops(op) if isinstance(p, FuncOp | LaunchOp | SegmentOp)), None)
    before = () if outer is None else takewhile(lambda other: other is not op, outer.walk())
    number = sum(type(other) is type(op) for other in before)
    return str(number) if isinstance(op, LaunchOp) else f"{op.name.removeprefix('air.')}_{number}"


def _roots(module: ModuleOp) -> Iterator[tuple[str, Operation]]:
    for op in module.walk():
        around = list(parent_ops(op))
        if any(isinstance(parent, SegmentOp) for parent in around):
            continue
        in_launch = any(isinstance(parent, LaunchOp) for parent in around)
        loose = isinstance(op, LaunchOp) and _has_loose_herd(op)
        if isinstance(op, SegmentOp) or loose or (isinstance(op, HerdOp) and not in_launch):
            yield op_location(op), op


def _has_loose_herd(launch: LaunchOp) -> bool:
    herds = [op for op in launch.walk() if isinstance(op, HerdOp)]
    return any(not any(isinstance(parent, SegmentOp) for parent in parent_ops(herd)) for herd in herds)
