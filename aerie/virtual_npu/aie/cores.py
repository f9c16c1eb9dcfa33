"""The C++ of cores: a coroutine each, which waits for locks and cascades."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects import cf, scf
from xdsl.dialects.builtin import ArrayAttr, DenseIntOrFPElementsAttr, MemRefType, StringAttr
from xdsl.ir import Block, Operation, SSAValue

from aerie.air_dialect.aie import array
from aerie.air_dialect.aie import object_fifos as fifo_ops
from aerie.common.shown_names import symbol_name
from aerie.virtual_npu.aie import costs
from aerie.virtual_npu.aie.design import Channel, Device, lock_number, place_of
from aerie.virtual_npu.aie.object_fifos import Fifo
from aerie.virtual_npu.aie.scratchpads import Parameters
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import Body, CppFile, MemRef, Scalar, emitter
from aerie.virtual_npu.codegen.dialect import NestOp, wrap
from aerie.virtual_npu.codegen.execution import BodyMode
from aerie.virtual_npu.codegen.op_errors import attribute, line_of, unsupported
from aerie.virtual_npu.codegen.passes.mark_outlined import is_nest
from aerie.virtual_npu.codegen.scf import assign, declare

_WIDEST = 64
"""Bytes of the widest access of a core."""
_WORD = 4
"""Bytes of a word of a stream."""


@dataclass
class AieFile(CppFile):
    """A C++ file with devices."""

    devices: list[Device] = field(default_factory=list)
    checks_bounds: bool = True
    """Whether cores compare indices with extents."""
    parameters: Parameters = field(default_factory=dict)
    """The words of the scratchpad that have names."""


@dataclass
class CoreBody(Body):
    """The C++ function of a core."""

    device: Device | None = None
    variables: list[str] = field(default_factory=list)
    """Declarations of variables that more than one block uses."""
    labels: dict[Block, str] = field(default_factory=dict)
    order: dict[Block, int] = field(default_factory=dict)
    fifos: dict[str, Fifo] = field(default_factory=dict)
    ports: dict[tuple[str, str], str] = field(default_factory=dict)
    """The C++ variable of each end of an object FIFO that the core uses."""

    @property
    def checks_bounds(self) -> bool:
        return isinstance(self.file, AieFile) and self.file.checks_bounds

    def operation(self, op: Operation) -> None:
        super().operation(op)
        if isinstance(op, NestOp):
            self.emit_line(f"core.spend({costs.cycles(op.original)});")
        elif op.name == "func.call":
            self.emit_line(f"core.spend({costs.KERNEL});")

    def operations(self, block: Block) -> None:
        super().operations(block)
        loop = block.parent_op()
        if isinstance(loop, scf.ForOp) and not is_nest(loop):
            self.emit_line(f"core.spend({costs.BRANCH});")

    @property
    def heartbeat(self) -> str:
        return "vnpu::aie::Heartbeat"

    def check_alignment(self, op: Operation, value: SSAValue, pointer: str, bytes_: int) -> None:
        if not self.checks_bounds or bytes_ != _WIDEST or self.device is None:
            return
        number = self.device.buffer_of.get(value)
        address = self.device.buffers[number].address if number is not None else None
        self.emit_line(f"vnpu::aie::aligned({self.site(op)}, {pointer}, {(address or 0) % _WIDEST});")


def emit_core(file: AieFile, device: Device, core: array.CoreOp) -> str:
    """Emit the coroutine of a core; gives its C++ name."""
    column, row = core.tile.owner.place  # type: ignore[union-attr]
    name = file.fresh(f"core_{device.number}_{column}_{row}")
    _link_functions(file, core)
    _mark_nests(core)
    body = CoreBody(file, BodyMode.PROCESS, root=core, device=device, fifos=device.fifos)
    for value, number in _buffers_used(device, core).items():
        _bind_buffer(body, value, number)
    _emit_blocks(body, core)
    lines = [f"static vnpu::aie::Fiber {name}(vnpu::aie::Core &core) {{", *body.variables, *body.lines]
    file.functions.append("\n".join([*lines, "  co_return;", "}"]))
    return name


def _link_functions(file: CppFile, core: array.CoreOp) -> None:
    """Note on functions without a body which object they come from, where only the core says it."""
    linked = core.attributes.get("link_with")
    files = core.attributes.get("link_files")
    if linked is None and isinstance(files, ArrayAttr) and len(files) == 1:
        linked = files.data[0]
    if not isinstance(linked, StringAttr):
        return
    for op in core.walk():
        if op.name == "func.call":
            function = file.symbols.get(attribute(op, "callee").root_reference.data)  # type: ignore[union-attr]
            if function is not None and not function.body.blocks and attribute(function, "link_with") is None:
                function.attributes["link_with"] = linked


def _mark_nests(core: array.CoreOp) -> None:
    """Let loops without waiting become functions of their own: compilers keep a coroutine's variables in
    memory."""

    def visit(holder: Operation) -> None:
        for region in holder.regions:
            for block in region.blocks:
                for op in list(block.ops):
                    if is_nest(op):
                        wrap(op, NestOp)
                    else:
                        visit(op)

    visit(core)


def _buffers_used(device: Device, core: array.CoreOp) -> dict[SSAValue, int]:
    used = [operand for op in core.walk() for operand in op.operands if operand in device.buffer_of]
    return {value: device.buffer_of[value] for value in used}


def _bind_buffer(body: Body, value: SSAValue, number: int) -> None:
    type_ = value.type
    assert isinstance(type_, MemRefType)
    scalar, name = types.scalar(type_.element_type), body.name_for(value)
    body.emit_line(f"{scalar} *const {name} = core.buffer<{scalar}>({number});")
    body.values[value] = static_memref(name, type_)


def static_memref(name: str, type_: MemRefType) -> MemRef:
    """A memref of static layout that a pointer of this name leads to."""
    sizes, strides = type_.get_shape(), types.memref_strides(type_)
    return MemRef(name, tuple(map(str, sizes)), tuple(map(str, strides)), type_)


# ---- blocks ----


def _emit_blocks(body: CoreBody, core: array.CoreOp) -> None:
    blocks = _in_order(core)
    for number, block in enumerate(blocks):
        body.labels[block], body.order[block] = f"block_{number}", number
        for argument in block.args:
            _declare_variable(body, core, argument)
    for block in blocks:
        jumped_to = block is not blocks[0] or any(block in _successors(other) for other in blocks)
        body.emit_line(f"{body.labels[block]}: {{" if jumped_to else "{")
        body.depth += 1
        for op in block.ops:
            if op.next_op is None and op.name in _TERMINATORS:
                _emit_terminator(body, op)
            else:
                body.operation(op)
                _keep_for_other_blocks(body, op, block)
        body.depth -= 1
        body.emit_line("}")


def _in_order(core: array.CoreOp) -> list[Block]:
    """The blocks that are reached, each after one that dominates it (reverse postorder)."""
    order: list[Block] = []
    met = set[Block]()

    def visit(block: Block) -> None:
        met.add(block)
        for successor in reversed(_successors(block)):
            if successor not in met:
                visit(successor)
        order.append(block)

    if core.body.blocks:
        visit(core.body.blocks[0])
    return order[::-1]


def _successors(block: Block) -> list[Block]:
    return list(block.last_op.successors) if block.last_op is not None else []


def _declare_variable(body: CoreBody, op: Operation, value: SSAValue) -> str:
    """Declare a variable for a value that several blocks use; gives its name."""
    before, body.lines = body.lines, []
    (name,) = declare(body, op, [value], [None])
    body.variables += body.lines
    body.lines = before
    return name


def _keep_for_other_blocks(body: CoreBody, op: Operation, block: Block) -> None:
    for result in op.results:
        if not any(_block_of(use.operation, block) is not block for use in result.uses):
            continue
        value = body.values.get(result)
        if value is None or (isinstance(value, Scalar) and value.is_literal):
            continue
        text = value.pointer if isinstance(value, MemRef) else value.text
        name = _declare_variable(body, op, result)
        body.emit_line(f"{name} = {text};")


def _block_of(op: Operation, beside: Block) -> Block | None:
    """The block of the region of `beside` that an operation is in."""
    block = op.parent
    while block is not None and block.parent is not beside.parent:
        parent = block.parent_op()
        block = parent.parent if parent is not None else None
    return block


_TERMINATORS = ("cf.br", "cf.cond_br", "cf.switch", "aie.end")


def _emit_terminator(body: CoreBody, op: Operation) -> None:
    if isinstance(op, cf.BranchOp):
        _jump(body, op.successor, op.arguments, op)
    elif isinstance(op, cf.ConditionalBranchOp):
        with body.block(f"if ({body.text(op.cond)})"):
            _jump(body, op.then_block, op.then_arguments, op)
        _jump(body, op.else_block, op.else_arguments, op)
    elif isinstance(op, cf.SwitchOp):
        _emit_switch(body, op)
    else:
        body.emit_line("co_return;")


def _jump(body: CoreBody, block: Block, values: object, op: Operation) -> None:
    if body.order[block] <= body.order[op.parent]:  # type: ignore[index]
        name = body.fresh("v_beat")
        body.variables.append(f"  vnpu::aie::Heartbeat {name}({body.site(op)});")
        body.emit_line(f"{name}.beat(-1);")
    names = [_variable_of(body, argument) for argument in block.args]
    assign(body, names, list(values))  # type: ignore[call-overload]
    body.emit_line(f"goto {body.labels[block]};")


def _variable_of(body: Body, argument: SSAValue) -> str:
    value = body.values[argument]
    return value.pointer if isinstance(value, MemRef) else value.text


def _emit_switch(body: CoreBody, op: cf.SwitchOp) -> None:
    flag, values = body.text(op.flag), op.case_values
    numbers = list(values.get_values()) if isinstance(values, DenseIntOrFPElementsAttr) else []
    for number, block, operands in zip(numbers, op.case_blocks, op.case_operand, strict=True):
        with body.block(f"if ({flag} == {number})"):
            _jump(body, block, operands, op)
    _jump(body, op.default_block, op.default_operands, op)


# ---- operations ----


@emitter("aie.use_lock")
def _use_lock(body: Body, op: Operation) -> None:
    assert isinstance(op, array.UseLockOp)
    assert isinstance(body, CoreBody)
    assert body.device is not None
    body.comment(op)
    number, value, line = lock_number(body.device, op.lock), body.text(op.value), line_of(op)
    if op.action.data == "Release":
        body.emit_line(f"core.release({number}, {value}, {line});")
    else:
        at_least = "true" if op.action.data == "AcquireGreaterEqual" else "false"
        body.emit_line(f"co_await core.acquire({number}, {value}, {at_least}, {line});")


def _own_port(body: Body, op: Operation, *, sends: bool) -> int:
    """The number of a core's own port among the channels."""
    assert isinstance(body, CoreBody)
    assert isinstance(body.root, array.CoreOp)
    assert body.device is not None
    number = body.number(op.operands[0])
    if number is None:
        raise unsupported(op, "a port known only at run time is not supported: write a constant")
    return body.device.number_of(Channel(place_of(body.root.tile), sends, number, "Core"))


@emitter("aie.put_stream")
def _put_stream(body: Body, op: Operation) -> None:
    port, value, line = _own_port(body, op, sends=True), op.operands[1], line_of(op)
    if types.byte_width(value.type) != _WORD:
        raise unsupported(op, "of anything but 32 bits is not supported")
    body.comment(op)
    body.emit_line(f"co_await core.to_put_word({port}, {line});")
    body.emit_line(f"core.put_word({port}, __builtin_bit_cast(uint32_t, {body.text(value)}));")


@emitter("aie.get_stream")
def _get_stream(body: Body, op: Operation) -> None:
    port, type_ = _own_port(body, op, sends=False), op.results[0].type
    if types.byte_width(type_) != _WORD:
        raise unsupported(op, "of anything but 32 bits is not supported")
    body.comment(op)
    body.emit_line(f"co_await core.to_get_word({port}, {line_of(op)});")
    body.define(op.results[0], f"__builtin_bit_cast({types.cpp(type_)}, core.get_word({port}))")


@emitter("aie.put_cascade")
def _put_cascade(body: Body, op: Operation) -> None:
    body.comment(op)
    body.emit_line(f"co_await core.to_put({line_of(op)});")
    body.emit_line(f"core.put({body.text(op.operands[0])});")


@emitter("aie.get_cascade")
def _get_cascade(body: Body, op: Operation) -> None:
    body.comment(op)
    body.emit_line(f"co_await core.to_get({line_of(op)});")
    body.define(op.results[0], f"core.get<{types.cpp(op.results[0].type)}>()")


# ---- object FIFOs ----


def _port(body: Body, op: Operation) -> str:
    """The C++ variable of the end of a FIFO that an acquire or a release uses."""
    assert isinstance(op, fifo_ops.ObjectFifoAcquireOp | fifo_ops.ObjectFifoReleaseOp)
    assert isinstance(body, CoreBody)
    name, kind = fifo_ops.symbol_of(op.fifo), op.port.data
    if (name, kind) in body.ports:
        return body.ports[name, kind]
    fifo = body.fifos.get(name)
    if fifo is None:
        raise unsupported(op, f"no aie.objectfifo {symbol_name(name)}")
    ends = [0] if kind == "Produce" else range(1, len(fifo.places))
    assert isinstance(body.root, array.CoreOp)
    place = place_of(body.root.tile)
    pool = next((fifo.pools[end] for end in ends if fifo.places[end] == place), None)
    if pool is None:
        raise unsupported(op, f"tile {place} has no end of {symbol_name(name)} to {kind.lower()} at")
    free, full = pool.locks[0]
    held, given = (free, full) if kind == "Produce" else (full, free)
    variable = body.fresh(f"fifo_{name}_{kind}")
    numbers = [pool.buffers[0], len(pool.buffers), held, given, pool.repeat]
    body.variables.append(f"  vnpu::aie::FifoPort {variable}({', '.join(map(str, numbers))});")
    body.ports[name, kind] = variable
    return variable


@emitter("aie.objectfifo.acquire")
def _acquire_objects(body: Body, op: Operation) -> None:
    assert isinstance(op, fifo_ops.ObjectFifoAcquireOp)
    port = _port(body, op)
    body.comment(op)
    body.emit_line(f"co_await {port}.acquire(core, {op.size.value.data}, {line_of(op)});")
    body.values[op.subview] = Scalar(port, is_literal=True)


@emitter("aie.objectfifo.release")
def _release_objects(body: Body, op: Operation) -> None:
    assert isinstance(op, fifo_ops.ObjectFifoReleaseOp)
    port = _port(body, op)
    body.comment(op)
    body.emit_line(f"{port}.release(core, {op.size.value.data}, {line_of(op)});")


@emitter("aie.objectfifo.subview.access")
def _access_object(body: Body, op: Operation) -> None:
    assert isinstance(op, fifo_ops.ObjectFifoSubviewAccessOp)
    type_ = op.output.type
    assert isinstance(type_, MemRefType)
    scalar, name = types.scalar(type_.element_type), body.name_for(op.output)
    port = body.text(op.subview)
    body.emit_line(f"{scalar} *const {name} = {port}.object<{scalar}>(core, {op.index.value.data});")
    body.values[op.output] = static_memref(name, type_)


def _released_by_fifos(device: Device, core: array.CoreOp) -> list[int]:
    found: list[int] = []
    place = place_of(core.tile)
    for op in core.walk():
        if isinstance(op, fifo_ops.ObjectFifoReleaseOp):
            fifo = device.fifos[fifo_ops.symbol_of(op.fifo)]
            ends = [0] if op.port.data == "Produce" else range(1, len(fifo.places))
            for end in ends:
                pool = fifo.pools[end]
                if fifo.places[end] == place and pool is not None:
                    found.append(pool.locks[0][1 if op.port.data == "Produce" else 0])
    return found


def released_locks(device: Device, core: array.CoreOp) -> list[int]:
    """The locks that a core releases somewhere."""
    found = [
        lock_number(device, op.lock)
        for op in core.walk()
        if isinstance(op, array.UseLockOp) and op.action.data == "Release"
    ]
    return sorted({*found, *_released_by_fifos(device, core)})
