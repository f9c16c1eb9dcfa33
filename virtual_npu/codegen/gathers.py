"""Emitters of vector operations whose lanes lie anywhere in memory, and of atomic updates of one element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

from xdsl.ir import Operation, SSAValue

from air_dialect.upstream.formats import ATOMIC_KINDS
from air_dialect.upstream.memref import AtomicRMWOp
from virtual_npu.codegen import memory, types
from virtual_npu.codegen.body import Body, emits
from virtual_npu.codegen.text import plus
from virtual_npu.codegen.vector import shape_of

# ---- lanes anywhere in memory ----


def _lanes_of(body: Body, hint: str, value: SSAValue) -> str:
    """Emit a vector as an array of its elements; gives the array's name."""
    name = body.fresh(hint)
    scalar, count = types.scalar(types.element(value.type)), prod(shape_of(value))
    body.put(f"vnpu::Lanes<{scalar}, {count}> {name}({body.text(value)});")
    return name


@contextmanager
def _each_lane(body: Body, mask: SSAValue) -> Iterator[None]:
    """A loop over the lanes i that are on."""
    on = _lanes_of(body, "on", mask)
    with body.block(f"for (int i = 0; i < {prod(shape_of(mask))}; ++i) if ({on}.at[i])"):
        yield


def _indices(body: Body, offsets: Sequence[SSAValue], lane: str) -> list[memory.Index]:
    """Where lane i lies: the last index moves with the lane."""
    *outer, last = memory.indices_of(body, offsets)
    return [*outer, memory.Index(plus(last.text, lane), None)]


@emits("vector.gather")
def _gather(body: Body, op: Operation) -> None:
    base, *offsets, where, mask, other = op.operands
    lanes, places = _lanes_of(body, "gathered", other), _lanes_of(body, "where", where)
    with _each_lane(body, mask):
        indices = _indices(body, offsets, f"vnpu::i64({places}.at[i])")
        body.put(f"{lanes}.at[i] = {memory.read_at(body, op, base, indices)};")
    body.define(op.results[0], f"{lanes}.vec()")


@emits("vector.scatter")
def _scatter(body: Body, op: Operation) -> None:
    base, *offsets, where, mask, value = op.operands
    lanes, places = _lanes_of(body, "scattered", value), _lanes_of(body, "where", where)
    with _each_lane(body, mask):
        indices = _indices(body, offsets, f"vnpu::i64({places}.at[i])")
        body.put(memory.write_at(body, op, base, indices, f"{lanes}.at[i]"))


@emits("vector.expandload")
def _expand_load(body: Body, op: Operation) -> None:
    base, *offsets, mask, other = op.operands
    lanes, position = _lanes_of(body, "lanes", other), body.fresh("position")
    body.put(f"vnpu::i64 {position} = 0;")
    with _each_lane(body, mask):
        body.put(f"{lanes}.at[i] = {memory.read_at(body, op, base, _indices(body, offsets, position))};")
        body.put(f"++{position};")
    body.define(op.results[0], f"{lanes}.vec()")


@emits("vector.compressstore")
def _compress_store(body: Body, op: Operation) -> None:
    base, *offsets, mask, value = op.operands
    lanes, position = _lanes_of(body, "lanes", value), body.fresh("position")
    body.put(f"vnpu::i64 {position} = 0;")
    with _each_lane(body, mask):
        body.put(memory.write_at(body, op, base, _indices(body, offsets, position), f"{lanes}.at[i]"))
        body.put(f"++{position};")


# ---- read, change, write ----

_COMBINED = {
    "addf": "add", "addi": "add", "mulf": "mul", "muli": "mul", "maximumf": "maximumf",
    "minimumf": "minimumf", "maxnumf": "maxnumf", "minnumf": "minnumf", "maxs": "maxsi", "maxu": "maxui",
    "mins": "minsi", "minu": "minui", "ori": "ori", "andi": "andi", "xori": "xori",
}  # fmt: skip


def combined(kind: str, scalar: str, old: str, value: str) -> str:
    """C++ text of two scalars combined as memref.atomic_rmw and affine.parallel name it."""
    return value if kind == "assign" else f"vnpu::{_COMBINED[kind]}<{scalar}>({old}, {value})"


@emits("memref.atomic_rmw")
def _atomic(body: Body, op: Operation) -> None:
    """Gives the old element. A tile runs by itself between two waits, so nothing can come between."""
    assert isinstance(op, AtomicRMWOp)
    scalar, kind = types.scalar(op.value.type), ATOMIC_KINDS[op.kind.value.data]
    body.define(op.result, memory.read(body, op, op.memref, op.indices))
    new = combined(kind, scalar, body.text(op.result), body.text(op.value))
    body.put(memory.write(body, op, op.memref, op.indices, new))


@emits("memref.generic_atomic_rmw")
def _generic_atomic(body: Body, op: Operation) -> None:
    """Gives the new element."""
    (buffer, *indices), block = op.operands, op.regions[0].block
    body.define(block.args[0], memory.read(body, op, buffer, indices))
    body.operations(block)
    assert block.last_op is not None
    (new,) = block.last_op.operands
    body.values[op.results[0]] = body.values[new]
    body.put(memory.write(body, op, buffer, indices, body.text(new)))


@emits("memref.prefetch")
def _prefetch(body: Body, op: Operation) -> None:
    """A hint that changes nothing."""


# ---- what a memref is made of ----


@emits("memref.rank")
def _rank(body: Body, op: Operation) -> None:
    rank = len(body.memref(op.operands[0]).sizes)
    body.alias(op.results[0], str(rank))


@emits("memref.extract_aligned_pointer_as_index")
def _pointer(body: Body, op: Operation) -> None:
    pointer = memory.raw(body, body.memref(op.operands[0])).pointer
    body.define(op.results[0], f"reinterpret_cast<vnpu::i64>({pointer})")


@emits("memref.extract_strided_metadata")
def _metadata(body: Body, op: Operation) -> None:
    """Where the offset is known at run time only, the buffer counts from the view's first element."""
    view = body.memref(op.operands[0])
    buffer, offset, *rest = op.results
    known = types.memref_offset(view.type)
    known = 0 if known == types.DYNAMIC else known
    body.define_memref(buffer, plus(view.pointer, str(-known)), [], [])
    body.alias(offset, str(known))
    for result, text in zip(rest, (*view.sizes, *view.strides), strict=True):
        body.alias(result, text)


@emits("memref.alloca_scope")
def _scope(body: Body, op: Operation) -> None:
    """Buffers of the stack stay until the body around ends, which nothing can tell."""
    block = op.regions[0].block
    body.operations(block)
    assert block.last_op is not None
    for result, value in zip(op.results, block.last_op.operands, strict=True):
        body.values[result] = body.values[value]
