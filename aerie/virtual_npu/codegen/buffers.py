"""Buffers: their names in messages, globals and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerAttr, MemRefType
from xdsl.ir import Attribute, Operation

from aerie.air_dialect.ops import MemorySpace, memory_space
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.values import walk
from aerie.common.shown_names import symbol_name
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import CppFile
from aerie.virtual_npu.codegen.device_annotations import NO_ADDRESS
from aerie.virtual_npu.codegen.op_errors import line_of
from aerie.virtual_npu.cpp_quoting import mangled, string_literal
from aerie.virtual_npu.errors import UnsupportedOpError

# ---- names in messages ----


def label(
    file: CppFile,
    name: str,
    type_: Attribute,
    op: Operation,
    how: str,
    ends_with_body: bool = False,
    alignment_offset: int = NO_ADDRESS,
) -> str:
    """Return the C++ name of the `vnpu::BufferLabel` of a buffer that `op` makes.

    It has the buffer's name and type for messages, and `how` it was made, such as `declared`.
    alignment_offset: bytes of its address in a core behind a multiple of 64 (`device_marks`)."""
    site = f"{{{string_literal(op.name)}, {line_of(op)}}}"
    places = (_lies_in(type_, MemorySpace.L1, MemorySpace.L2), _lies_in(type_, MemorySpace.L2))
    flags = [str(flag).lower() for flag in (ends_with_body, *places)]
    texts = [string_literal(name), string_literal(attribute_text(type_)), site, string_literal(how), *flags]
    texts += [str(alignment_offset)] if alignment_offset != NO_ADDRESS else []
    return file.constant(
        "vnpu::BufferLabel", f"buffer_{line_of(op)}_{name.strip('%@') or 'memref'}", ", ".join(texts)
    )


def _lies_in(type_: Attribute, *spaces: MemorySpace) -> bool:
    """Whether a buffer lies in one of these memories. The device has locks for L1 and L2."""
    if not isinstance(type_, MemRefType) or not isinstance(type_.memory_space, IntegerAttr):
        return False
    return memory_space(type_) in spaces


# ---- globals and arguments ----


def global_pointer(file: CppFile, name: str) -> str:
    """C++ text of a pointer to a memref.global, which is emitted on first use."""
    text = f"global_{mangled(name)}"
    if name in file.globals:
        return file.globals[name]
    file.globals[name] = text
    declared = (op for op in walk(file.module) if isinstance(op, memref.GlobalOp))
    op = next((op for op in declared if op.sym_name.data == name), None)
    if op is None:
        raise UnsupportedOpError(f"memref.get_global: {symbol_name(name)} is not declared in the module")
    type_ = op.type
    assert isinstance(type_, MemRefType)
    count, initial = prod(type_.get_shape()), ""
    given = op.properties.get("initial_value")
    if isinstance(given, DenseIntOrFPElementsAttr):
        numbers = list(given.get_values())
        numbers = numbers * count if len(numbers) == 1 else numbers
        initial = " = {" + ", ".join(types.literal(type_.element_type, n) for n in numbers) + "}"
    scalar = types.scalar(type_.element_type)
    file.declarations.append(f"alignas(64) static {scalar} {text}[{count}]{initial};")
    if file.options.checks:
        file.globals[name] = _checked_global(file, op, text, bool(initial))
    return file.globals[name]


def checked_arguments(file: CppFile, op: func.FuncOp, unpacked: Sequence[str]) -> tuple[list[str], list[str]]:
    """C++ of an entry with checks: statements that declare a vnpu::Buffer for every memref, and the arguments
    to pass on."""
    statements, arguments = [], []
    for index, (value, text) in enumerate(zip(op.body.block.args, unpacked, strict=True)):
        if not isinstance(value.type, MemRefType):
            arguments.append(text)
            continue
        how = f"argument {index} of {symbol_name(op.sym_name.data)}"
        label_name = label(file, file.value_names.of(value), value.type, op, how)
        name = f"buffer_{index}"
        statements.append(
            f"  vnpu::Buffer {name}({_buffer(label_name, f'arguments[{index}]', value.type, 'nullptr')});"
        )
        arguments.append(f"vnpu::all_of<{types.scalar(value.type.element_type)}>({name})")
    return statements, arguments


def _checked_global(file: CppFile, op: memref.GlobalOp, data: str, is_written: bool) -> str:
    """C++ declarations of the buffer of a global; gives a pointer to it."""
    assert isinstance(op.type, MemRefType)
    written = "nullptr"
    if not is_written:
        written = f"written_{data}"
        file.declarations.append(f"static uint8_t {written}[{prod(op.type.get_shape())}];")
    label_name = label(file, symbol_name(op.sym_name.data), op.type, op, "declared")
    file.declarations.append(
        f"static vnpu::Buffer buffer_{data}({_buffer(label_name, data, op.type, written)});"
    )
    return f"vnpu::all_of<{types.scalar(op.type.element_type)}>(buffer_{data})"


def _buffer(label_name: str, data: str, type_: MemRefType, written: str) -> str:
    """C++ text of the arguments of a vnpu::Buffer."""
    shape = type_.get_shape()
    extents, width = ", ".join(map(str, shape)), types.byte_width(type_.element_type)
    return f"{label_name}, {data}, {width}, {{{extents}}}, {prod(shape)}, {written}"
