"""Tasks of descriptors that a sequence wrote by their registers."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.builtin import MemRefType, i32
from xdsl.ir import Operation

from aerie.air_dialect.aie import routing
from aerie.air_dialect.aie.formats import integer_of
from aerie.virtual_npu.aie import register_layout as layouts
from aerie.virtual_npu.aie.design import SHIM, Buffer, Channel, Device, Place, place_of
from aerie.virtual_npu.aie.memory_use import STACK
from aerie.virtual_npu.aie.register_layout import RegisterBd, layout_of
from aerie.virtual_npu.aie.sequence import SequenceBody, push, start_task
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.cpp_text import mul, parenthesize
from aerie.virtual_npu.codegen.op_errors import line_of, unsupported


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


def registers_of(body: SequenceBody) -> Registers:
    """What a sequence has written so far."""
    if body.registers is None:
        body.registers = Registers()
    assert isinstance(body.registers, Registers)
    return body.registers


def lock_at(device: Device, op: Operation, place: Place, number: int) -> int:
    """The number among all of a lock of a tile. Raises UnsupportedOpError where there is none."""
    for found, lock in enumerate(device.locks):
        if (lock.place, lock.number) == (place, number):
            return found
    raise unsupported(op, f"tile {place} has no lock {number}")


def buffer_at(device: Device, place: Place, address: int) -> tuple[int, int]:
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


def push_written(
    body: SequenceBody, device: Device, op: Operation, channel: Channel, first: int, repeat: int, token: bool
) -> None:
    """Emit that a queue gets the chain from a descriptor on: one written before, or one of the device."""
    place, registers = channel.place, registers_of(body)
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
    patched = registers_of(body).arguments.get((channel.place, number))
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
    bd = registers_of(body).bd(place, number)
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
        patched = registers_of(body).arguments.get((place, number))
        if patched is None:
            raise unsupported(
                op, f"descriptor {number} has no address of an argument: add aiex.npu.address_patch"
            )
        memref = body.memref(body.root.body.block.args[patched[0]])  # type: ignore[union-attr]
        width = types.byte_width(memref.type.element_type)
        return patched[1], memref.pointer, mul(parenthesize(memref.extent), str(width))
    buffer, offset = buffer_at(device, place, bd.address)
    type_ = device.buffers[buffer].type
    extent = prod(type_.get_shape()) * types.byte_width(type_.element_type)
    return offset, f"host.array->memory[{buffer}]", str(extent)


def _lock_text(device: Device, op: Operation, place: Place, use: tuple[int, int] | None) -> str:
    if use is None:
        return "{}"
    lock = lock_at(device, op, place, layouts.own_lock(place, use[0]))
    return f"{{{lock}, {abs(use[1])}, {'true' if use[1] < 0 else 'false'}}}"
