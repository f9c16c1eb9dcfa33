"""The start of a memref in its buffer, from which offsets count."""

from __future__ import annotations

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, OpResult, SSAValue

from aerie.air_dialect.ops import HierarchyOp
from aerie.air_dialect.values import walk
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import Body
from aerie.virtual_npu.codegen.cpp_text import add, parenthesize
from aerie.virtual_npu.codegen.op_errors import unsupported


def base_memref(value: SSAValue) -> SSAValue:
    """What a memref is a view of, all views taken off."""
    while isinstance(value, OpResult) and value.op.name in _VIEWS:
        value = value.op.operands[0]
    return value


def buffer_pointer(body: Body, op: Operation, value: SSAValue) -> str:
    """C++ text of a pointer to the begin of the buffer under a memref, from which the offset of its type
    counts."""
    value = base_memref(value)
    assert isinstance(value.type, MemRefType)
    view, offset = body.memref(value), types.memref_offset(value.type)
    if offset != types.DYNAMIC:
        return add(view.pointer, str(-offset))
    if view.offset is None:
        raise unsupported(op, f"where {value.type} begins in its buffer is known only at run time")
    return f"{view.pointer} + -{parenthesize(view.offset)}"


def offset_of(body: Body, op: Operation, value: SSAValue) -> str:
    """C++ text of how far the first element of a memref lies behind the begin of its buffer."""
    assert isinstance(value.type, MemRefType)
    view, known = body.memref(value), types.memref_offset(value.type)
    if known != types.DYNAMIC:
        return str(known)
    if view.offset is not None:
        return view.offset
    first, begin = view.pointer, buffer_pointer(body, op, value)
    return f"vnpu::raw({first}) - vnpu::raw({begin})" if body.checked else f"{first} - ({begin})"


_VIEWS = frozenset([
    "memref.subview", "memref.cast", "memref.reinterpret_cast", "memref.expand_shape",
    "memref.collapse_shape", "memref.transpose", "memref.memory_space_cast", "memref.assume_alignment",
])  # fmt: skip

_OFFSET_READERS = (
    "memref.extract_strided_metadata",
    "memref.extract_aligned_pointer_as_index",
    "memref.reinterpret_cast",
)


def needs_offset(op: HierarchyOp, captured: SSAValue) -> bool:
    """Whether a body needs the offset of a memref argument in its buffer: an operation reads it, and the type
    does not have it."""
    if not isinstance(captured.type, MemRefType) or types.memref_offset(captured.type) != types.DYNAMIC:
        return False
    return any(inner.name in _OFFSET_READERS for inner in walk(op))
