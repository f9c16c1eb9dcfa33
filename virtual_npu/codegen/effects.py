"""What an operation reads and writes, seen from outside of it."""

from __future__ import annotations

from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.linalg.abstract_ops import LinalgStructuredOperation
from xdsl.ir import Block, Operation, OpResult, SSAValue

from air_dialect.ops import ChannelTransferOp, HierarchyOp
from virtual_npu.codegen.intervals import Interval, add
from virtual_npu.codegen.spans import joined, shift, span

_READS = frozenset([
    "memref.load", "affine.load", "affine.vector_load", "vector.load", "vector.transfer_read",
    "vector.maskedload", "vector.gather", "vector.expandload", "air.channel.put",
])  # fmt: skip
_WRITES = frozenset([
    "memref.store", "affine.store", "affine.vector_store", "vector.store", "vector.transfer_write",
    "vector.maskedstore", "vector.scatter", "vector.compressstore", "air.channel.get",
])  # fmt: skip
_VIEWS = frozenset([
    "memref.subview", "memref.collapse_shape", "memref.expand_shape", "memref.cast", "memref.view",
    "memref.memory_space_cast", "memref.reinterpret_cast", "memref.assume_alignment", "memref.transpose",
    "memref.reshape", "memref.extract_strided_metadata",
])  # fmt: skip
_NO_ACCESS = _VIEWS | {
    "memref.dim", "memref.rank", "memref.dealloc", "memref.prefetch", "air.execute_terminator",
    "memref.extract_aligned_pointer_as_index",
}  # fmt: skip
_CONTROL = ("scf.", "affine.for", "affine.if", "affine.parallel", "affine.yield", "func.return")


def channels_used(op: Operation) -> list[str]:
    """The names of the channels that an operation and everything in it uses, in order of appearance."""
    names = {inner.chan_name: None for inner in op.walk() if isinstance(inner, ChannelTransferOp)}
    return list(names)


def accesses(op: Operation) -> list[tuple[SSAValue, bool]]:
    """(memref, writes) for every memref operand that this operation itself touches."""
    memrefs = [value for value in op.operands if isinstance(value.type, MemRefType)]
    if op.name in _NO_ACCESS or op.name.startswith(_CONTROL) or isinstance(op, HierarchyOp):
        return []
    if op.name in _READS:
        return [(value, False) for value in memrefs]
    if op.name in _WRITES:
        return [(value, True) for value in memrefs]
    if op.name == "air.dma_memcpy_nd":
        return [(memrefs[0], True), (memrefs[1], False)]
    if op.name in ("memref.copy", "linalg.copy", "linalg.transpose", "linalg.broadcast"):
        return [(memrefs[0], False), (memrefs[-1], True)]
    if isinstance(op, LinalgStructuredOperation):
        return [(value, any(value is output for output in op.outputs)) for value in memrefs]
    if op.name.startswith("linalg.") and memrefs:
        return [(value, False) for value in memrefs[:-1]] + [(memrefs[-1], True)]
    return [(value, True) for value in memrefs]


def base(value: SSAValue) -> SSAValue:
    """The memref that a chain of views looks at."""
    while isinstance(value, OpResult) and value.op.name in _VIEWS:
        value = value.op.operands[0]
    return value


Effect = tuple[SSAValue, bool, Interval | None]
"""A memref, whether it is written, and its first and last element that is touched (None: any)."""


def operand_effects(op: Operation) -> list[Effect]:
    """What `op` and anything in it does to memrefs from outside of it."""
    found: dict[tuple[SSAValue, bool], Interval | None] = {}
    outside: dict[SSAValue, SSAValue] = {}
    for inner in op.walk():
        if isinstance(inner, HierarchyOp):
            outside.update(zip(inner.kernel_args, inner.kernel_operands, strict=True))
    for inner in op.walk():
        for value, writes in accesses(inner):
            root, touched = _outermost(op, value, span(inner, value, writes), outside)
            if inner is op or not is_inside(op, root):
                key = root, writes
                found[key] = joined(found[key], touched) if key in found else touched
    return [(root, writes, touched) for (root, writes), touched in found.items()]


def _outermost(
    op: Operation, value: SSAValue, touched: Interval | None, outside: dict[SSAValue, SSAValue]
) -> tuple[SSAValue, Interval | None]:
    """What a memref in `op` is, or looks at, outside of it, and what is touched counted from there."""
    while not _is_operand(op, value):
        if value in outside:
            value = outside[value]
        elif isinstance(value, OpResult) and value.op.name in _VIEWS and is_inside(op, value):
            step = shift(value)
            touched = add(touched, step) if touched is not None and step is not None else None
            value = value.op.operands[0]
        else:
            break
    return value, touched


def _is_operand(op: Operation, value: SSAValue) -> bool:
    return any(operand is value for operand in op.operands)


def is_inside(op: Operation, value: SSAValue) -> bool:
    """Whether a value is defined in a region of `op`."""
    owner = value.owner
    parent = owner if isinstance(owner, Block) else owner.parent
    while parent is not None:
        holder = parent.parent_op()
        if holder is op:
            return True
        parent = holder.parent if holder is not None else None
    return False
