"""The operations of a sequence that write registers: descriptors, queues, locks and data memory of tiles.

What is written is known when the C++ is made. So descriptors are decoded here, when a queue is given one; the
layouts are those of AIE-ML (aie-rt, xaiemlgbl_params.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr
from xdsl.dialects.memref import GetGlobalOp, GlobalOp
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.aie import sequence as ops
from aerie.air_dialect.aie.formats import integer_of
from aerie.virtual_npu.aie.design import MEMTILE, SHIM, Device, Place
from aerie.virtual_npu.aie.sequence import SequenceBody, of_sequence, pause, push, start_task
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import Body, emitter
from aerie.virtual_npu.codegen.cpp_text import mul, parenthesize
from aerie.virtual_npu.codegen.op_errors import line_of, unsupported

WORDS = 8
"""Registers of a descriptor; a core's tile has six of them."""


@dataclass(frozen=True)
class _Layout:
    """Where registers lie in a tile."""

    descriptors: int
    most_descriptors: int
    locks: int
    most_locks: int
    receive_queue: int
    send_queue: int
    channels: int
    memory: int

    def control(self, offset: int) -> bool:
        """Whether an offset is the control register of a channel."""
        queues = (self.receive_queue, self.send_queue)
        return any(
            (offset + 4 - queue) % 8 == 0 and 0 <= offset + 4 - queue < 8 * self.channels for queue in queues
        )


_SHIM = _Layout(0x1D000, 16, 0x14000, 16, 0x1D204, 0x1D214, 2, 0)
_MEMTILE = _Layout(0xA0000, 48, 0xC0000, 64, 0xA0604, 0xA0634, 6, 0x80000)
_CORE = _Layout(0x1D000, 16, 0x1F000, 16, 0x1DE04, 0x1DE14, 2, 0x10000)
_IGNORED = (
    (0x34000, 0x35000),
    (0x14500, 0x14600),
    (0x94000, 0x96000),
    (0x140A0, 0x14300),
    (0x31500, 0x31600),
    (0x3FF00, 0x3FF40),
    (0xB0F00, 0xB0F40),
)
"""Registers of events, traces and performance counters, which change no data."""
_CONTROLLER = 0xFF00
"""The bits of a channel's control register that say where its tokens go."""


def _layout(place: Place) -> _Layout:
    return {SHIM: _SHIM, MEMTILE: _MEMTILE}.get(place[1], _CORE)


@dataclass
class RegisterBd:
    """A descriptor as its registers say it: counts in words of 32 bits."""

    length: int = 0
    dimensions: list[tuple[int, int]] = field(default_factory=list)
    iteration: tuple[int, int, int] | None = None
    packet: tuple[int, int] | None = None
    acquire: tuple[int, int] | None = None
    release: tuple[int, int] | None = None
    next: int | None = None
    memory: tuple[SSAValue, int] | None = None
    """The argument that its address was patched with, and how many bytes behind its begin."""
    is_of_trace: bool = False
    """Whether it writes to an argument that the sequence does not have, as those for traces do."""


@dataclass
class Registers:
    """The descriptors that a sequence has written so far, by tile and number."""

    bds: dict[tuple[Place, int], RegisterBd] = field(default_factory=dict)


def _registers(body: SequenceBody) -> Registers:
    if body.registers is None:
        body.registers = Registers()
    assert isinstance(body.registers, Registers)
    return body.registers


def _number(body: Body, op: Operation, value: SSAValue) -> int:
    number = body.number(value)
    if number is None:
        raise unsupported(op, "with an address or a value known only at run time is not supported")
    return number & 0xFFFFFFFF


def _target(op: Operation, address: int) -> tuple[Place, int]:
    """The tile and the offset in it: of an absolute address, or of one beside `column` and `row`."""
    column, row = integer_of(op, "column", -1), integer_of(op, "row", -1)
    if column >= 0 and row >= 0:
        return (column, row), address & 0xFFFFF
    return (address >> 25, address >> 20 & 0x1F), address & 0xFFFFF


# ---- writes ----


@emitter("aiex.npu.write32")
def _write32(body: Body, op: Operation) -> None:
    assert isinstance(op, ops.Write32Op)
    inner, device = of_sequence(body, op)
    place, offset = _target(op, _number(body, op, op.address))
    body.comment(op)
    _write(inner, device, op, place, offset, _number(body, op, op.value))


def _write(body: SequenceBody, device: Device, op: Operation, place: Place, offset: int, value: int) -> None:
    layout = _layout(place)
    if offset < layout.memory:
        _write_memory(body, device, op, place, offset, value)
    elif layout.locks <= offset < layout.locks + 0x10 * layout.most_locks:
        number = (offset - layout.locks) // 0x10
        lock = next(
            (n for n, one in enumerate(device.locks) if (one.place, one.number) == (place, number)), None
        )
        if lock is None:
            raise unsupported(op, f"tile {place} has no lock {number}")
        pause(body, line_of(op))
        body.emit_line(f"host.set_lock({lock}, {value & 0x3F});")
    elif _queue(layout, offset) is not None:
        sends, channel = _queue(layout, offset) or (False, 0)
        bd = value & (0x3F if place[1] == MEMTILE else 0xF)
        _push(body, device, op, place, sends, channel, bd, value >> 16 & 0xFF, bool(value >> 31))
    elif not any(low <= offset < high for low, high in _IGNORED):
        raise unsupported(op, f"register {offset:#x} of tile {place} is not supported")


def _queue(layout: _Layout, offset: int) -> tuple[bool, int] | None:
    """The direction and channel of a task queue's register."""
    for sends, first in ((False, layout.receive_queue), (True, layout.send_queue)):
        if first <= offset < first + 8 * layout.channels and (offset - first) % 8 == 0:
            return sends, (offset - first) // 8
    return None


def _write_memory(
    body: SequenceBody, device: Device, op: Operation, place: Place, offset: int, value: int
) -> None:
    for number, buffer in enumerate(device.buffers):
        size = prod(buffer.type.get_shape()) * types.byte_width(buffer.type.element_type)
        if buffer.place == place and buffer.address is not None and 0 <= offset - buffer.address < size:
            pause(body, line_of(op))
            signed = value - (1 << 32) if value >> 31 else value
            body.emit_line(f"host.write({number}, {(offset - buffer.address) // 4}, int32_t({signed}));")
            return
    raise unsupported(op, f"no aie.buffer of tile {place} has address {offset:#x}")


@emitter("aiex.npu.maskwrite32")
def _maskwrite32(body: Body, op: Operation) -> None:
    """Where tokens go is no matter here; other bits are not built."""
    assert isinstance(op, ops.MaskWrite32Op)
    of_sequence(body, op)
    place, offset = _target(op, _number(body, op, op.address))
    mask = _number(body, op, op.mask)
    is_token = _layout(place).control(offset) and not mask & ~_CONTROLLER
    if not is_token and not any(low <= offset < high for low, high in _IGNORED):
        raise unsupported(op, f"bits {mask:#x} of register {offset:#x} of tile {place} are not supported")
    body.comment(op)


@emitter("aiex.npu.blockwrite")
def _blockwrite(body: Body, op: Operation) -> None:
    inner, _ = of_sequence(body, op)
    place, offset = _target(op, integer_of(op, "address") & 0xFFFFFFFF)
    layout, words = _layout(place), _constant_words(body, op)
    number, rest = divmod(offset - layout.descriptors, 4 * WORDS)
    if rest or not 0 <= number < layout.most_descriptors or place[1] != SHIM or len(words) != WORDS:
        raise unsupported(op, f"of {len(words)} registers at {offset:#x} of tile {place} is not supported")
    body.comment(op)
    _registers(inner).bds[place, number] = _decode_shim(words)


def _constant_words(body: Body, op: Operation) -> list[int]:
    source = op.operands[0].owner
    if not isinstance(source, GetGlobalOp):
        raise unsupported(op, "of anything but a memref.global is not supported")
    name = source.name_.root_reference.data
    for found in body.file.module.walk():
        if isinstance(found, GlobalOp) and found.sym_name.data == name and _same_device(found, op):
            values = found.initial_value
            if isinstance(values, DenseIntOrFPElementsAttr):
                count = prod(values.get_type().get_shape())  # type: ignore[attr-defined]
                words = [int(value) & 0xFFFFFFFF for value in values.get_values()]
                return words * count if len(words) == 1 else words
    raise unsupported(op, f"no memref.global @{name} with values")


def _same_device(one: Operation, other: Operation) -> bool:
    sequence = other.parent_op()
    while sequence is not None and sequence.parent_op() is not one.parent_op():
        sequence = sequence.parent_op()
    return sequence is not None


def _decode_shim(words: Sequence[int]) -> RegisterBd:
    """A descriptor of a shim from its eight registers."""
    wraps = words[3] >> 20 & 0x3FF, words[4] >> 20 & 0x3FF
    steps = [word & 0xFFFFF for word in words[3:6]]
    bd = RegisterBd(words[0], _dimensions(words[0], wraps, steps))
    if words[2] >> 30 & 1:
        bd.packet = words[2] >> 19 & 0x1F, words[2] >> 16 & 0x7
    if words[6] & 0x3FFFFFF:
        bd.iteration = (words[6] >> 20 & 0x3F) + 1, (words[6] & 0xFFFFF) + 1, words[6] >> 26
    if words[7] >> 26 & 1:
        bd.next = words[7] >> 27 & 0xF
    return bd


def _dimensions(length: int, wraps: Sequence[int], steps: Sequence[int]) -> list[tuple[int, int]]:
    """Sizes and strides in words, outermost first: a wrap of 0 does not end, and steps are one less."""
    inner: list[tuple[int, int]] = []
    remaining = length
    for wrap, step in zip([*wraps, 0], steps, strict=True):
        if wrap == 0 or wrap >= remaining:
            return [(remaining, step + 1), *inner]
        inner.insert(0, (wrap, step + 1))
        remaining = -(-remaining // wrap)
    return inner


@emitter("aiex.npu.address_patch")
def _address_patch(body: Body, op: Operation) -> None:
    assert isinstance(op, ops.AddressPatchOp)
    inner, _ = of_sequence(body, op)
    address = integer_of(op, "addr") & 0xFFFFFFFF
    place, offset = (address >> 25, address >> 20 & 0x1F), address & 0xFFFFF
    number, rest = divmod(offset - _layout(place).descriptors, 4 * WORDS)
    bd = _registers(inner).bds.get((place, number))
    if bd is None or rest != 4:
        raise unsupported(op, f"address {address:#x} is in no descriptor that was written before")
    arguments, number = inner.root.body.block.args, integer_of(op, "arg_idx")  # type: ignore[union-attr]
    body.comment(op)
    bd.is_of_trace = number >= len(arguments)
    bd.memory = None if bd.is_of_trace else (arguments[number], _number(body, op, op.plus))


@emitter("aiex.npu.writebd")
def _writebd(body: Body, op: Operation) -> None:
    inner, _ = of_sequence(body, op)
    place = integer_of(op, "column"), integer_of(op, "row")
    if place[1] != SHIM:
        raise unsupported(op, "of a tile that is no shim is not supported: write aiex.dma_configure_task")
    length = integer_of(op, "buffer_length")
    wraps = [integer_of(op, f"d{n}_size", 0) for n in range(2)]
    steps = [integer_of(op, f"d{n}_stride", 0) for n in range(3)]
    bd = RegisterBd(length, _dimensions(length, wraps, steps))
    if integer_of(op, "enable_packet", 0):
        bd.packet = integer_of(op, "packet_id", 0), integer_of(op, "packet_type", 0)
    size, stride = integer_of(op, "iteration_size", 0), integer_of(op, "iteration_stride", 0)
    if size or stride:
        bd.iteration = size + 1, stride + 1, integer_of(op, "iteration_current", 0)
    if integer_of(op, "use_next_bd", 0):
        bd.next = integer_of(op, "next_bd", 0)
    body.comment(op)
    _registers(inner).bds[place, integer_of(op, "bd_id")] = bd


@emitter("aiex.npu.push_queue")
def _push_queue(body: Body, op: Operation) -> None:
    assert isinstance(op, ops.PushQueueOp)
    inner, device = of_sequence(body, op)
    place = op.column.value.data, op.row.value.data
    bd, repeat = _number(body, op, op.bd), _number(body, op, op.repeat)
    token = bool(integer_of(op, "issue_token", 0))
    body.comment(op)
    _push(inner, device, op, place, op.direction.data == "MM2S", op.channel.value.data, bd, repeat, token)


def _push(
    body: SequenceBody, device: Device, op: Operation, place: Place, sends: bool, channel: int, first: int,
    repeat: int, token: bool,
) -> None:  # fmt: skip
    index = device.channel(place, sends, channel)
    written = _registers(body).bds
    bds: list[tuple[int, RegisterBd]] = []
    number = first
    while True:
        bd = written.get((place, number))
        if bd is None or (number != first and number == bds[0][0]):
            raise unsupported(
                op, f"descriptor {number} of tile {place} was not written before, or begins again"
            )
        bds.append((number, bd))
        if bd.next is None:
            break
        number = bd.next
    if any(bd.is_of_trace for _, bd in bds):
        return
    texts = [_bd_text(body, op, number, bd) for number, bd in bds]
    push(body, start_task(body, op, index, str(repeat), token, texts), line_of(op))


def _bd_text(body: SequenceBody, op: Operation, number: int, bd: RegisterBd) -> str:
    """C++ text of the arguments of `Task::add`."""
    if bd.memory is None:
        raise unsupported(
            op, f"descriptor {number} has no address of an argument: add aiex.npu.address_patch"
        )
    memref, plus = body.memref(bd.memory[0]), bd.memory[1]
    extent = mul(parenthesize(memref.extent), str(types.byte_width(memref.type.element_type)))
    dims = ", ".join(f"{{{size}, {stride}, 0, 0}}" for size, stride in bd.dimensions)
    packet = f"{{{bd.packet[0]}, {bd.packet[1]}}}" if bd.packet else "{}"
    iteration = "{" + ", ".join(map(str, bd.iteration)) + "}" if bd.iteration else "{}"
    fields = [line_of(op), number, -1, plus // 4, bd.length, 4, len(bd.dimensions)]
    text = ", ".join([*map(str, fields), f"{{{dims}}}", "{}, {}", packet, "-1", iteration, "true"])
    return f"vnpu::aie::BdTable{{{text}}}, {memref.pointer}, {extent}"
