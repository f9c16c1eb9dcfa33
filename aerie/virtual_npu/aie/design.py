"""A device as tables of what it consists of, numbered as the C++ tables are (include/vnpu/aie/tables.h)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, MemRefType, StringAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from aerie.air_dialect.aie import array, dma, routing
from aerie.air_dialect.aie.attributes import BdIterationAttr, PacketInfoAttr
from aerie.air_dialect.aie.formats import integer_of, integers, string_of
from aerie.air_dialect.index_constants import constant_int
from aerie.virtual_npu.aie.placement import place_logical_tiles
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.op_errors import attribute, line_of, unsupported

Place = tuple[int, int]
"""Column and row."""
SHIM, MEMTILE = 0, 1
"""Rows."""


@dataclass(frozen=True)
class Buffer:
    """A buffer of a tile. initial: its values, None where it begins with zeros."""

    name: str
    place: Place
    type: MemRefType
    initial: Attribute | None = None
    address: int | None = None
    """Where it lies in its tile's memory, where the text says so."""


@dataclass(frozen=True)
class Lock:
    """A lock of a tile."""

    name: str
    place: Place
    number: int
    init: int


@dataclass(frozen=True)
class LockUse:
    """An acquire or a release by a descriptor."""

    lock: int
    value: int
    at_least: bool = True


@dataclass(frozen=True)
class Dimension:
    """A dimension of an access pattern, in elements; `before` and `after` are zeros of the padding."""

    size: int
    stride: int
    before: int = 0
    after: int = 0


@dataclass
class Bd:
    """A buffer descriptor; offset and length in elements."""

    line: int
    number: int
    buffer: int
    offset: int
    length: int
    element: int
    dimensions: Sequence[Dimension] = ()
    acquire: LockUse | None = None
    release: LockUse | None = None
    packet: PacketInfoAttr | None = None
    next: int = -1
    iteration: BdIterationAttr | None = None


@dataclass(frozen=True)
class Task:
    """A chain of descriptors that is in a channel's queue from the start."""

    channel: int
    bd: int
    repeat: int


@dataclass(frozen=True)
class Channel:
    """A DMA channel, or another port of a tile to the switch."""

    place: Place
    sends: bool
    number: int
    port: str = "DMA"
    """DMA, Core, or TileControl, by which a tile sends tokens to the host."""


@dataclass
class Device:
    """One `aie.device`."""

    op: array.DeviceOp
    number: int
    buffers: list[Buffer] = field(default_factory=list)
    locks: list[Lock] = field(default_factory=list)
    bds: list[Bd] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    channels: dict[Channel, int] = field(default_factory=dict)
    cores: list[array.CoreOp] = field(default_factory=list)
    cascades: list[tuple[int, int]] = field(default_factory=list)
    flows: list[tuple[Channel, Channel]] = field(default_factory=list)
    """Circuits that object FIFOs need, beside those of the text."""
    fifos: dict[str, Any] = field(default_factory=dict)
    """The object FIFOs (object_fifos.Fifo), by name."""
    allocations: dict[str, tuple[Channel, PacketInfoAttr | None]] = field(default_factory=dict)
    buffer_of: dict[SSAValue, int] = field(default_factory=dict)
    buffer_named: dict[str, int] = field(default_factory=dict)
    lock_of: dict[SSAValue, int] = field(default_factory=dict)
    pad_values: dict[Channel, int] = field(default_factory=dict)
    """The padding value of each channel that has another than 0."""
    bd_at: dict[tuple[Place, int], int] = field(default_factory=dict)
    """The descriptors of DMA programs, by tile and number."""
    is_reset: bool = False
    """Whether its cores keep the programs of the device before: loading it resets the array, each time."""
    whole_memory: dict[Place, int] = field(default_factory=dict)
    """Buffers for all of a tile's memory, where a sequence writes to addresses that no buffer has."""

    @property
    def name(self) -> str:
        """Its name."""
        return device_name(self.op)

    @property
    def has_tiles(self) -> bool:
        """Whether there is anything to load."""
        kinds = (array.BufferOp, array.CoreOp, dma.DmaProgramOp, routing.FlowOp, routing.PacketFlowOp)
        return bool(self.fifos) or any(
            isinstance(op, (*kinds, routing.SwitchOp)) for op in self.op.body.block.ops
        )

    def channel(self, place: Place, sends: bool, number: int) -> int:
        """The number of a channel, which is added if it is new."""
        return self.number_of(Channel(place, sends, number))

    def number_of(self, channel: Channel) -> int:
        """The number of a channel or port that was added before."""
        return self.channels.setdefault(channel, len(self.channels))

    def add_buffer(self, buffer: Buffer) -> int:
        """Add a buffer. Returns its number."""
        self.buffers.append(buffer)
        self.buffer_named[buffer.name] = len(self.buffers) - 1
        return len(self.buffers) - 1

    def add_lock(self, name: str, place: Place, init: int, number: int | None = None) -> int:
        """Add a lock. Returns its number among all."""
        taken = {lock.number for lock in self.locks if lock.place == place}
        own = number if number is not None else next(n for n in range(64) if n not in taken)
        self.locks.append(Lock(name, place, own, init))
        return len(self.locks) - 1

    def add_bd(self, bd: Bd) -> int:
        """Add a descriptor. Returns its number among all."""
        self.bds.append(bd)
        return len(self.bds) - 1

    def add_task(self, channel: Channel, bd: int, repeat: int = 0) -> None:
        """Add a chain to a channel's queue."""
        self.tasks.append(Task(self.channel(channel.place, channel.sends, channel.number), bd, repeat))

    def note_pad_value(self, channel: Channel, op: Operation, name: str = "pad_value") -> None:
        """Record the padding value that an operation gives for a channel."""
        if integer_of(op, name, 0):
            self.pad_values[channel] = integer_of(op, name)

    def core_at(self, place: Place) -> int | None:
        """The number of the core of a tile; None where it has none."""
        return next((n for n, core in enumerate(self.cores) if place_of(core.tile) == place), None)


def device_name(op: array.DeviceOp) -> str:
    """The name of a device; `main` if the text gives none, as in mlir-aie."""
    return op.sym_name.data if op.sym_name else "main"


def place_of(tile: SSAValue) -> Place:
    """Column and row of a tile."""
    owner = tile.owner
    if not isinstance(owner, array.TileOp):
        name = owner.name if isinstance(owner, Operation) else "a block argument"
        raise unsupported(owner if isinstance(owner, Operation) else _parent(owner), f"{name} is no aie.tile")
    return owner.place


def _parent(block: Block) -> Operation:
    parent = block.parent_op()
    assert parent is not None
    return parent


def value_name(value: SSAValue) -> str:
    """The symbol of a lock or buffer; empty where it has none."""
    owner = value.owner
    return string_of(owner, "sym_name") if isinstance(owner, Operation) else ""


# ---- reading ----


def read_device(op: array.DeviceOp, number: int) -> Device:
    """The tables of a device, but for routes and object FIFOs. Raises UnsupportedOpError."""
    if op.device.data not in array.DEVICES:
        raise unsupported(op, f"{op.device.data} is no NPU: the virtual NPU runs {', '.join(array.DEVICES)}")
    place_logical_tiles(op)
    device = Device(op, number)
    for inner in op.walk():
        if isinstance(inner, array.BufferOp):
            device.buffer_of[inner.result] = device.add_buffer(
                Buffer(
                    value_name(inner.result),
                    place_of(inner.tile),
                    inner.result.type,
                    _initial(inner),
                    _address(inner),
                )
            )
        elif isinstance(inner, array.LockOp):
            own = integer_of(inner, "lock_id", -1)
            device.lock_of[inner.result] = device.add_lock(
                value_name(inner.result),
                place_of(inner.tile),
                array.lock_init(inner),
                own if own >= 0 else None,
            )
        elif isinstance(inner, array.CoreOp):
            device.cores.append(inner)
        elif isinstance(inner, routing.ShimDmaAllocationOp):
            channel = Channel(place_of(inner.tile), inner.direction.data == "MM2S", inner.channel.value.data)
            device.channel(channel.place, channel.sends, channel.number)
            device.allocations[inner.sym_name.data] = channel, inner.packet
    for inner in op.body.block.ops:
        if isinstance(inner, dma.DmaProgramOp):
            _read_program(device, inner)
    _read_cascades(device)
    return device


def _address(op: array.BufferOp) -> int | None:
    address = integer_of(op, "address", -1)
    return address if address >= 0 else None


def _initial(op: array.BufferOp) -> Attribute | None:
    value = op.initial_value or attribute(op, "initial_value")
    if value is not None and not isinstance(value, DenseIntOrFPElementsAttr):
        raise unsupported(op, "an initial value other than dense<...> is not supported")
    return value


def _read_program(device: Device, op: dma.DmaProgramOp) -> None:
    """The channels of a tile: the entry block starts the first one, and its chain leads to the next."""
    place = place_of(op.tile)
    numbers = _BdNumbers(place)
    if not op.body.blocks:
        return
    for inner in op.body.walk():
        if isinstance(inner, dma.DmaOp):
            _read_loop(device, inner, place, numbers)
    block: Block | None = op.body.blocks[0]
    met = set[Block]()
    while block is not None and block not in met:
        met.add(block)
        start = block.last_op
        if not isinstance(start, dma.DmaStartOp):
            break
        own = Channel(place, start.direction.data == "MM2S", start.channel.value.data)
        channel = device.number_of(own)
        device.note_pad_value(own, start)
        first = _read_chain(device, start.dest, {}, numbers)
        if first is not None:
            device.tasks.append(Task(channel, first, integer_of(start, "repeat_count", 0)))
        block = start.chain


class _BdNumbers:
    """Numbers for the descriptors of a tile that have none."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._next = 0

    def of(self, op: dma.DmaBdOp) -> int:
        """The number of a descriptor."""
        number = integer_of(op, "bd_id", self._next)
        self._next = max(self._next, number) + 1
        return number


def _read_chain(device: Device, block: Block, known: dict[Block, int], numbers: _BdNumbers) -> int | None:
    """The descriptors from a block on, up to one without a successor or with one that was read before."""
    first, before = None, None
    while True:
        if block in known:
            number, again = known[block], True
        else:
            found = read_bd(device, list(block.ops), numbers)
            if found is None:
                break
            number, again = found, False
            known[block] = number
        if before is not None:
            device.bds[before].next = number
        first = number if first is None else first
        before = number
        last = block.last_op
        if again or not isinstance(last, dma.NextBdOp):
            break
        block = last.dest
    return first


def _read_loop(device: Device, op: dma.DmaOp, place: Place, numbers: _BdNumbers) -> None:
    bds = [read_bd(device, list(region.block.ops), numbers) for region in op.descriptors]
    found = [number for number in bds if number is not None]
    for number, following in zip(found, found[1:] + found[:1] if op.loops else found[1:], strict=False):
        device.bds[number].next = following
    if found:
        own = Channel(place, op.direction.data == "MM2S", op.channel.value.data)
        channel = device.number_of(own)
        device.note_pad_value(own, op)
        device.tasks.append(Task(channel, found[0], integer_of(op, "repeat_count", 0)))


def read_bd(device: Device, ops: Sequence[Operation], numbers: _BdNumbers) -> int | None:
    """The descriptor in a block, with its locks; None where there is none."""
    bd_op = next((op for op in ops if isinstance(op, dma.DmaBdOp)), None)
    if bd_op is None:
        return None
    bd = static_bd(device, bd_op, numbers.of(bd_op))
    for op in ops:
        if isinstance(op, array.UseLockOp):
            use_lock(device, bd, op)
    number = device.bd_at[numbers.place, bd.number] = device.add_bd(bd)
    return number


def use_lock(device: Device, bd: Bd, op: array.UseLockOp) -> None:
    """Add an acquire or a release to a descriptor."""
    value = constant_int(op.value)
    if value is None:
        raise unsupported(op, "the value of a descriptor's lock is known only at run time: write a constant")
    use = LockUse(lock_number(device, op.lock), value, op.action.data == "AcquireGreaterEqual")
    if op.action.data == "Release":
        if bd.release is not None:
            raise unsupported(op, "a descriptor releases one lock: leave out the second one")
        bd.release = use
    else:
        if bd.acquire is not None:
            raise unsupported(op, "a descriptor acquires one lock: leave out the second one")
        bd.acquire = use


def lock_number(device: Device, lock: SSAValue) -> int:
    """The number of a lock."""
    if lock not in device.lock_of:
        owner = lock.owner
        raise unsupported(
            owner if isinstance(owner, Operation) else _parent(owner), "is no aie.lock of this device"
        )
    return device.lock_of[lock]


def static_bd(device: Device, op: dma.DmaBdOp, number: int) -> Bd:
    """A descriptor of a tile, whose numbers are constants."""
    if op.offset is not None or op.length is not None or op.sizes or op.strides:
        raise unsupported(op, "numbers known only at run time are not supported in the DMA program of a tile")
    if op.buffer not in device.buffer_of:
        raise unsupported(op, "moves something else than an aie.buffer of this device")
    type_ = op.buffer.type
    assert isinstance(type_, MemRefType)
    offset = integer_of(op, "static_offset", 0)
    elements = 1
    for extent in type_.get_shape():
        elements *= extent
    iteration = op.attributes.get("iteration")
    return Bd(
        line_of(op),
        number,
        device.buffer_of[op.buffer],
        offset,
        integer_of(op, "static_len", elements),
        types.byte_width(type_.element_type),
        dimensions_of(op),
        packet=packet_of(op),
        iteration=iteration if isinstance(iteration, BdIterationAttr) else None,
    )


def dimensions_of(op: dma.DmaBdOp) -> list[Dimension]:
    """The dimensions of a descriptor, whose numbers are constants."""
    sizes, strides, pads = integers(op.static_sizes), integers(op.static_strides), integers(op.pad)
    pads = pads or [0] * (2 * len(sizes))
    return [
        Dimension(size, stride, pads[2 * n], pads[2 * n + 1])
        for n, (size, stride) in enumerate(zip(sizes, strides, strict=True))
    ]


def packet_of(op: Operation) -> PacketInfoAttr | None:
    """The packet header that a descriptor sends."""
    packet = attribute(op, "packet")
    return packet if isinstance(packet, PacketInfoAttr) else None


# ---- cascades ----

_STEPS = {"North": (0, 1), "South": (0, -1), "East": (1, 0), "West": (-1, 0)}


def _read_cascades(device: Device) -> None:
    configured: dict[Place, tuple[str, str]] = {}
    for op in device.op.body.block.ops:
        if isinstance(op, array.CascadeFlowOp):
            _add_cascade(device, place_of(op.source_tile), place_of(op.dest_tile))
        elif isinstance(op, array.ConfigureCascadeOp):
            configured[place_of(op.tile)] = op.input_dir.data, op.output_dir.data
    for place, (_, to) in configured.items():
        step = _STEPS.get(to, (0, 0))
        other = place[0] + step[0], place[1] + step[1]
        back = _STEPS.get(configured.get(other, ("", ""))[0], (0, 0))
        if (step[0] + back[0], step[1] + back[1]) == (0, 0) and step != (0, 0):
            _add_cascade(device, place, other)


def _add_cascade(device: Device, from_: Place, to: Place) -> None:
    ends = device.core_at(from_), device.core_at(to)
    if None not in ends and ends not in device.cascades:
        device.cascades.append(ends)  # type: ignore[arg-type]


def operations(op: Operation) -> Iterator[Operation]:
    """The operations directly in the region of another one."""
    for region in op.regions:
        for block in region.blocks:
            yield from block.ops


def symbol_text(attribute_: Attribute | None) -> str:
    """The text of a name."""
    return attribute_.data if isinstance(attribute_, StringAttr) else ""
