"""Buffers that are there before the program runs, globals and arguments; and how messages call a buffer."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, MemRefType
from xdsl.ir import Attribute, Operation, SSAValue

from air_dialect.types import attribute_text
from virtual_npu.codegen import types
from virtual_npu.codegen.refusals import line_of
from virtual_npu.codegen.text import quoted
from virtual_npu.codegen.unit import Unit
from virtual_npu.errors import UnsupportedOpError
from virtual_npu.library import identifier

# ---- names in messages ----


def label(
    unit: Unit, name: str, type_: Attribute, op: Operation, how: str, ends_with_body: bool = False
) -> str:
    """C++ name of the `vnpu::Label` of a buffer that `op` makes."""
    site = f"{{{quoted(op.name)}, {line_of(op)}}}"
    texts = [quoted(name), quoted(attribute_text(type_)), site, quoted(how), str(ends_with_body).lower()]
    return unit.constant(
        "vnpu::Label", f"buffer_{line_of(op)}_{name.strip('%@') or 'memref'}", ", ".join(texts)
    )


def value_name(value: SSAValue) -> str:
    """The name of a value in its program; nothing for one that has a number only."""
    return f"%{value.name_hint}" if value.name_hint else ""


# ---- globals and arguments ----


def global_pointer(unit: Unit, name: str) -> str:
    """C++ text of a pointer to a memref.global, which is emitted on first use."""
    text = f"global_{identifier(name)}"
    if name in unit.globals:
        return unit.globals[name]
    unit.globals[name] = text
    declared = (op for op in unit.module.walk() if isinstance(op, memref.GlobalOp))
    op = next((op for op in declared if op.sym_name.data == name), None)
    if op is None:
        raise UnsupportedOpError(f"memref.get_global: @{name} is not declared in the module")
    type_ = op.type
    assert isinstance(type_, MemRefType)
    count, initial = prod(type_.get_shape()), ""
    given = op.properties.get("initial_value")
    if isinstance(given, DenseIntOrFPElementsAttr):
        numbers = list(given.get_values())
        numbers = numbers * count if len(numbers) == 1 else numbers
        initial = " = {" + ", ".join(types.literal(type_.element_type, n) for n in numbers) + "}"
    scalar = types.scalar(type_.element_type)
    unit.declarations.append(f"alignas(64) static {scalar} {text}[{count}]{initial};")
    if unit.options.checks:
        unit.globals[name] = _checked_global(unit, op, text, bool(initial))
    return unit.globals[name]


def checked_arguments(unit: Unit, op: func.FuncOp, unpacked: Sequence[str]) -> tuple[list[str], list[str]]:
    """C++ of an entry with checks: statements that make a buffer of every memref, and what to pass."""
    statements, arguments = [], []
    for index, (value, text) in enumerate(zip(op.body.block.args, unpacked, strict=True)):
        if not isinstance(value.type, MemRefType):
            arguments.append(text)
            continue
        known = label(unit, value_name(value), value.type, op, f"argument {index} of @{op.sym_name.data}")
        name = f"buffer_{index}"
        statements.append(
            f"  vnpu::Buffer {name}({_buffer(known, f'arguments[{index}]', value.type, 'nullptr')});"
        )
        arguments.append(f"vnpu::all_of<{types.scalar(value.type.element_type)}>({name})")
    return statements, arguments


def _checked_global(unit: Unit, op: memref.GlobalOp, data: str, is_written: bool) -> str:
    """C++ declarations of the buffer of a global; gives a pointer to it."""
    assert isinstance(op.type, MemRefType)
    written = "nullptr"
    if not is_written:
        written = f"written_{data}"
        unit.declarations.append(f"static uint8_t {written}[{prod(op.type.get_shape())}];")
    known = label(unit, f"@{op.sym_name.data}", op.type, op, "declared")
    unit.declarations.append(f"static vnpu::Buffer buffer_{data}({_buffer(known, data, op.type, written)});")
    return f"vnpu::all_of<{types.scalar(op.type.element_type)}>(buffer_{data})"


def _buffer(known: str, data: str, type_: MemRefType, written: str) -> str:
    """C++ text of the arguments of a vnpu::Buffer."""
    shape = type_.get_shape()
    extents = ", ".join(map(str, shape))
    return f"{known}, {data}, {types.byte_width(type_.element_type)}, {{{extents}}}, {prod(shape)}, {written}"
