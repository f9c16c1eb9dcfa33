"""Loops that touch memory, in programs with checks: two versions of them.

Before the outermost loop comes one test per buffer that it touches: not given back, all of it written, nobody
to race with; and one per index that is not known to lie inside. Where all hold, no access has anything to
report but an index that only the loops themselves can tell. The loops are written once, as a lambda that C++
instantiates for plain pointers and for those that know their buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, SSAValue

from air_dialect.effects import accesses
from air_dialect.ops import AsyncTokenType
from air_dialect.values import is_inside
from virtual_npu.codegen import types
from virtual_npu.codegen.blocks import touched_block
from virtual_npu.codegen.body import Body, Emit, Nest, Scalar
from virtual_npu.codegen.execution import Mode
from virtual_npu.codegen.reaches import reach
from virtual_npu.codegen.text import grouped

_LOOPS = frozenset(["scf.for", "scf.parallel", "scf.forall", "scf.while", "affine.for", "affine.parallel"])
_NOT_INSIDE = frozenset([
    "memref.alloc", "memref.alloca", "memref.dealloc", "memref.reinterpret_cast", "memref.view",
    "memref.reshape", "memref.get_global", "func.call",
])  # fmt: skip
"""What changes buffers, makes views that may lie outside, or takes pointers that know their buffer."""


def is_nest(body: Body, op: Operation) -> bool:
    """Whether an operation is the outermost of such loops."""
    if body.nest is not None or body.mode is Mode.SEQUENCER or op.name not in _LOOPS:
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
    """Emit loops, in two versions with checks. What they give is assigned to variables outside."""
    outside = [body.name_for(result) for result in op.results]
    for name, result in zip(outside, op.results, strict=True):
        body.put(f"{types.cpp(result.type)} {name};")
    body.nest = Nest(op)
    with _two_versions(body, body.nest) if body.checked else body.compute(*outside):
        emit(body, op)
        for name, result in zip(outside, op.results, strict=True):
            body.put(f"{name} = {body.text(result)};")
    body.nest = None
    for name, result in zip(outside, op.results, strict=True):
        body.values[result] = Scalar(name)


@contextmanager
def _two_versions(body: Body, nest: Nest) -> Iterator[None]:
    memrefs = {body.memref(value).pointer: value for value in _memrefs_from_outside(nest.op)}
    body.put(f"vnpu::nest([&]({', '.join(f'auto {pointer}' for pointer in memrefs)}) {{")
    body.depth += 1
    yield
    body.depth -= 1
    inside = " && ".join(nest.conditions) or "true"
    parts = [_part(body, nest.op, pointer, value) for pointer, value in memrefs.items()]
    body.put(f"}}, {', '.join([inside, *parts])});")


def _part(body: Body, op: Operation, pointer: str, value: SSAValue) -> str:
    """C++ text of a `vnpu::Part`: the block that loops touch, or what they reach, or all of the memref."""
    block = touched_block(body, op, value)
    if block is None:
        reached = reach(body, op, value)
        part = f"vnpu::part({pointer}, {body.memref(value).extent})"
        return part if reached is None else f"{part}.between({reached[0]}, {reached[1]})"
    begin = pointer if block.offset == "0" else f"{pointer} + {grouped(block.offset)}"
    use = f"{block.count}, {str(block.writes).lower()}"
    return f"vnpu::block({body.site(op)}, {pointer}, {begin}, {use})"


def _memrefs_from_outside(op: Operation) -> list[SSAValue]:
    found: dict[SSAValue, None] = {}
    for inner in op.walk():
        for value in inner.operands:
            if isinstance(value.type, MemRefType) and not is_inside(op, value):
                found[value] = None
    return list(found)
