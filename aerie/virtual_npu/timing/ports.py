"""What a launch's events occupy: the channels at both ends of a transfer, shared as the array has them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.ops import ChannelTransferOp, DmaMemcpyNdOp, HerdOp, LaunchOp
from aerie.air_dialect.values import root_value
from aerie.device.transfers import TransferSide, extents, transfer_sides
from aerie.virtual_npu.timing.buffer_order import CoreOrder
from aerie.virtual_npu.timing.replay import Resource

L3, L2, L1 = 0, 1, 2
DMA_KINDS = ("stream", "memtile", "shim")
COLUMNS = 8
SHIM_CHANNELS = 16
"""Of NPU2 in each direction: 2 in each of 8 columns (aerie.device.npu2)."""
Core = tuple[str, tuple[int, ...]]
UsedIds = Callable[[Operation, HerdOp], Sequence[int]]


@dataclass(frozen=True)
class Scope:
    """Where a step runs: the known indices, the core, and whether a loop of its body is around it."""

    known: dict[SSAValue, int]
    core: CoreOrder | None = None
    core_name: Core | None = None
    herd: HerdOp | None = None
    in_loop: bool = False


class Ports:
    """The cores and channels of one launch, each made when it is first used.

    used_ids: which coordinates of a core the far end of its transfer depends on.
    """

    def __init__(self, launch: LaunchOp, module: ModuleOp, used_ids: UsedIds) -> None:
        self.resources: dict[object, Resource] = {}
        self._ports: defaultdict[tuple[Core, bool], dict[Operation, int]] = defaultdict(dict)
        self._shims: defaultdict[bool, list[tuple[Resource, int]]] = defaultdict(list)
        self._roots: dict[SSAValue, SSAValue] = {}
        self._sides: dict[Operation, tuple[TransferSide, ...]] = {}
        self._parts = _parts_of_buffers(launch, used_ids)
        self._spaces: defaultdict[str, set[int]] = defaultdict(set)
        for op in module.walk():
            if isinstance(op, ChannelTransferOp):
                self._spaces[op.chan_name].update(side.space for side in self.sides_of(op))

    def locks(self) -> int:
        """The locks of the design: two for each end of a channel in a core, memtile or shim tile."""
        return round(2 * sum(each.share for each in self.resources.values() if each.kind in DMA_KINDS))

    def limit_shim(self) -> None:
        """Share the channels of the shim tiles among more streams than there are."""
        for shims in self._shims.values():
            parts = sum(parts for _, parts in shims)
            for shim, _ in shims:
                shim.share *= min(1.0, SHIM_CHANNELS / parts)

    def end(self, op: Operation, side: TransferSide, chain: tuple[object, ...], scope: Scope) -> Resource:
        """The channel at one end of a transfer."""
        if side.space == L1 and scope.core_name is not None:
            return self.core_port(op, side.reads, scope)
        if side.space == L3:
            other = self._parts.get(self.root(side.other), 1) if side.other is not None else 1
            return self._shim(side.reads, chain, other, op)
        parts = self._parts.get(self.root(side.memref), 1) if scope.core is None else 1
        key = ("memtile", side.reads, chain)
        rate = "shim_bytes" if self._is_to_l3(op) else "stream_bytes"
        return self.resource(key, lambda: _name(op, "memtile"), "memtile", rate, parts)

    def _is_to_l3(self, op: Operation) -> bool:
        """Whether host memory is at one end of a transfer; of a channel, at one of its ends anywhere."""
        if isinstance(op, ChannelTransferOp):
            return L3 in self._spaces[op.chan_name]
        return any(side.space == L3 for side in self.sides_of(op))

    def _shim(self, reads: bool, chain: tuple[object, ...], parts: int, op: Operation) -> Resource:
        where = "shim in" if reads else "shim out"
        is_new = (where, chain) not in self.resources
        shim = self.resource((where, chain), lambda: _name(op, where), "shim", "shim_bytes", parts)
        if is_new:
            self._shims[reads].append((shim, parts))
        return shim

    def core_port(self, op: Operation, reads: bool, scope: Scope) -> Resource:
        """One of the two channels of a core's DMA in this direction; transfers of the text take turns."""
        assert scope.core_name is not None
        key = (scope.core_name, reads)
        ports = self._ports[key]
        port = ports.setdefault(op, len(ports) % 2)
        herd, ids = scope.core_name
        way = "out" if reads else "in"
        return self.resource(
            ("port", key, port),
            lambda: f"{herd}{list(ids)} {way} {port}",
            "stream",
            "stream_bytes",
        )

    def sides_of(self, op: Operation) -> tuple[TransferSide, ...]:
        """What a transfer walks: of a DMA its source, then its target."""
        if op not in self._sides:
            self._sides[op] = transfer_sides(op)
        return self._sides[op]

    def root(self, value: SSAValue) -> SSAValue:
        """Where a buffer was defined."""
        if value not in self._roots:
            self._roots[value] = root_value(value)
        return self._roots[value]

    def resource(
        self, key: object, name: Callable[[], str], kind: str, rate: str = "", share: float = 1.0
    ) -> Resource:
        if key not in self.resources:
            self.resources[key] = Resource(name(), kind, rate, share)
        return self.resources[key]


def contiguous_bytes(side: TransferSide) -> int:
    """The bytes that lie one after the other at the inner end of a transfer's walk."""
    run = 1
    for size, stride in reversed(side.known_dims or []):
        if stride != run:
            break
        run *= size
    return max(1, run * side.bits // 8)


def _name(op: Operation, where: str) -> str:
    side = transfer_sides(op)
    outer = next((s for s in side if s.space == L3), side[0] if side else None)
    hint = None if outer is None else outer.memref.name_hint
    what = f"@{op.chan_name}" if isinstance(op, ChannelTransferOp) else hint or "dma"
    return f"{where} {what}"


def _parts_of_buffers(launch: LaunchOp, used_ids: UsedIds) -> dict[SSAValue, int]:
    """Over how many memtiles each buffer of L2 is spread: as many as groups of cores take a part of it."""
    parts: dict[SSAValue, int] = {}
    for op in launch.walk():
        herd = herd_around(op)
        if not isinstance(op, DmaMemcpyNdOp) or herd is None:
            continue
        for side in transfer_sides(op):
            if side.space == L2:
                groups = math.prod(extents(herd)[i] for i in used_ids(op, herd))
                root = root_value(side.memref)
                parts[root] = max(parts.get(root, 1), min(COLUMNS, groups))
    return parts


def herd_around(op: Operation) -> HerdOp | None:
    """The herd that an operation is in; None outside."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, HerdOp):
        parent = parent.parent_op()
    return parent
