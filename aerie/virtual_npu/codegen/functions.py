"""C++ functions, of func.func and of the bodies of launches, segments and herds, and calls of functions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.dialects import func, scf
from xdsl.dialects.builtin import MemRefType, StringAttr
from xdsl.ir import Block, Operation, SSAValue

from aerie.air_dialect.ops import AsyncTokenType, HerdOp, HierarchyOp, LaunchOp
from aerie.common.shown_names import symbol_name
from aerie.device.external_kernels import ExternalKernel
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import Body, CppFile, MemRef, Scalar, Value, emitter
from aerie.virtual_npu.codegen.channels import channel_struct, owns_channels
from aerie.virtual_npu.codegen.cpp_text import parenthesize
from aerie.virtual_npu.codegen.dialect import DIVIDED
from aerie.virtual_npu.codegen.execution import (
    RECURSIVE,
    BodyMode,
    function_mode,
    hierarchy_mode,
    mode_registers,
)
from aerie.virtual_npu.codegen.op_errors import attribute, unsupported
from aerie.virtual_npu.codegen.view_offsets import needs_offset, offset_of
from aerie.virtual_npu.cpp_quoting import mangled, string_literal

# ---- bodies ----


def emit_function(file: CppFile, op: func.FuncOp) -> str:
    """Emit a func.func with a body, once; gives its C++ name."""
    name = f"func_{mangled(op.sym_name.data)}"
    if name in file.emitted:
        return name
    file.emitted.add(name)
    file.names.add(name)
    mode = function_mode(op, file.options)
    body = Body(file, mode, root=op if mode is BodyMode.SEQUENCER else None)
    parameters = _bind(body, op.body.block.args, [None] * len(op.body.block.args))
    terminator = op.body.block.last_op
    result = "void"
    if RECURSIVE in op.attributes:
        outputs = [types.cpp(type_) for type_ in op.function_type.outputs] or ["void"]
        file.declarations.append(f"static {outputs[0]} {name}({', '.join(parameters)});")
        body.emit_line(f"const vnpu::RecursionGuard nested({body.site(op, f'@{op.sym_name.data}')});")
    body.operations(op.body.block)
    assert isinstance(terminator, func.ReturnOp)
    # A token that leaves the program is done: an entry returns when all is.
    returned = [v for v in terminator.arguments if not isinstance(v.type, AsyncTokenType)]
    if len(returned) > 1 or any(isinstance(value.type, MemRefType) for value in returned):
        raise unsupported(
            terminator,
            "an entry cannot return memrefs or several values: write the result to an argument",
        )
    if returned and mode is BodyMode.STRAIGHT:
        result = types.cpp(returned[0].type)
        body.emit_line(f"return {body.text(returned[0])};")
    _finish(body, name, parameters, result)
    return name


def emit_hierarchy_function(parent: Body, op: HierarchyOp) -> str:
    """Emit the body of a launch, segment or herd; gives its C++ name."""
    file, mode = parent.file, hierarchy_mode(op, parent.file.options)
    first = len(file.functions)
    name = file.fresh(f"{op.name.removeprefix('air.')}_{op.sym_name or ''}".rstrip("_"))
    owns = owns_channels(file, op)
    body = Body(file, mode, root=op if owns else parent.root or op, owns_channels=owns)
    if isinstance(op, HerdOp):
        body.mode_statement = mode_registers(op, mode, file.options)
    sizes = [parent.value(value) for value in op.sizes]
    captured = [parent.value(value) for value in op.kernel_operands]
    arguments = [*op.ids, *op.size_args, *op.kernel_args]
    parameters = _bind(body, arguments, [*[None] * len(op.ids), *sizes, *captured])
    if divided_loop(op) is not None:
        parameters.insert(0, "vnpu::Trips trips")
    body.operations(op.body.block)
    _finish(body, name, parameters, "void")
    if isinstance(op, LaunchOp):
        file.launches.append(range(first, len(file.functions)))
    return name


def divided_loop(op: HierarchyOp) -> scf.ForOp | None:
    """The loop of a herd's tiles of which threads share the trips (passes/divide_tiles.py)."""
    loops = (inner for inner in op.body.block.ops if isinstance(inner, scf.ForOp))
    return next((loop for loop in loops if DIVIDED in loop.attributes), None)


def _bind(body: Body, arguments: Sequence[SSAValue], outer: Sequence[Value | None]) -> list[str]:
    """Name block arguments; gives the C++ parameters. Known integers stay literals, not parameters."""
    parameters: list[str] = []
    for argument, value in zip(arguments, outer, strict=True):
        if isinstance(value, Scalar) and value.is_literal:
            body.values[argument] = value
            continue
        name, type_ = body.name_for(argument), argument.type
        if not isinstance(type_, MemRefType):
            parameters.append(f"{types.cpp(type_)} {name}")
            body.values[argument] = Scalar(name)
            continue
        kind = types.pointer(type_, body.checked)
        parameters.append(f"{kind}{name}" if kind.endswith("*") else f"{kind} {name}")
        sizes = [_extent(body, parameters, n, f"{name}_size") for n in type_.get_shape()]
        strides = [_extent(body, parameters, s, f"{name}_stride") for s in types.memref_strides(type_)]
        offset = None
        around = argument.owner.parent_op() if isinstance(argument.owner, Block) else None
        if isinstance(around, HierarchyOp) and needs_offset(around, argument):
            offset = _extent(body, parameters, types.DYNAMIC, f"{name}_offset")
        # A herd's body is given the copy of its tile.
        copies = value.copies if isinstance(value, MemRef) and not isinstance(around, HerdOp) else 1
        body.values[argument] = MemRef(name, tuple(sizes), tuple(strides), type_, copies, offset)
    return parameters


def _extent(body: Body, parameters: list[str], extent: int, hint: str) -> str:
    if extent != types.DYNAMIC:
        return str(extent)
    name = body.fresh(hint)
    parameters.append(f"vnpu::i64 {name}")
    return name


def captured_arguments(body: Body, op: HierarchyOp) -> list[str]:
    """The C++ arguments for the parameters that a hierarchy's function has for sizes and captured values."""
    texts: list[str] = []
    for operand in (*op.sizes, *op.kernel_operands):
        value = body.value(operand)
        if isinstance(value, Scalar):
            texts += [] if value.is_literal else [value.text]
            continue
        type_ = operand.type
        assert isinstance(type_, MemRefType)
        own = f" + flat * {parenthesize(value.extent)}" if value.copies > 1 and isinstance(op, HerdOp) else ""
        texts.append(value.pointer + own)
        pairs = [*zip(type_.get_shape(), value.sizes, strict=True)]
        pairs += zip(types.memref_strides(type_), value.strides, strict=True)
        texts += [text for known, text in pairs if known == types.DYNAMIC]
        if needs_offset(op, operand):
            texts.append(offset_of(body, op, operand))
    return texts


_DRAIN = "  auto rest = sequencer.drain();\n  co_await rest;"


def _finish(body: Body, name: str, parameters: Sequence[str], result: str) -> None:
    """Put what a function needs around the lines of its body, and add it to the file."""
    file, lines, leading = body.file, list(body.lines), []
    if body.mode is not BodyMode.STRAIGHT:
        file.runtime_parts.add("schedule")
        assert body.root is not None
        leading = ["vnpu::TaskLoop &task_loop", "vnpu::ExecutionPlace where"]
        struct = channel_struct(file, body.root)
        if not body.owns_channels:
            leading.append(f"{struct} &channels")
        result = "vnpu::Process"
        lines.append("  co_return;" if body.mode is BodyMode.PROCESS else _DRAIN)
        if body.owns_channels:
            lines.append("  channels.finish();")
    if file.options.checks:
        _close_arena(body, lines)
    if body.mode is BodyMode.SEQUENCER:
        lines.insert(0, "  vnpu::Sequencer sequencer(task_loop, where);")
    if body.uses_arena:
        lines.insert(0, "  vnpu::Arena arena;")
    if body.uses_transfer:
        lines.insert(0, "  vnpu::TileTransfer transfer(task_loop, where);")
    if body.mode_statement:
        lines.insert(0, f"  {body.mode_statement}")
    if body.owns_channels and body.mode is not BodyMode.STRAIGHT:
        assert body.root is not None
        lines.insert(0, f"  {channel_struct(file, body.root)} channels(task_loop);")
    attribute = "VNPU_ISSUES_ONLY " if body.mode is BodyMode.SEQUENCER and not _computes(lines) else ""
    head = f"{attribute}static {result} {name}({', '.join([*leading, *parameters])}) {{"
    file.functions.append("\n".join([head, *lines, "}"]))


_COMPUTING = re.compile(r"\bsequencer\.(run|settle|launch)\(")


def _computes(lines: Sequence[str]) -> bool:
    """Whether the lines of a sequencer's body do more than issue transfers, segments and herds."""
    return any(map(_COMPUTING.search, lines))


def _close_arena(body: Body, lines: list[str]) -> None:
    """Close the arena at the end of a body. With checks this reports the buffers that were not freed."""
    if body.mode is BodyMode.SEQUENCER:
        lines.append("  sequencer.arena.close();")
    elif body.uses_arena:
        returns = bool(lines) and lines[-1].startswith(("  co_return", "  return"))
        lines.insert(len(lines) - returns, "  arena.close();")


# ---- functions that are called ----


def callee_name(file: CppFile, call: Operation, name: str) -> str:
    """The C++ name of the function `name` that `call` calls; emits the function, or the declaration of an
    external one, on first use."""
    op = file.symbols.get(name)
    if op is None:
        raise unsupported(call, f"function {symbol_name(name)} is not declared in the module")
    if op.body.blocks:
        return emit_function(file, op)
    if name not in file.kernels:
        file.kernels[name] = external_kernel(call, op)
        file.declarations.append(_declaration(op, file.kernels[name].cpp_name))
    return f"kernel_{name}"


def _declaration(op: func.FuncOp, linked: str) -> str:
    """C++ text of the declaration of a function that an object file of the program has, as `linked`. It is
    hidden: the linker takes it from no library."""
    parameters = [
        f"{types.scalar(t.element_type)} *" if isinstance(t, MemRefType) else types.cpp(t)
        for t in op.function_type.inputs
    ]
    outputs = [types.cpp(t) for t in op.function_type.outputs] or ["void"]
    name = op.sym_name.data
    function, symbol = f"{outputs[0]} kernel_{name}({', '.join(parameters)})", string_literal(linked)
    return f'extern "C" {function} __asm__(VNPU_SYMBOL({symbol}));\nVNPU_HIDDEN({symbol});'


def external_kernel(call: Operation, op: func.FuncOp) -> ExternalKernel:
    """The external kernel that a call of `op`, a function without a body, goes to."""
    name = op.sym_name.data
    linked = attribute(op, "link_with") or _herd_link(call)
    if not isinstance(linked, StringAttr):
        raise unsupported(
            call, f'@{name} has no body and no link_with: add attributes {{link_with = "{name}.o"}}'
        )
    source, defines = attribute(op, "link_source"), attribute(op, "link_defines")
    stem = linked.data.rsplit(".", 1)[0]
    return ExternalKernel(
        name,
        linked.data,
        source.data if isinstance(source, StringAttr) else f"{stem}.cc",
        tuple(defines.data.split()) if isinstance(defines, StringAttr) else (),
        call.location.line.data if hasattr(call.location, "line") else 0,
        len(op.function_type.inputs),
    )


def _herd_link(call: Operation) -> object:
    """The link_with of the herd around a call."""
    parent = call.parent_op()
    while parent is not None:
        if isinstance(parent, HerdOp):
            return parent.link_with
        parent = parent.parent_op()
    return None


# ---- calls ----


@emitter("func.call")
def _call(body: Body, op: Operation) -> None:
    assert isinstance(op, func.CallOp)
    name = op.callee.root_reference.data
    arguments = [_argument(body, op, value) for value in op.arguments]
    body.comment(op)
    call = f"{callee_name(body.file, op, name)}({', '.join(arguments)})"
    if body.checked and name in body.file.kernels:
        call = _kernel_call(body, op, call)
    if body.file.options.checks and name in body.file.kernels:
        body.emit_line(
            f"if (vnpu::record::on()) vnpu::record::called({body.site(op)}, {string_literal(name)});"
        )
    if not op.results:
        body.emit_line(f"{call};")
    elif len(op.results) == 1 and not isinstance(op.results[0].type, MemRefType):
        body.define(op.results[0], call)
    else:
        raise unsupported(op, "an external function that returns a memref or several values is not supported")


def _argument(body: Body, op: Operation, value: SSAValue) -> str:
    """An argument of a call: a bare pointer for a memref."""
    argument = body.value(value)
    if isinstance(argument, Scalar):
        return argument.text
    shape = argument.type.get_shape()
    if types.DYNAMIC in (*shape, *types.memref_strides(argument.type)):
        raise unsupported(
            op, f"cannot pass {argument.type} as a bare pointer: cast it to a static memref type"
        )
    return f"vnpu::raw({argument.pointer})" if _is_checked_kernel(body, op) else argument.pointer


def _is_checked_kernel(body: Body, op: Operation) -> bool:
    """Whether a call goes to a function in C++, which takes plain pointers."""
    assert isinstance(op, func.CallOp)
    callee = body.file.symbols.get(op.callee.root_reference.data)
    return body.checked and callee is not None and not callee.body.blocks


def _kernel_call(body: Body, op: Operation, call: str) -> str:
    """The call of an external kernel, with checks of the memrefs that it gets."""
    assert isinstance(op, func.CallOp)
    memrefs = [
        f"vnpu::argument({position}, {body.memref(value).pointer}, {body.memref(value).extent})"
        for position, value in enumerate(op.arguments)
        if isinstance(value.type, MemRefType)
    ]
    site = body.site(op, symbol_name(op.callee.root_reference.data))
    scalars = [_argument(body, op, value) for value in op.arguments if not isinstance(value.type, MemRefType)]
    key = f"vnpu::scalars({', '.join(scalars)})"
    return f"vnpu::call_kernel({', '.join([site, f'[&] {{ return {call}; }}', key, *memrefs])})"
