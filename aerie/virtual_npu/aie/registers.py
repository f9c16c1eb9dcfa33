"""The operations of a sequence that write registers: descriptors, queues, resets, locks and memory of tiles.

What is written is known when the C++ is made. So descriptors are decoded here, when a queue is given one
(register_layout, register_tasks).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, SymbolRefAttr
from xdsl.dialects.memref import GetGlobalOp, GlobalOp
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.aie import sequence as ops
from aerie.air_dialect.aie.formats import integer_of
from aerie.air_dialect.aie.scratchpads import UpdateFromScratchpadOp
from aerie.common.shown_names import symbol_name
from aerie.virtual_npu.aie import register_layout as layouts
from aerie.virtual_npu.aie.design import MEMTILE, SHIM, Channel, Device, Place, place_of
from aerie.virtual_npu.aie.register_layout import RegisterBd, layout_of
from aerie.virtual_npu.aie.register_tasks import buffer_at, lock_at, push_written, registers_of
from aerie.virtual_npu.aie.scratchpads import WORDS
from aerie.virtual_npu.aie.sequence import SequenceBody, allocation, of_sequence, pause
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import Body, emitter
from aerie.virtual_npu.codegen.op_errors import attribute, line_of, unsupported


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
        lock = lock_at(device, op, place, (offset - layout.locks) // 0x10)
        pause(body, line_of(op))
        body.emit_line(f"host.set_lock({lock}, {value & 0x3F});")
    elif queue is not None:
        bd = value & (0x3F if place[1] == MEMTILE else 0xF)
        push_written(body, device, op, Channel(place, *queue), bd, value >> 16 & 0xFF, bool(value >> 31))
    elif descriptor is not None:
        registers_of(body).write(place, *descriptor, value)
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


def _write_memory(
    body: SequenceBody, device: Device, op: Operation, target: _Target, value: int, mask: int = 0xFFFFFFFF
) -> None:
    number, offset = _memory_at(device, op, target, 4)
    pause(body, line_of(op))
    masked = "" if mask == 0xFFFFFFFF else f", {mask:#x}u"
    body.emit_line(f"host.write({number}, {offset // 4}, int32_t({layouts.signed(value, 32)}){masked});")


def _memory_at(device: Device, op: Operation, target: _Target, nbytes: int) -> tuple[int, int]:
    """The buffer that has these bytes of a tile, and where in it they begin."""
    number, offset = (
        buffer_at(device, target.place, target.offset)
        if target.buffer is None
        else (target.buffer, target.offset)
    )
    buffer = device.buffers[number]
    if offset + nbytes > prod(buffer.type.get_shape()) * types.byte_width(buffer.type.element_type):
        raise unsupported(op, f"byte {offset} is outside of buffer {symbol_name(buffer.name)}")
    if number in device.whole_memory.values():
        raise unsupported(op, f"no aie.buffer of tile {target.place} has address {target.offset:#x}")
    return number, offset


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


# ---- scratchpads ----


@emitter("aiex.npu.create_scratchpad")
def _create_scratchpad(body: Body, op: Operation) -> None:
    of_sequence(body, op)
    size = integer_of(op, "size", 0)
    if not 0 < size <= 4 * WORDS or size % 4:
        raise unsupported(op, f"of {size} bytes: a scratchpad has a multiple of 4 bytes, at most {4 * WORDS}")
    body.comment(op)
    pause(body, line_of(op))
    body.emit_line(f"host.copy_scratchpad({size // 4});")


@emitter("aiex.npu.update_from_scratchpad")
def _update_from_scratchpad(body: Body, op: Operation) -> None:
    assert isinstance(op, UpdateFromScratchpadOp)
    _, device = of_sequence(body, op)
    index, argument = integer_of(op, "state_table_idx"), integer_of(op, "func_arg", 0) & 0xFFFFFFFF
    target = _target(device, op, integer_of(op, "address", 0) & 0xFFFFFFFF)
    if target.buffer is None and target.offset >= layout_of(target.place).memory:
        raise unsupported(
            op, "of a register is not supported: give the descriptor an offset_parameter, or name a buffer"
        )
    if not 0 <= index < WORDS:
        raise unsupported(op, f"word {index} of a scratchpad that has {WORDS}")
    number, offset = _memory_at(device, op, target, 8)
    body.comment(op)
    pause(body, line_of(op))
    sign = {"incr": "+", "decr": "-", "mul": "*"}[op.function.data]
    delta = f"host.scratchpad_word({index}, {line_of(op)}) {sign} {argument}u"
    body.emit_line(f"host.add({number}, {offset // 4}, {delta});")


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
    registers, found = registers_of(inner), layout_of(place).descriptor(offset)
    if found is None or found[1] != 1 or registers.bd(place, found[0]) is None:
        raise unsupported(op, f"address {address:#x} is in no descriptor that was written before")
    body.comment(op)
    registers.arguments[place, found[0]] = integer_of(op, "arg_idx"), _number(body, op, op.plus)


@emitter("aiex.npu.writebd")
def _writebd(body: Body, op: Operation) -> None:
    inner, _ = of_sequence(body, op)
    place, number = (integer_of(op, "column"), integer_of(op, "row")), integer_of(op, "bd_id")
    body.comment(op)
    registers = registers_of(inner)
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
    push_written(inner, device, op, channel, bd, repeat, token)
