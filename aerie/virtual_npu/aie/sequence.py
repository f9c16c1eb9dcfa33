"""The C++ of runtime sequences: a coroutine of the host, which gives tasks to shims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import DYNAMIC_INDEX, IntegerAttr, MemRefType, SymbolRefAttr
from xdsl.dialects.memref import ReinterpretCastOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from aerie.air_dialect.aie import array, dma, sequence
from aerie.air_dialect.aie.attributes import PacketInfoAttr
from aerie.air_dialect.aie.formats import integer_of, integers
from aerie.air_dialect.index_constants import constant_int
from aerie.common.shown_names import symbol_name
from aerie.virtual_npu.aie.cores import AieFile, static_memref
from aerie.virtual_npu.aie.design import Channel, Device, lock_number, packet_of, place_of
from aerie.virtual_npu.aie.scratchpads import offset_index
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import Body, MemRef, Scalar, emitter
from aerie.virtual_npu.codegen.cpp_text import add, is_integer, mul, parenthesize
from aerie.virtual_npu.codegen.execution import BodyMode
from aerie.virtual_npu.codegen.op_errors import attribute, line_of, unsupported

MAX_REPEAT = 255


@dataclass
class SequenceBody(Body):
    """The C++ function of a runtime sequence."""

    device: Device | None = None
    """The device that is loaded where the text being emitted runs."""
    tasks: dict[SSAValue, tuple[str, int]] = field(default_factory=dict)
    """Of each task: the C++ variable, the channel."""
    registers: object = None
    """What has been written to registers so far (registers.Registers)."""

    def operation(self, op: Operation) -> None:
        if isinstance(op, ReinterpretCastOp):
            _reinterpret_cast(self, op)
        else:
            super().operation(op)


def _reinterpret_cast(body: SequenceBody, op: ReinterpretCastOp) -> None:
    """In a sequence, mlir-aie counts the offset from the start of the operand, even if that is a part of a
    buffer."""
    offsets, source = integers(op.static_offsets), body.memref(op.source)
    if op.offsets or len(offsets) != 1:
        raise unsupported(op, "with an offset known only at run time is not supported")
    assert isinstance(op.result.type, MemRefType)
    body.values[op.result] = static_memref(f"({add(source.pointer, str(offsets[0]))})", op.result.type)


def entry_name(op: sequence.RuntimeSequenceOp) -> str:
    """The name of a sequence."""
    return op.sym_name.data if op.sym_name is not None else "sequence"


def emit_sequence(file: AieFile, device: Device, op: sequence.RuntimeSequenceOp) -> tuple[str, list[str]]:
    """Emit the coroutine of a sequence. Returns its C++ name and the types of its parameters."""
    name = file.fresh(f"sequence_{entry_name(op)}")
    body = SequenceBody(file, BodyMode.PROCESS, root=op, device=device)
    parameters, kinds = [], []
    for argument in op.body.block.args:
        text = body.name_for(argument)
        if isinstance(argument.type, MemRefType):
            kind = types.pointer(argument.type, checked=False)
            body.values[argument] = static_memref(text, argument.type)
        else:
            kind = types.cpp(argument.type)
            body.values[argument] = Scalar(text)
        parameters.append(f"{kind} {text}")
        kinds.append(kind)
    if device.has_tiles:
        _load(body, device, line_of(op))
    _emit_block(body, op.body.block)
    head = f"static vnpu::aie::Fiber {name}({', '.join(['vnpu::aie::Host &host', *parameters])}) {{"
    file.functions.append("\n".join([head, *body.lines, "  co_return;", "}"]))
    return name, kinds


def _load(body: SequenceBody, device: Device, line: int) -> None:
    body.emit_line(f"co_await host.rest({line});")
    again = "true" if device.is_reset else "false"
    body.emit_line(f"host.load(device_{device.number}, {again});")


def _emit_block(body: Body, block: Block) -> None:
    for op in block.ops:
        if op.name not in ("aie.end", "memref.get_global"):  # aiex.npu.blockwrite reads the global itself
            body.operation(op)


def _device_named(body: Body, op: Operation, name: str) -> Device:
    assert isinstance(body.file, AieFile)
    for device in body.file.devices:
        if device.name == name:
            return device
    names = ", ".join(symbol_name(device.name) for device in body.file.devices)
    raise unsupported(op, f"no device {symbol_name(name)}: the module has {names}")


def of_sequence(body: Body, op: Operation) -> tuple[SequenceBody, Device]:
    """The body of a sequence, and the device that is loaded there."""
    if not isinstance(body, SequenceBody) or body.device is None:
        raise unsupported(op, "stands outside of a runtime sequence")
    return body, body.device


# ---- configurations ----


@emitter("aiex.configure")
def _configure(body: Body, op: Operation) -> None:
    assert isinstance(op, sequence.ConfigureOp)
    inner, _ = of_sequence(body, op)
    before = inner.device
    inner.device = _device_named(body, op, op.symbol.root_reference.data)
    body.comment(op)
    _load(inner, inner.device, line_of(op))
    if op.body.blocks:
        _emit_block(body, op.body.block)
    inner.device = before


@emitter("aiex.run")
def _run(body: Body, op: Operation) -> None:
    """Emit the called sequence in place of the call."""
    assert isinstance(op, sequence.RunOp)
    inner, device = of_sequence(body, op)
    name = op.sequence.root_reference.data
    for called in device.op.body.block.ops:
        if isinstance(called, sequence.RuntimeSequenceOp) and entry_name(called) == name:
            break
    else:
        raise unsupported(op, f"the device {symbol_name(device.name)} has no sequence {symbol_name(name)}")
    arguments = called.body.block.args
    if [value.type for value in op.arguments] != [argument.type for argument in arguments]:
        raise unsupported(op, f"the arguments do not fit those of {symbol_name(name)}")
    for argument, value in zip(arguments, op.arguments, strict=True):
        body.values[argument] = body.values[value]
    with body.block(""):
        _emit_block(inner, called.body.block)


@emitter("aiex.npu.load_pdi")
def _load_pdi(body: Body, op: Operation) -> None:
    inner, _ = of_sequence(body, op)
    reference = attribute(op, "device_ref")
    if not isinstance(reference, SymbolRefAttr):
        raise unsupported(op, "without device_ref is not supported: name the device")
    body.comment(op)
    inner.device = _device_named(body, op, reference.root_reference.data)
    _load(inner, inner.device, line_of(op))


# ---- tasks ----


def allocation(
    device: Device, op: Operation, reference: Attribute | None
) -> tuple[Channel, PacketInfoAttr | None]:
    """The channel that an aie.shim_dma_allocation names, and the packet header that it gives."""
    if not isinstance(reference, SymbolRefAttr):
        raise unsupported(op, "names no aie.shim_dma_allocation")
    name = reference.root_reference.data
    if name not in device.allocations:
        known = ", ".join(map(symbol_name, device.allocations)) or "none"
        raise unsupported(op, f"no aie.shim_dma_allocation {symbol_name(name)}: the device has {known}")
    return device.allocations[name]


def start_task(
    body: SequenceBody, op: Operation, channel: int, repeat: str, token: bool, bds: Sequence[str]
) -> str:
    """Emit a task with its descriptors, which is not started yet. Returns its variable."""
    body.comment(op)
    task = body.fresh("task")
    body.emit_line(
        f"vnpu::aie::Task *const {task} = host.task({channel}, {repeat}, {'true' if token else 'false'});"
    )
    for bd in bds:
        body.emit_line(f"{task}->add({bd});")
    return task


def push(body: Body, task: str, line: int) -> None:
    """Emit code that puts a task into its channel's queue once that has room."""
    pause(body, line)
    body.emit_line(f"co_await host.room({task}, {line});")
    body.emit_line(f"host.start({task}, {line});")


def pause(body: Body, line: int) -> None:
    """Emit a pause: in the schedule `in order` the host acts only when the array cannot continue."""
    body.emit_line(f"co_await host.pause({line});")


def _flag(op: Operation, name: str) -> bool:
    value = attribute(op, name)
    return isinstance(value, IntegerAttr) and bool(value.value.data)


@emitter("aiex.npu.dma_memcpy_nd")
def _dma_memcpy_nd(body: Body, op: Operation) -> None:
    assert isinstance(op, sequence.DmaMemcpyNdOp)
    inner, device = of_sequence(body, op)
    channel, packet = allocation(device, op, attribute(op, "metadata"))
    offsets = _mixed(body, op.static_offsets, op.offsets)
    sizes, strides = _mixed(body, op.static_sizes, op.sizes), _mixed(body, op.static_strides, op.strides)
    memref = body.memref(op.memref)
    rank = len(memref.strides)
    offset = add(*(mul(parenthesize(o), s) for o, s in zip(offsets[-rank:], memref.strides, strict=False)))
    offset = add(offset, *_parameter_offset(body, op))
    number = integer_of(op, "id", 0)
    # The outermost size is how often the descriptor runs, each time with a header of its own.
    dimensions = [f"{{{size}, {stride}, 0, 0}}" for size, stride in zip(sizes[1:], strides[1:], strict=True)]
    iteration = f"{{{sizes[0]}, {strides[0]}, 0}}" if sizes[0] != "1" else "{}"
    length, header = _product(sizes[1:]), op.packet or packet
    is_given = attribute(op, "id") is not None
    bd = _bd(op, number, offset, length, memref, dimensions, header, "{}, {}", iteration, is_given=is_given)
    token = _flag(op, "issue_token") or not channel.sends
    index = device.channel(channel.place, channel.sends, channel.number)
    repeat = str(int(sizes[0]) - 1) if is_integer(sizes[0]) else f"{parenthesize(sizes[0])} - 1"
    push(body, start_task(inner, op, index, repeat, token, [bd]), line_of(op))


def _bd(
    op: Operation, number: int, offset: str, length: str, memref: MemRef, dimensions: Sequence[str],
    packet: PacketInfoAttr | None, locks: str, iteration: str = "{}", *, is_given: bool = False,
) -> str:  # fmt: skip
    """C++ text of the arguments of `Task::add`: a descriptor, its memory and how many bytes that has.

    is_given: whether the text says its number.
    """
    width = types.byte_width(memref.type.element_type)
    header = f"{{{packet.field('pkt_id')}, {packet.field('pkt_type')}}}" if packet else "{}"
    fields = [str(line_of(op)), str(number), "-1", offset, length, str(width), str(len(dimensions))]
    text = ", ".join(
        [*fields, "{" + ", ".join(dimensions) + "}", locks, header, "-1", iteration, str(is_given).lower()]
    )
    extent = mul(parenthesize(memref.extent), str(width))
    return f"vnpu::aie::BdTable{{{text}}}, {memref.pointer}, {extent}"


def _parameter_offset(body: Body, op: Operation) -> list[str]:
    """C++ text of the elements that a parameter of the host adds to a descriptor's offset."""
    assert isinstance(body.file, AieFile)
    index = offset_index(op, body.file.parameters)
    return [] if index is None else [f"vnpu::i64(host.scratchpad_word({index}, {line_of(op)}))"]


def _product(sizes: Sequence[str]) -> str:
    text = "1"
    for size in sizes:
        text = mul(text, parenthesize(size))
    return text


def _mixed(body: Body, static: Attribute | None, dynamic: Sequence[SSAValue]) -> list[str]:
    values = iter(dynamic)
    return [
        f"vnpu::i64({body.text(next(values))})" if number == DYNAMIC_INDEX else str(number)
        for number in integers(static)
    ]


@emitter("aiex.dma_configure_task_for")
def _configure_task_for(body: Body, op: Operation) -> None:
    assert isinstance(op, sequence.DmaConfigureTaskForOp)
    _, device = of_sequence(body, op)
    channel, packet = allocation(device, op, op.alloc)
    _configure_task(body, op, channel, packet, op.repeat, op.body.blocks)


@emitter("aiex.dma_configure_task")
def _configure_task_of_tile(body: Body, op: Operation) -> None:
    assert isinstance(op, sequence.DmaConfigureTaskOp)
    channel = Channel(place_of(op.tile), op.direction.data == "MM2S", op.channel.value.data)
    _configure_task(body, op, channel, op.packet, op.repeat, op.body.blocks)


def _configure_task(
    body: Body, op: Operation, channel: Channel, packet: PacketInfoAttr | None, repeat: SSAValue | None,
    blocks: Sequence[Block],
) -> None:  # fmt: skip
    inner, device = of_sequence(body, op)
    count = body.text(repeat) if repeat is not None else str(integer_of(op, "repeat_count", 0))
    bds: list[str] = []
    for block in _chain(op, blocks):
        bd = next((one for one in block.ops if isinstance(one, dma.DmaBdOp)), None)
        if bd is not None:
            bds.append(_task_bd(inner, device, bd, block, packet, len(bds), repeats=count != "0"))
    index = device.channel(channel.place, channel.sends, channel.number)
    task = start_task(inner, op, index, count, _flag(op, "issue_token"), bds)
    inner.tasks[op.results[0]] = task, index
    if any(use.operation.name not in _USES_OF_TASKS for use in op.results[0].uses):
        body.define(op.results[0], f"host.number_of({task})")


def _chain(op: Operation, blocks: Sequence[Block]) -> list[Block]:
    """The blocks of a task in the order in which they run."""
    order: list[Block] = []
    block: Block | None = blocks[0] if blocks else None
    while block is not None:
        if block in order:
            raise unsupported(
                op, "a task whose descriptors begin again is not supported: give it a repeat_count"
            )
        order.append(block)
        last = block.last_op
        block = last.dest if isinstance(last, dma.NextBdOp) else None
    return order


def _task_bd(
    body: SequenceBody, device: Device, op: dma.DmaBdOp, block: Block, packet: PacketInfoAttr | None,
    number: int, *, repeats: bool,
) -> str:  # fmt: skip
    memref = _memory(body, device, op)
    offset = body.text(op.offset) if op.offset is not None else str(integer_of(op, "static_offset", 0))
    offset = add(offset, *_parameter_offset(body, op))
    sizes, strides = _mixed(body, op.static_sizes, op.sizes), _mixed(body, op.static_strides, op.strides)
    length = _product(memref.sizes)
    if op.length is not None:
        length = f"vnpu::i64({body.text(op.length)})"
    elif op.static_len is not None:
        length = str(op.static_len.value.data)
    elif sizes:
        length = _product(sizes)
    iteration = "{}"
    if len(sizes) == dma.MAX_DIMENSIONS and repeats:
        iteration = f"{{{sizes[0]}, {strides[0]}, 0}}"
        sizes, strides = sizes[1:], strides[1:]
    pads = integers(op.pad) or [0] * (2 * len(sizes))
    dimensions = [
        f"{{{size}, {stride}, {pads[2 * n]}, {pads[2 * n + 1]}}}"
        for n, (size, stride) in enumerate(zip(sizes, strides, strict=True))
    ]
    own = integer_of(op, "bd_id", number)
    locks, header = _locks(device, block), packet_of(op) or packet
    is_given = attribute(op, "bd_id") is not None
    return _bd(op, own, offset, length, memref, dimensions, header, locks, iteration, is_given=is_given)


def _memory(body: SequenceBody, device: Device, op: dma.DmaBdOp) -> MemRef:
    if op.buffer not in device.buffer_of:
        return body.memref(op.buffer)
    type_ = op.buffer.type
    assert isinstance(type_, MemRefType)
    return static_memref(f"host.array->memory[{device.buffer_of[op.buffer]}]", type_)


def _locks(device: Device, block: Block) -> str:
    """C++ text of the two lock uses of a descriptor."""
    uses = {"acquire": "{}", "release": "{}"}
    for op in block.ops:
        if isinstance(op, array.UseLockOp):
            value = constant_int(op.value)
            if value is None:
                raise unsupported(op, "the value of a descriptor's lock is known only at run time")
            at_least = "true" if op.action.data == "AcquireGreaterEqual" else "false"
            key = "release" if op.action.data == "Release" else "acquire"
            uses[key] = f"{{{lock_number(device, op.lock)}, {value}, {at_least}}}"
    return f"{uses['acquire']}, {uses['release']}"


@emitter("aiex.dma_start_task")
def _start_task(body: Body, op: Operation) -> None:
    inner, _ = of_sequence(body, op)
    body.comment(op)
    push(body, _task(inner, op)[0], line_of(op))


_USES_OF_TASKS = ("aiex.dma_start_task", "aiex.dma_await_task", "aiex.dma_free_task")


def _task(body: SequenceBody, op: Operation) -> tuple[str, str]:
    """C++ text of a task and of its channel."""
    task = op.operands[0]
    if task in body.tasks:
        name, channel = body.tasks[task]
        return name, str(channel)
    if task not in body.values or body.number(task) is not None:
        raise unsupported(op, "its task is not configured in this sequence")
    name = f"host.task_of({body.text(task)})"
    return name, f"*{name}->channel"


@emitter("aiex.dma_await_task")
def _await_task(body: Body, op: Operation) -> None:
    inner, _ = of_sequence(body, op)
    body.comment(op)
    _await_token(body, _task(inner, op)[1], line_of(op))


def _await_token(body: Body, channel: int | str, line: int) -> None:
    body.emit_line(f"co_await host.token({channel}, {line});")
    body.emit_line(f"host.take_token({channel});")


@emitter("aie.trace.start_config", "aie.trace.host_config")
def _trace(body: Body, op: Operation) -> None:
    """Traces change no data."""


@emitter("aiex.dma_free_task")
def _free_task(body: Body, op: Operation) -> None:
    body.comment(op)


@emitter("aiex.npu.dma_wait")
def _dma_wait(body: Body, op: Operation) -> None:
    _, device = of_sequence(body, op)
    channel, _packet = allocation(device, op, attribute(op, "symbol"))
    body.comment(op)
    _await_token(body, device.channel(channel.place, channel.sends, channel.number), line_of(op))


@emitter("aiex.npu.sync")
def _sync(body: Body, op: Operation) -> None:
    _, device = of_sequence(body, op)
    numbers = [body.number(value) for value in op.operands]
    if len(numbers) != 6 or any(number is None for number in numbers):
        raise unsupported(op, "with numbers known only at run time is not supported")
    column, row, direction, channel, columns, rows = (int(number or 0) for number in numbers)
    body.comment(op)
    for one in range(column, column + columns):
        for other in range(row, row + rows):
            _await_token(body, device.channel((one, other), direction == 1, channel), line_of(op))


# ---- parameters and locks ----


@emitter("aiex.npu.rtp_write")
def _rtp_write(body: Body, op: Operation) -> None:
    assert isinstance(op, sequence.RtpWriteOp)
    _, device = of_sequence(body, op)
    name = op.buffer.root_reference.data
    if name not in device.buffer_named:
        raise unsupported(op, f"no aie.buffer {symbol_name(name)}")
    body.comment(op)
    pause(body, line_of(op))
    number = device.buffer_named[name]
    body.emit_line(f"host.write({number}, {op.index.value.data}, int32_t({body.text(op.value)}));")


@emitter("aiex.set_lock")
def _set_lock(body: Body, op: Operation) -> None:
    assert isinstance(op, sequence.SetLockOp)
    _, device = of_sequence(body, op)
    body.comment(op)
    pause(body, line_of(op))
    body.emit_line(f"host.set_lock({lock_number(device, op.lock)}, {op.value.value.data});")
