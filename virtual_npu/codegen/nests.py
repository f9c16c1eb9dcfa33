"""Loops that touch memory, in programs with checks: two versions of them.

Before the outermost loop comes one test per buffer that it touches: not given back, all of it written, nobody
to race with. Where all hold, no access inside has anything to report but an index outside, which both
versions check unless it is known to be inside. The loops are written once, as a lambda that C++ instantiates
for plain pointers and for those that know their buffer.
"""

from __future__ import annotations

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, SSAValue

from air_dialect.ops import AsyncTokenType
from virtual_npu.codegen import types
from virtual_npu.codegen.blocks import touched_block
from virtual_npu.codegen.body import Body, Emit, Mode, Scalar, grouped
from virtual_npu.codegen.effects import accesses

_LOOPS = frozenset(["scf.for", "scf.parallel", "scf.forall", "scf.while", "affine.for", "affine.parallel"])
_NOT_INSIDE = frozenset([
    "memref.alloc", "memref.alloca", "memref.dealloc", "memref.reinterpret_cast", "memref.view",
    "memref.reshape", "memref.get_global", "func.call",
])  # fmt: skip
"""What changes buffers, makes views that may lie outside, or takes pointers that know their buffer."""


def is_nest(body: Body, op: Operation) -> bool:
    """Whether an operation is the outermost of such loops."""
    if body.in_nest or body.mode is Mode.SEQUENCER or op.name not in _LOOPS:
        return False
    inside = list(op.walk())
    return all(map(_may_be_inside, inside)) and any(map(accesses, inside))


def _may_be_inside(op: Operation) -> bool:
    if op.name in _NOT_INSIDE or op.name.startswith("air."):
        return False
    values = [*op.operands, *op.results] if op.regions else []
    values += [argument for region in op.regions for block in region.blocks for argument in block.args]
    is_linalg = op.name.startswith("linalg.")
    return is_linalg or not any(isinstance(value.type, MemRefType | AsyncTokenType) for value in values)


def emit_nest(body: Body, op: Operation, emit: Emit) -> None:
    """Emit loops in two versions. What they give is assigned to variables outside."""
    memrefs = {body.memref(value).pointer: value for value in _memrefs_from_outside(op)}
    outside = [body.name_for(result) for result in op.results]
    for name, result in zip(outside, op.results, strict=True):
        body.put(f"{types.cpp(result.type)} {name};")
    listed = "".join(f", {_part(body, op, pointer, value)}" for pointer, value in memrefs.items())
    body.in_nest = True
    with body.block(
        f"vnpu::nest([&]({', '.join(f'auto {pointer}' for pointer in memrefs)})", f"}}{listed});"
    ):
        emit(body, op)
        for name, result in zip(outside, op.results, strict=True):
            body.put(f"{name} = {body.text(result)};")
    body.in_nest = False
    for name, result in zip(outside, op.results, strict=True):
        body.values[result] = Scalar(name)


def _part(body: Body, op: Operation, pointer: str, value: SSAValue) -> str:
    """C++ text of a `vnpu::Part`: the block that the loops touch where it is known, else all of the memref."""
    block = touched_block(body, op, value)
    if block is None:
        return f"vnpu::part({pointer}, {body.memref(value).extent})"
    begin = pointer if block.offset == "0" else f"{pointer} + {grouped(block.offset)}"
    use = f"{block.count}, {str(block.writes).lower()}"
    return f"vnpu::block({body.site(op)}, {pointer}, {begin}, {use})"


def _memrefs_from_outside(op: Operation) -> list[SSAValue]:
    found: dict[SSAValue, None] = {}
    for inner in op.walk():
        for value in inner.operands:
            if isinstance(value.type, MemRefType) and not _is_inside(op, value):
                found[value] = None
    return list(found)


def _is_inside(op: Operation, value: SSAValue) -> bool:
    """Whether a value is defined in a region of an operation."""
    parent = value.owner.parent_op()
    while parent is not None and parent is not op:
        parent = parent.parent_op()
    return parent is op
