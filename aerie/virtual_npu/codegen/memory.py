"""C++ of accesses to memory, for the emitters of all operations that read or write.

    read, write                 one element
    vector_call                 a vector, also with lanes that may lie outside or be masked off
    reads_whole, writes_whole   a whole operand at once, before loops over `raw_view` views of it
    access                      one side of a transfer

In builds without checks the text works on plain pointers. With checks, every access passes its place in the
program on, and indices that are not known to be in bounds are compared with the extents at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType, VectorType
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.ir.affine import AffineMap

from aerie.air_dialect.index_intervals import INTERVALS, Interval, interval
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.values import root_value
from aerie.common.shown_names import symbol_name
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.access_ranges import Bounds, index_bounds
from aerie.virtual_npu.codegen.body import Body, MemRef
from aerie.virtual_npu.codegen.cpp_text import add, map_results, mul, parenthesize
from aerie.virtual_npu.codegen.effects import operand_effects
from aerie.virtual_npu.codegen.op_errors import line_of
from aerie.virtual_npu.cpp_quoting import string_literal

# ---- addresses ----


def address(view: MemRef, indices: Sequence[str]) -> str:
    """C++ text of the offset, in elements, of an index into a memref."""
    pairs = zip(indices, view.strides, strict=True)
    return add(*(mul(parenthesize(index), stride) for index, stride in pairs)) if indices else "0"


def element_pointer(view: MemRef, indices: Sequence[str]) -> str:
    """C++ text of a pointer to an element."""
    offset = address(view, indices)
    return view.pointer if offset == "0" else f"{view.pointer} + {offset}"


def whole_view(view: MemRef) -> tuple[list[str], list[str]]:
    """Sizes and strides that walk a memref in row-major order; one element for rank 0."""
    return (list(view.sizes), list(view.strides)) if view.sizes else (["1"], ["1"])


def checked_access(
    body: Body, op: Operation, view: MemRef, offset: str, sizes: Sequence[str], strides: Sequence[str]
) -> str:
    """C++ text of one side of a transfer, checked against the extent of its buffer."""
    braces = f"{{{', '.join(sizes)}}}, {{{', '.join(strides)}}}"
    return f"vnpu::access({body.site(op)}, {view.pointer}, {view.extent}, {offset}, {braces})"


# ---- names in messages ----


def place_name(body: Body, op: Operation, value: SSAValue) -> str:
    """C++ name of the `vnpu::OperandPlace` that says which memref of which operation is accessed."""
    assert isinstance(value.type, MemRefType)
    made = _maker(value)
    origin = f" ({made})" if made else ""
    texts = [body.file.value_names.of(value), attribute_text(value.type), origin]
    fields = ", ".join([f"{{{string_literal(op.name)}, {line_of(op)}}}", *map(string_literal, texts)])
    return body.file.constant("vnpu::OperandPlace", f"at_{line_of(op)}_{value.name_hint or 'memref'}", fields)


def _maker(value: SSAValue) -> str:
    """Where the buffer behind a memref comes from, as far as the text of the program says."""
    found = root_value(value)
    if not isinstance(found, OpResult):
        return ""
    if found.op.name in ("memref.alloc", "memref.alloca"):
        return f"allocated at line {line_of(found.op)}"
    return (
        f"global {symbol_name(found.op.name_.root_reference.data)}"
        if isinstance(found.op, memref.GetGlobalOp)
        else ""
    )


# ---- indices ----


@dataclass(frozen=True)
class AccessIndex:
    """An index into one dimension: C++ text, and the values it can take where they are known."""

    text: str
    values: Interval | None
    bounds: Bounds | None = None
    """C++ text of its smallest and largest value over all iterations of the nest it is in, where known."""

    def is_within(self, size: str, lanes: str = "1") -> bool:
        """Whether `lanes` elements from this one on are known to be in bounds of `size`."""
        if self.values is None or not size.isdigit() or not lanes.isdigit():
            return False
        return self.values[0] >= 0 and self.values[1] + int(lanes) <= int(size)


def indices_of(body: Body, operands: Sequence[SSAValue], map_: AffineMap | None = None) -> list[AccessIndex]:
    """The indices of an access: the operands, or the results of an affine map of them."""
    texts = body.texts(operands)
    values = (
        [interval(value) for value in operands] if map_ is None else INTERVALS.analyze_map(map_, operands)
    )
    if map_ is not None:
        texts = map_results(map_, texts)
    bounds: list[Bounds | None] = [None] * len(texts)
    if body.checked and body.versioned is not None:
        bounds = index_bounds(body, body.versioned.op, operands, map_)
    return [AccessIndex(*found) for found in zip(texts, values, bounds, strict=True)]


def check_bounds(
    body: Body, op: Operation, value: SSAValue, dim: int, index: AccessIndex, lanes: str = "1"
) -> None:
    """Emit a check that `lanes` elements from an index on are in bounds of a dimension; nothing where they
    are known to be, and in builds without checks."""
    size = body.memref(value).sizes[dim]
    if not body.checks_bounds or index.is_within(size, lanes):
        return
    if not body.checked:
        body.emit_line(f"vnpu::inside({body.site(op)}, {dim}, {index.text}, {lanes}, {size});")
        return
    many = f"{lanes}, " if lanes != "1" else ""
    where = place_name(body, op, value)
    if body.versioned is not None and index.bounds is not None:
        low, high = index.bounds
        beyond = add(high, lanes)
        body.versioned.conditions[f"{parenthesize(low)} >= 0 && {parenthesize(beyond)} <= {size}"] = None
        where = f"{body.memref(value).pointer}, {where}"
    body.emit_line(f"vnpu::within({where}, {dim}, {index.text}, {many}{size});")


def check_not_negative(body: Body, op: Operation, value: SSAValue, dim: int, index: AccessIndex) -> None:
    """Emit a check that an index is not negative, for accesses whose lanes may lie beyond the end."""
    if body.checked and (index.values is None or index.values[0] < 0):
        size = body.memref(value).sizes[dim]
        body.emit_line(f"vnpu::not_before({place_name(body, op, value)}, {dim}, {index.text}, {size});")


# ---- elements ----


def _element(body: Body, op: Operation, value: SSAValue, indices: Sequence[AccessIndex]) -> str:
    """C++ text of a pointer to an element; emits the checks of its indices."""
    for dim, index in enumerate(indices):
        check_bounds(body, op, value, dim, index)
    return element_pointer(body.memref(value), [index.text for index in indices])


def _plain_element(body: Body, op: Operation, value: SSAValue, indices: Sequence[AccessIndex]) -> str:
    """C++ text of an element behind a plain pointer; emits the checks of its indices, where there are any."""
    for dim, index in enumerate(indices):
        check_bounds(body, op, value, dim, index)
    view = body.memref(value)
    return f"{view.pointer}[{address(view, [index.text for index in indices])}]"


def read(
    body: Body, op: Operation, value: SSAValue, operands: Sequence[SSAValue], map_: AffineMap | None = None
) -> str:
    """C++ text of the value of an element of a memref, at the operands (through a map) as indices."""
    return read_at(body, op, value, indices_of(body, operands, map_))


def read_at(body: Body, op: Operation, value: SSAValue, indices: Sequence[AccessIndex]) -> str:
    """C++ text of the value of an element, at indices that need not be operands."""
    if not body.checked:
        return _plain_element(body, op, value, indices)
    pointer = _element(body, op, value, indices)
    return f"vnpu::load({place_name(body, op, value)}, {pointer})"


def write(
    body: Body,
    op: Operation,
    value: SSAValue,
    operands: Sequence[SSAValue],
    text: str,
    map_: AffineMap | None = None,
) -> str:
    """C++ text of a statement that stores `text` to an element of a memref."""
    return write_at(body, op, value, indices_of(body, operands, map_), text)


def write_at(body: Body, op: Operation, value: SSAValue, indices: Sequence[AccessIndex], text: str) -> str:
    """C++ text of a statement that stores `text` at indices that need not be operands."""
    if not body.checked:
        return f"{_plain_element(body, op, value, indices)} = {text};"
    pointer = _element(body, op, value, indices)
    element = types.scalar(types.element(value.type))
    return f"vnpu::store<{element}>({place_name(body, op, value)}, {pointer}, {text});"


# ---- vectors ----


def vector_call(body: Body, op: Operation, value: SSAValue, function: str, arguments: Sequence[str]) -> str:
    """C++ text of a vector access, such as vnpu::read<float, 8>; the first argument is the pointer."""
    type_ = next((one.type for one in (*op.results, *op.operands) if isinstance(one.type, VectorType)), None)
    if type_ is not None:
        width = types.byte_width(type_.element_type)
        body.check_alignment(op, value, arguments[0], prod(type_.get_shape()) * width)
    leading = [place_name(body, op, value)] if body.checked else []
    return f"vnpu::{function}({', '.join([*leading, *arguments])})"


# ---- whole operands ----


def same_extent(body: Body, op: Operation, value: SSAValue, dim: int, extent: str) -> None:
    """Emit a check that a dimension has the extent of the loops; nothing where both are the same text."""
    size = body.memref(value).sizes[dim]
    if size == extent:
        return
    if body.checked:
        body.emit_line(f"vnpu::same_extent({place_name(body, op, value)}, {dim}, {size}, {extent});")
    else:
        body.emit_line(f"vnpu::check_extent({body.site(op)}, {dim}, {size}, {extent});")


def reads_whole(body: Body, op: Operation, value: SSAValue) -> None:
    """Emit one check, before loops that read all of a memref, in place of one per element."""
    if body.checked:
        view = body.memref(value)
        body.emit_line(
            f"vnpu::reads_all({body.site(op)}, {checked_access(body, op, view, '0', *whole_view(view))});"
        )


def writes_whole(body: Body, op: Operation, value: SSAValue) -> None:
    """Emit one check, before loops that write all of a memref, in place of one per element."""
    if body.checked:
        view = body.memref(value)
        body.emit_line(
            f"vnpu::writes_all({body.site(op)}, {checked_access(body, op, view, '0', *whole_view(view))});"
        )


def raw_view(body: Body, view: MemRef) -> MemRef:
    """The view with a plain pointer, for loops whose accesses were checked as a whole."""
    if not body.checked:
        return view
    name = body.fresh(f"{view.pointer}_raw")
    body.emit_line(f"{types.scalar(view.type.element_type)} *const {name} = vnpu::raw({view.pointer});")
    return replace(view, pointer=name)


# ---- uses ----

LOCK_SHARED = "vnpu.handed_over"
"""The attribute of the allocation of an L1 buffer that herds share by locks (passes/shared_l1_locks.py)."""


def uses_of(body: Body, op: Operation) -> list[str]:
    """C++ text of what an operation reads and writes, as `vnpu::Use` values."""
    uses = []
    for value, writes, span in operand_effects(op):
        view = body.memref(value)
        first, count = view.pointer, view.footprint
        if span is not None and view.copies == 1:
            first, count = add(view.pointer, str(span[0])), str(span[1] - span[0] + 1)
        is_write = writes and not _is_handed_over(value)
        uses.append(f"vnpu::{'writes' if is_write else 'reads'}({first}, {count})")
    return uses


def _is_handed_over(value: SSAValue) -> bool:
    """Whether locks order who writes a buffer, and operations that use it run side by side."""
    made = root_value(value).owner
    return isinstance(made, Operation) and LOCK_SHARED in made.attributes
