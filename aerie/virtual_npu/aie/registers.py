"""The operations of a sequence that write registers: descriptors, queues, resets, locks and memory of tiles.

What is written is known when the C++ is made. So descriptors are decoded here, when a queue is given one
(register_layout).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, MemRefType, SymbolRefAttr, i32
from xdsl.dialects.memref import GetGlobalOp, GlobalOp
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.aie import routing
from aerie.air_dialect.aie import sequence as ops
from aerie.air_dialect.aie.formats import integer_of
from aerie.common.shown_names import symbol_name
from aerie.virtual_npu.aie import register_layout as layouts
from aerie.virtual_npu.aie.design import MEMTILE, SHIM, Buffer, Channel, Device, Place, place_of
from aerie.virtual_npu.aie.memory_use import STACK
from aerie.virtual_npu.aie.register_layout import RegisterBd, layout_of
from aerie.virtual_npu.aie.sequence import (
    SequenceBody,
    allocation,
    of_sequence,
    pause,
    push,
    start_task,
)
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import Body, emitter
from aerie.virtual_npu.codegen.cpp_text import mul, parenthesize
from aerie.virtual_npu.codegen.op_errors import attribute, line_of, unsupported


@dataclass
class Registers:
    """The registers of descriptors that a sequence has written so far, by tile and number."""

    words: dict[tuple[Place, int], list[int]] = field(default_factory=dict)
    bds: dict[tuple[Place, int], RegisterBd] = field(default_factory=dict)
    """Those that were written by their fields."""
    arguments: dict[tuple[Place, int], tuple[int, int]] = field(default_factory=dict)
    """The argument that an address was patched with, and how many bytes behind its begin."""

    def write(self, place: Place, number: int, word: int, value: int) -> None:
        """Write a register of a descriptor."""
        self.bds.pop((place, number), None)
        self.words.setdefault((place, number), [0] * layouts.WORDS)[word] = value

    def bd(self, place: Place, number: int) -> RegisterBd | None:
        """A descriptor; None where it was not written."""
        words = self.words.get((place, number))
        return layout_of(place).decode(words) if words else self.bds.get((place, number))


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


@dataclass(frozen=True)
class _Target:
    """What an operation writes to: bytes of a tile, or of a buffer."""

    place: Place
    offset: int
    buffer: int | None = None

    def after(self, words: int) -> _Target:
        """So many words behind it."""
        return _Target(self.place, self.offset + 4 * words, self.buffer)


def _target(device: Device, op: Operation, address: int) -> _Target:
    """An absolute address, one beside `column` and `row`, or a word of a `buffer`."""
    name = attribute(op, "buffer")
    if isinstance(name, SymbolRefAttr):
        number = device.buffer_named.get(name.root_reference.data)
        if number is None:
            raise unsupported(op, f"no aie.buffer {symbol_name(name.root_reference.data)}")
        return _Target(device.buffers[number].place, 4 * address, number)
    column, row = integer_of(op, "column", -1), integer_of(op, "row", -1)
    if column >= 0 and row >= 0:
        return _Target((column, row), address & 0xFFFFF)
    return _Target((address >> 25, address >> 20 & 0x1F), address & 0xFFFFF)


# ---- writes ----


@emitter("aiex.npu.write32")
def _write32(body: Body, op: Operation) -> None:
    assert isinstance(op, ops.Write32Op)
    inner, device = of_sequence(body, op)
    body.comment(op)
    target = _target(device, op, _number(body, op, op.address))
    _write(inner, device, op, target, _number(body, op, op.value))


def _write(body: SequenceBody, device: Device, op: Operation, target: _Target, value: int) -> None:
    place, offset = target.place, target.offset
    layout = layout_of(place)
    queue, descriptor = layout.queue(offset), layout.descriptor(offset)
    if target.buffer is not None or offset < layout.memory:
        _write_memory(body, device, op, target, value)
    elif layout.locks <= offset < layout.locks + 0x10 * layout.most_locks:
        lock = _lock(device, op, place, (offset - layout.locks) // 0x10)
        pause(body, line_of(op))
        body.emit_line(f"host.set_lock({lock}, {value & 0x3F});")
    elif queue is not None:
        bd = value & (0x3F if place[1] == MEMTILE else 0xF)
        _push(body, device, op, Channel(place, *queue), bd, value >> 16 & 0xFF, bool(value >> 31))
    elif descriptor is not None:
        _registers(body).write(place, *descriptor, value)
    else:
        _write_control(body, device, op, target, value, 0xFFFFFFFF)


def _write_control(
    body: SequenceBody, device: Device, op: Operation, target: _Target, value: int, mask: int
) -> None:
    """Bits of a control register: resets; where tokens go is no matter here."""
    place, offset = target.place, target.offset
    channel = layout_of(place).control(offset)
    if channel is not None and not mask & ~(layouts.CONTROLLER | layouts.RESET):
        if value & mask & layouts.RESET:
            _reset_channel(body, device, op, Channel(place, *channel))
    elif offset == layouts.CORE_CONTROL and place[1] > MEMTILE and not mask & value & ~3:
        if value & mask & layouts.RESET:
            _emit_core(body, device, op, place, "halt_core")
        elif value & mask & 1:
            _emit_core(body, device, op, place, "begin_core")
    elif not any(low <= offset < high for low, high in layouts.IGNORED):
        bits = "" if mask == 0xFFFFFFFF else f"bits {mask:#x} of "
        raise unsupported(op, f"{bits}register {offset:#x} of tile {place} is not supported")


def _lock(device: Device, op: Operation, place: Place, number: int) -> int:
    for found, lock in enumerate(device.locks):
        if (lock.place, lock.number) == (place, number):
            return found
    raise unsupported(op, f"tile {place} has no lock {number}")


def _buffer_at(device: Device, place: Place, address: int) -> tuple[int, int]:
    """The buffer at an address of a tile, and how many bytes behind its begin; where no buffer of the text
    has it, one for the tile's whole memory."""
    for number, buffer in enumerate(device.buffers):
        size = prod(buffer.type.get_shape()) * types.byte_width(buffer.type.element_type)
        begin = buffer.address if buffer.address is not None else _address_in_order(device, number)
        if buffer.place == place and 0 <= address - begin < size:
            return number, address - begin
    if place not in device.whole_memory:
        words = MemRefType(i32, [layout_of(place).memory // 4])
        device.whole_memory[place] = device.add_buffer(Buffer(f"memory of tile {place}", place, words))
    return device.whole_memory[place], address


_ALIGNMENT = 32


def _address_in_order(device: Device, number: int) -> int:
    """Where a buffer lies that has no address: behind the stack and the buffers before it, as aiecc's
    `basic-sequential` places them."""
    place = device.buffers[number].place
    core = device.core_at(place)
    end = integer_of(device.cores[core], "stack_size", STACK) if core is not None else 0
    for buffer in device.buffers[:number]:
        if buffer.place == place:
            end += prod(buffer.type.get_shape()) * types.byte_width(buffer.type.element_type)
            end = -(-end // _ALIGNMENT) * _ALIGNMENT
    return end


def _write_memory(
    body: SequenceBody, device: Device, op: Operation, target: _Target, value: int, mask: int = 0xFFFFFFFF
) -> None:
    number, offset = (
        _buffer_at(device, target.place, target.offset)
        if target.buffer is None
        else (target.buffer, target.offset)
    )
    buffer = device.buffers[number]
    if offset + 4 > prod(buffer.type.get_shape()) * types.byte_width(buffer.type.element_type):
        raise unsupported(op, f"byte {offset} is outside of buffer {symbol_name(buffer.name)}")
    if number in device.whole_memory.values():
        raise unsupported(op, f"no aie.buffer of tile {target.place} has address {target.offset:#x}")
    pause(body, line_of(op))
    masked = "" if mask == 0xFFFFFFFF else f", {mask:#x}u"
    body.emit_line(f"host.write({number}, {offset // 4}, int32_t({layouts.signed(value, 32)}){masked});")


@emitter("aiex.npu.maskwrite32")
def _maskwrite32(body: Body, op: Operation) -> None:
    assert isinstance(op, ops.MaskWrite32Op)
    inner, device = of_sequence(body, op)
    target = _target(device, op, _number(body, op, op.address))
    value, mask = _number(body, op, op.value), _number(body, op, op.mask)
    body.comment(op)
    if target.buffer is not None or target.offset < layout_of(target.place).memory:
        _write_memory(inner, device, op, target, value, mask)
    else:
        _write_control(inner, device, op, target, value, mask)


@emitter("aiex.npu.blockwrite")
def _blockwrite(body: Body, op: Operation) -> None:
    inner, device = of_sequence(body, op)
    target = _target(device, op, integer_of(op, "address") & 0xFFFFFFFF)
    body.comment(op)
    for number, word in enumerate(_constant_words(body, op)):
        _write(inner, device, op, target.after(number), word)


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


# ---- resets ----


def _reset_channel(body: SequenceBody, device: Device, op: Operation, channel: Channel) -> None:
    pause(body, line_of(op))
    body.emit_line(f"host.reset({device.number_of(channel)});")


def _emit_core(body: SequenceBody, device: Device, op: Operation, place: Place, what: str) -> None:
    core = device.core_at(place)
    if core is None:
        raise unsupported(op, f"tile {place} has no aie.core")
    pause(body, line_of(op))
    body.emit_line(f"host.{what}({core});")


@emitter("aiex.core_reset")
def _core_reset(body: Body, op: Operation) -> None:
    inner, device = of_sequence(body, op)
    body.comment(op)
    _emit_core(inner, device, op, place_of(op.operands[0]), "halt_core")


@emitter("aiex.dma_channel_reset")
def _dma_channel_reset(body: Body, op: Operation) -> None:
    assert isinstance(op, ops.DmaChannelResetOp)
    inner, device = of_sequence(body, op)
    body.comment(op)
    channel = Channel(place_of(op.tile), op.direction.data == "MM2S", op.channel.value.data)
    _reset_channel(inner, device, op, channel)


@emitter("aiex.dma_channel_reset_for")
def _dma_channel_reset_for(body: Body, op: Operation) -> None:
    assert isinstance(op, ops.DmaChannelResetForOp)
    inner, device = of_sequence(body, op)
    body.comment(op)
    _reset_channel(inner, device, op, allocation(device, op, op.alloc)[0])


# ---- descriptors ----


@emitter("aiex.npu.address_patch")
def _address_patch(body: Body, op: Operation) -> None:
    assert isinstance(op, ops.AddressPatchOp)
    inner, _ = of_sequence(body, op)
    address = integer_of(op, "addr") & 0xFFFFFFFF
    place, offset = (address >> 25, address >> 20 & 0x1F), address & 0xFFFFF
    registers, found = _registers(inner), layout_of(place).descriptor(offset)
    if found is None or found[1] != 1 or registers.bd(place, found[0]) is None:
        raise unsupported(op, f"address {address:#x} is in no descriptor that was written before")
    body.comment(op)
    registers.arguments[place, found[0]] = integer_of(op, "arg_idx"), _number(body, op, op.plus)


@emitter("aiex.npu.writebd")
def _writebd(body: Body, op: Operation) -> None:
    inner, _ = of_sequence(body, op)
    place, number = (integer_of(op, "column"), integer_of(op, "row")), integer_of(op, "bd_id")
    body.comment(op)
    registers = _registers(inner)
    registers.words.pop((place, number), None)
    registers.arguments.pop((place, number), None)
    registers.bds[place, number] = _bd_of_fields(op, place)


def _bd_of_fields(op: Operation, place: Place) -> RegisterBd:
    def field_of(name: str) -> int:
        return integer_of(op, name, 0)

    inner = 3 if place[1] == MEMTILE else 2
    wraps = [field_of(f"d{n}_size") for n in range(inner)]
    steps = [field_of(f"d{n}_stride") for n in range(inner + 1)]
    bd = RegisterBd(field_of("buffer_length"), layouts.dimensions(field_of("buffer_length"), wraps, steps))
    pads = [(field_of(f"d{n}_zero_before"), field_of(f"d{n}_zero_after")) for n in range(3)]
    if any(map(any, pads)):
        bd.padding = [(0, 0), *pads[::-1]][-len(bd.dimensions) :]
    if field_of("enable_packet"):
        bd.packet = field_of("packet_id"), field_of("packet_type")
    size, stride = field_of("iteration_size"), field_of("iteration_stride")
    if size or stride:
        bd.iteration = size + 1, stride + 1, field_of("iteration_current")
    if field_of("use_next_bd"):
        bd.next = field_of("next_bd")
    if place[1] != SHIM:
        bd.address = field_of("buffer_offset") % layout_of(place).memory
    if field_of("lock_acq_enable"):
        bd.acquire = field_of("lock_acq_id"), layouts.signed(field_of("lock_acq_val") & 0x7F)
        bd.release = field_of("lock_rel_id"), layouts.signed(field_of("lock_rel_val") & 0x7F)
    return bd


@emitter("aiex.npu.push_queue")
def _push_queue(body: Body, op: Operation) -> None:
    assert isinstance(op, ops.PushQueueOp)
    inner, device = of_sequence(body, op)
    place = op.column.value.data, op.row.value.data
    bd, repeat = _number(body, op, op.bd), _number(body, op, op.repeat)
    token = bool(integer_of(op, "issue_token", 0))
    body.comment(op)
    channel = Channel(place, op.direction.data == "MM2S", op.channel.value.data)
    _push(inner, device, op, channel, bd, repeat, token)


def _push(
    body: SequenceBody, device: Device, op: Operation, channel: Channel, first: int, repeat: int, token: bool
) -> None:
    place, registers = channel.place, _registers(body)
    index, line = device.number_of(channel), line_of(op)
    if registers.bd(place, first) is None and (place, first) in device.bd_at:
        task = body.fresh("task")
        numbers = f"{index}, {device.bd_at[place, first]}, {repeat}, {'true' if token else 'false'}"
        body.emit_line(f"vnpu::aie::Task *const {task} = host.chain({numbers});")
        push(body, task, line)
        return
    numbers_in_chain, loop = _chain(op, registers, place, first)
    if place[1] == SHIM and any(_is_of_trace(body, device, channel, number) for number in numbers_in_chain):
        return
    texts = [_bd_text(body, device, op, place, number) for number in numbers_in_chain]
    task = start_task(body, op, index, str(repeat), token, texts)
    if loop is not None:
        body.emit_line(f"{task}->loop_to({loop});")
    push(body, task, line)


def _chain(op: Operation, registers: Registers, place: Place, first: int) -> tuple[list[int], int | None]:
    """The descriptors from one on; and which of them comes after the last one, None where none does."""
    chain: list[int] = []
    number: int | None = first
    while number is not None and number not in chain:
        bd = registers.bd(place, number)
        if bd is None:
            raise unsupported(op, f"descriptor {number} of tile {place} was not written before")
        chain.append(number)
        number = bd.next
    return chain, None if number is None else chain.index(number)


def _is_of_trace(body: SequenceBody, device: Device, channel: Channel, number: int) -> bool:
    """Whether a descriptor of a shim writes traces: to an argument that the sequence does not have, or to
    none from a trace's flow."""
    patched = _registers(body).arguments.get((channel.place, number))
    if patched is not None:
        return patched[0] >= len(body.root.body.block.args)  # type: ignore[union-attr]
    flows = [op for op in device.op.body.block.ops if isinstance(op, routing.PacketFlowOp)]
    return any(_leads_traces_to(op, channel) for op in flows)


def _leads_traces_to(op: routing.PacketFlowOp, channel: Channel) -> bool:
    ends = list(op.body.block.ops)
    sources = [end for end in ends if isinstance(end, routing.PacketSourceOp)]
    dests = [end for end in ends if isinstance(end, routing.PacketDestOp)]
    return any(end.bundle.data == "Trace" for end in sources) and any(
        (place_of(end.tile), end.channel.value.data) == (channel.place, channel.number) for end in dests
    )


def _bd_text(body: SequenceBody, device: Device, op: Operation, place: Place, number: int) -> str:
    """C++ text of the arguments of `Task::add`."""
    bd = _registers(body).bd(place, number)
    assert bd is not None
    offset, pointer, extent = _memory_of(body, device, op, place, number, bd)
    pads = bd.padding or [(0, 0)] * len(bd.dimensions)
    dims = ", ".join(
        f"{{{size}, {stride}, {before}, {after}}}"
        for (size, stride), (before, after) in zip(bd.dimensions, pads, strict=True)
    )
    packet = f"{{{bd.packet[0]}, {bd.packet[1]}}}" if bd.packet else "{}"
    iteration = "{" + ", ".join(map(str, bd.iteration)) + "}" if bd.iteration else "{}"
    locks = f"{_lock_text(device, op, place, bd.acquire)}, {_lock_text(device, op, place, bd.release)}"
    fields = [line_of(op), number, -1, offset // 4, bd.length, 4, len(bd.dimensions)]
    text = ", ".join([*map(str, fields), f"{{{dims}}}", locks, packet, "-1", iteration, "true"])
    return f"vnpu::aie::BdTable{{{text}}}, {pointer}, {extent}"


def _memory_of(
    body: SequenceBody, device: Device, op: Operation, place: Place, number: int, bd: RegisterBd
) -> tuple[int, str, str]:
    """Bytes behind the begin of a descriptor's memory, C++ text of that and of how many bytes it has."""
    if place[1] == SHIM:
        patched = _registers(body).arguments.get((place, number))
        if patched is None:
            raise unsupported(
                op, f"descriptor {number} has no address of an argument: add aiex.npu.address_patch"
            )
        memref = body.memref(body.root.body.block.args[patched[0]])  # type: ignore[union-attr]
        width = types.byte_width(memref.type.element_type)
        return patched[1], memref.pointer, mul(parenthesize(memref.extent), str(width))
    buffer, offset = _buffer_at(device, place, bd.address)
    type_ = device.buffers[buffer].type
    extent = prod(type_.get_shape()) * types.byte_width(type_.element_type)
    return offset, f"host.array->memory[{buffer}]", str(extent)


def _lock_text(device: Device, op: Operation, place: Place, use: tuple[int, int] | None) -> str:
    if use is None:
        return "{}"
    lock = _lock(device, op, place, layouts.own_lock(place, use[0]))
    return f"{{{lock}, {abs(use[1])}, {'true' if use[1] < 0 else 'false'}}}"
