"""What a program takes of the device, before any compiler sees it.

mlir-air's passes accept programs that cannot be built: herds five rows tall, odd bf16 strides, too much L1
(checked with a build of air-opt from March 2026: it placed 2x5 herds and passed an odd-count transfer of
stride 2). So the limits are checked here, by rules of our own after the sources named in `device.py`. They
are read from source, never checked on hardware, and they count on the safe side: a buffer that a loop fills
or empties is counted twice, for the compiler double-buffers it. What cannot be counted from the text is not
counted: program memory, stack beyond the default, locks, routing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects import affine, memref, scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineConstraintKind

from air_dialect import location
from air_dialect.ops import (
    ChannelGetOp,
    ChannelOp,
    ChannelPutOp,
    HerdOp,
    HierarchyOp,
    LaunchOp,
    SegmentOp,
    memory_space_name,
)
from virtual_npu.errors import ResourceError
from virtual_npu.static.device import NPU2, Device, DmaLimits
from virtual_npu.static.patterns import (
    Side,
    constant,
    descriptor_faults,
    leaves,
    memref_bytes,
    origin,
    sides,
    space_of,
)
from virtual_npu.tables import text_table

CASCADE = ("npu_cascade", "cascade")


@dataclass(frozen=True)
class Usage:
    """One line of the report: `used` of `limit`, in the units the resource names; `note`: the way out."""

    place: str
    resource: str
    used: int
    limit: int
    note: str

    @property
    def fits(self) -> bool:
        return self.used <= self.limit


@dataclass(frozen=True)
class Report:
    """What each launch of a module uses, and transfers that no descriptor can walk."""

    device: Device
    usages: tuple[Usage, ...]
    faults: tuple[str, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What does not fit, a sentence each."""
        over = (
            f"{u.place}: {u.resource} takes {u.used}, {self.device.name} has {u.limit}; {u.note}"
            for u in self.usages
            if not u.fits
        )
        return (*over, *self.faults)

    def check(self) -> None:
        """Raises ResourceError naming everything that does not fit."""
        if self.problems:
            raise ResourceError("\n".join(self.problems))

    def table(self) -> str:
        """The report as text, a line per resource."""
        header = ("where", "resource", "used", "limit", "")
        rows = [
            (u.place, u.resource, str(u.used), str(u.limit), "ok" if u.fits else "TOO MUCH")
            for u in self.usages
        ]
        return "\n".join(
            [text_table([header, *rows], "<<>><"), *(f"fault: {fault}" for fault in self.faults)]
        )


def preflight(module: ModuleOp, device: Device = NPU2, ping_pong: bool = True) -> Report:
    """Count what every launch of `module` takes of `device`.

    Raises ResourceError for memory that is not the device's or of unknown size.
    ping_pong: whether the compiler double-buffers, as it does unless told `--omit-ping-pong-transform`.
    """
    usages: list[Usage] = []
    faults: list[str] = []
    cascades = {op.sym_name for op in module.walk() if isinstance(op, ChannelOp) and _is_cascade(op)}
    for place, root in _launches(module):
        count = _Launch(place, root, device, ping_pong, cascades)
        usages += count.usages()
        faults += count.faults()
    return Report(device, tuple(usages), tuple(faults))


def _is_cascade(op: ChannelOp) -> bool:
    kind = op.channel_type_attr
    return kind is not None and kind.data in CASCADE


def _launches(module: ModuleOp) -> Iterator[tuple[str, Operation]]:
    """Every launch with a name for it; a herd outside of any launch counts as one of its own."""
    for function in module.walk():
        if not isinstance(function, FuncOp) or function.is_declaration:
            continue
        roots = [op for op in function.walk() if isinstance(op, LaunchOp) or _is_bare(op)]
        for number, root in enumerate(roots):
            name = root.sym_name if isinstance(root, HierarchyOp) and root.sym_name else str(number)
            yield f"{function.sym_name.data}/{name}", root


def _is_bare(op: Operation) -> bool:
    return isinstance(op, HerdOp) and not any(isinstance(p, LaunchOp) for p in _parents(op))


def _parents(op: Operation) -> Iterator[Operation]:
    parent = op.parent_op()
    while parent is not None:
        yield parent
        parent = parent.parent_op()


def _extents(op: HierarchyOp) -> tuple[int, ...]:
    return tuple(constant(size) or 1 for size in op.sizes)


class _Launch:
    """The counting for one launch."""

    def __init__(
        self, place: str, root: Operation, device: Device, ping_pong: bool, cascades: set[str]
    ) -> None:
        self.place = place
        self.device = device
        self.ping_pong = ping_pong
        self.cascades = cascades
        self.root = root
        self.ops = list(root.walk())
        self.herds: dict[str, list[HerdOp]] = {}
        for op in self.ops:
            if isinstance(op, HerdOp):
                self.herds.setdefault(op.sym_name or f"herd_{len(self.herds)}", []).append(op)
        self.sides = [side for op in self.ops if not self._on_cascade(op) for side in sides(op)]

    def _on_cascade(self, op: Operation) -> bool:
        return isinstance(op, ChannelPutOp | ChannelGetOp) and op.chan_name in self.cascades

    def _usage(self, resource: str, used: int, limit: int, note: str) -> Usage:
        return Usage(self.place, resource, used, limit, note)

    def usages(self) -> list[Usage]:
        """Every resource of this launch."""
        device = self.device
        found = []
        if isinstance(self.root, LaunchOp):
            trips = max(_extents(self.root), default=1)
            note = "run it in parts: larger tiles, or several launches"
            found.append(self._usage("launch trips of one dimension", trips, device.repeat_limit, note))
        for name, herds in self.herds.items():
            found += self._herd(name, herds)
        cores = sum(math.prod(_extents(herds[0])) * self._copies(herds[0]) for herds in self.herds.values())
        note = "herds of different names stand side by side; give phases of one herd one name"
        found.append(self._usage("cores", cores, device.columns * device.rows, note))
        found.append(self._usage("L2 bytes", self._l2_bytes(), device.l2_total_bytes, "use smaller L2 tiles"))
        return [*found, *self._endpoints()]

    def _copies(self, op: Operation) -> int:
        """How many times the segments around `op` are unrolled."""
        return math.prod(math.prod(_extents(p)) for p in _parents(op) if isinstance(p, SegmentOp))

    def _herd(self, name: str, herds: list[HerdOp]) -> list[Usage]:
        device = self.device
        extents = [*_extents(herds[0]), 1]
        into, out = self._core_streams(herds)
        descriptors = sum(self._copies_in_l1(s.memref) for herd in herds for s in self._l1_sides(herd))
        share = "stage through L2 or send both over one channel"
        transpose = "x counts columns and y rows; swap or split the herd"
        return [
            self._usage(f"herd {name} columns (x)", extents[0], device.columns, transpose),
            self._usage(f"herd {name} rows (y)", extents[1], device.rows, transpose),
            self._usage(
                f"herd {name} L1 bytes", self._l1_bytes(herds), device.l1_bytes, "use smaller L1 tiles"
            ),
            self._usage(f"herd {name} input channels", into, device.core.s2mm_channels, share),
            self._usage(f"herd {name} output channels", out, device.core.mm2s_channels, share),
            self._usage(
                f"herd {name} descriptors", descriptors, device.core.descriptors, "make fewer transfers"
            ),
        ]

    def _l1_sides(self, herd: HerdOp) -> list[Side]:
        inside = set(herd.walk())
        return [side for side in self.sides if side.op in inside and side.space == 2]

    def _l1_bytes(self, herds: list[HerdOp]) -> int:
        """Stack and every L1 buffer of one core: the phases of a herd share its memory, not in turns."""
        own: list[SSAValue] = [
            op.memref for herd in herds for op in herd.walk() if isinstance(op, memref.AllocOp)
        ]
        shared = {
            origin(operand): herd
            for herd in herds
            for operand in herd.kernel_operands
            if isinstance(operand.type, MemRefType) and space_of(operand.type) == 2
        }
        total = self.device.stack_bytes
        for value in own:
            if space_of(value.type) == 2:
                total += memref_bytes(value.type) * self._copies_in_l1(value)
        for value, herd in shared.items():
            if value not in own:
                total += _slab_bytes(value, herd)
        return total

    def _copies_in_l1(self, value: SSAValue) -> int:
        """2 for a buffer that a loop of its herd fills or empties by DMA, else 1."""
        if not self.ping_pong:
            return 1
        target = origin(value)
        looped = any(_in_loop(s.op, HerdOp) for s in self.sides if origin(s.memref) is target)
        return 2 if looped and _owned_by_herd(target) else 1

    def _core_streams(self, herds: list[HerdOp]) -> tuple[int, int]:
        """Most input and output streams of any one core, each source or destination counted once.

        On the safe side: mlir-air can let several transfers take turns on one channel in some programs.
        """
        most = [0, 0]
        columns, rows = (*_extents(herds[0]), 1)[:2]
        for x in range(columns):
            for y in range(rows):
                streams = self._streams_at(herds, (x, y))
                most = [max(most[i], len(streams[i])) for i in range(2)]
        return most[0], most[1]

    def _streams_at(self, herds: list[HerdOp], core: tuple[int, int]) -> tuple[set[object], set[object]]:
        into: set[object] = set()
        out: set[object] = set()
        for herd in herds:
            for side in self._l1_sides(herd):
                if _runs_at(side.op, herd, core):
                    (out if side.reads else into).add(_far_end(side))
        return into, out

    def _l2_bytes(self) -> int:
        total = 0
        for op in self.ops:
            if isinstance(op, memref.AllocOp) and space_of(op.memref.type) == 1:
                value = op.memref
                looped = any(_in_loop(s.op, SegmentOp) for s in self.sides if origin(s.memref) is value)
                total += memref_bytes(value.type) * (2 if looped and self.ping_pong else 1) * self._copies(op)
        return total

    def _endpoints(self) -> list[Usage]:
        """Channels that the shim and the memtiles must offer to this launch, over all columns.

        The least that will do: where the compiler spreads an L2 buffer over memtiles it takes more of the
        shim's, and keeps within the limit by itself (aircc passes it as `max-launch-channels`).
        """
        device, columns = self.device, self.device.columns
        limits = {
            (0, True): ("shim channels from L3", device.launch_mm2s),
            (0, False): ("shim channels to L3", device.launch_s2mm),
            (1, True): ("memtile channels from L2", device.memtile.mm2s_channels * columns),
            (1, False): ("memtile channels to L2", device.memtile.s2mm_channels * columns),
        }
        note = "stage through L2, broadcast, or use fewer cores"
        return [
            self._usage(resource, self._streams(space, reads), limit, note)
            for (space, reads), (resource, limit) in limits.items()
        ]

    def _streams(self, space: int, reads: bool) -> int:
        chosen = [s for s in self.sides if s.space == space and s.reads == reads]
        streams: dict[object, int] = {}
        for side in chosen:
            key = (origin(side.memref), _far_end(side))
            streams[key] = max(streams.get(key, 0), self._parallel_streams(side))
        return sum(streams.values())

    def _parallel_streams(self, side: Side) -> int:
        """How many of this transfer run side by side; reads that do not depend on a tile id are broadcast."""
        values = side.op.operands if isinstance(side.op, ChannelPutOp | ChannelGetOp) else side.offsets
        if not side.reads and not isinstance(side.op, ChannelPutOp | ChannelGetOp):
            return math.prod(
                math.prod(_extents(p)) for p in _parents(side.op) if isinstance(p, HerdOp | SegmentOp)
            )
        used = {leaf for value in values for leaf in leaves(value)}
        return math.prod(_extent_of(leaf) for leaf in used)

    def faults(self) -> list[str]:
        """Transfers that the DMA on their side cannot walk."""
        limits: dict[int, DmaLimits] = {0: self.device.shim, 1: self.device.memtile, 2: self.device.core}
        found = []
        for side in self.sides:
            for fault in descriptor_faults(side, limits[side.space], self.device.granule_bytes):
                at = location(side.op)
                where = f"{self.place}, {side.op.name} at {at}"
                found.append(f"{where}: the {memory_space_name(side.space)} side ({side.type}) has {fault}")
        return found


def _extent_of(leaf: SSAValue) -> int:
    """How many values run side by side: tile ids, unrolled segments and `scf.parallel`; a loop is one."""
    if not isinstance(leaf, BlockArgument):
        return 1
    parent, place = leaf.block.parent_op(), leaf.index
    if isinstance(parent, HerdOp | SegmentOp) and leaf in parent.ids:
        return _extents(parent)[place]
    if isinstance(parent, scf.ParallelOp):
        low, high, step = (constant(v[place]) for v in (parent.lowerBound, parent.upperBound, parent.step))
        return 1 if low is None or high is None or not step else max(1, -(-(high - low) // step))
    return 1


def _in_loop(op: Operation, body_of: type[HierarchyOp]) -> bool:
    """Inside an scf.for, up to the nearest enclosing hierarchy of kind `body_of`."""
    for parent in _parents(op):
        if isinstance(parent, body_of):
            return False
        if isinstance(parent, scf.ForOp):
            return True
    return False


def _owned_by_herd(value: SSAValue) -> bool:
    return isinstance(value.owner, Operation) and any(isinstance(p, HerdOp) for p in _parents(value.owner))


def _slab_bytes(value: SSAValue, herd: HerdOp) -> int:
    """One core's part of an L1 buffer made in the segment: leading dimensions like the herd's are divided."""
    assert isinstance(value.type, MemRefType)
    shape, extents = value.type.get_shape(), _extents(herd)
    whole = memref_bytes(value.type)
    return whole // math.prod(extents) if tuple(shape[: len(extents)]) == extents else whole


def _far_end(side: Side) -> object:
    """What is at the other end of a transfer: a channel, or the memref it came from or goes to."""
    if isinstance(side.op, ChannelPutOp | ChannelGetOp):
        return side.op.chan_name
    return next(origin(s.memref) for s in sides(side.op) if s.reads != side.reads)


def _runs_at(op: Operation, herd: HerdOp, core: tuple[int, int]) -> bool:
    """False only where an affine.if on tile ids shuts `op` out on this core."""
    child: Operation = op
    for parent in _parents(op):
        if parent is herd:
            return True
        if isinstance(parent, affine.IfOp):
            holds = _holds(parent, herd, core)
            in_then = parent.then_region.block is child.parent
            if holds is not None and holds != in_then:
                return False
        child = parent
    return True


def _holds(op: affine.IfOp, herd: HerdOp, core: tuple[int, int]) -> bool | None:
    """Whether the condition holds on this core; None where it depends on more than the tile ids."""
    places: dict[SSAValue, int] = dict(zip(herd.ids, core, strict=False))
    values = [places.get(operand, constant(operand)) for operand in op.args]
    if any(value is None for value in values):
        return None
    condition = op.condition.data
    known = [value for value in values if value is not None]
    dims, symbols = known[: condition.num_dims], known[condition.num_dims :]
    return all(
        _satisfied(c.kind, c.lhs.eval(dims, symbols) - c.rhs.eval(dims, symbols))
        for c in condition.constraints
    )


def _satisfied(kind: AffineConstraintKind, difference: int) -> bool:
    if kind is AffineConstraintKind.eq:
        return difference == 0
    return difference >= 0 if kind is AffineConstraintKind.ge else difference <= 0
