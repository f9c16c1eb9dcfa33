"""Emitters of linalg.pack and linalg.unpack: element by element over the packed side."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation

from air_dialect.upstream.linalg import PackOp, UnpackOp
from virtual_npu.codegen import memory
from virtual_npu.codegen.body import Body, MemRef, emits
from virtual_npu.codegen.memory import address
from virtual_npu.codegen.refusals import unsupported
from virtual_npu.codegen.text import grouped, times


@emits("linalg.pack")
def _pack(body: Body, op: Operation) -> None:
    assert isinstance(op, PackOp)
    _refuse_tensors(op)
    padding = None if op.padding_value is None else body.text(op.padding_value)
    memory.reads_whole(body, op, op.source)
    memory.writes_whole(body, op, op.dest)
    plain, packed, inside, indices, places = _loops(body, op)
    target = f"{packed.pointer}[{address(packed, indices)}]"
    source = f"{plain.pointer}[{address(plain, places)}]"
    if inside and padding is None:
        raise unsupported(
            op, "the tiles may reach beyond the source, and no padding_value says what lies there"
        )
    value = f"{inside} ? {source} : {padding}" if inside else source
    body.put(f"{target} = {value};")
    _close(body, indices)


@emits("linalg.unpack")
def _unpack(body: Body, op: Operation) -> None:
    assert isinstance(op, UnpackOp)
    _refuse_tensors(op)
    memory.reads_whole(body, op, op.source)
    memory.writes_whole(body, op, op.dest)
    plain, packed, inside, indices, places = _loops(body, op)
    guard = f"if ({inside}) " if inside else ""
    source = f"{packed.pointer}[{address(packed, indices)}]"
    body.put(f"{guard}{plain.pointer}[{address(plain, places)}] = {source};")
    _close(body, indices)


def _refuse_tensors(op: Operation) -> None:
    if any(isinstance(value.type, TensorType) for value in op.operands):
        raise unsupported(op, "tensors are not supported: bufferize to memrefs first")


def _loops(body: Body, op: PackOp | UnpackOp) -> tuple[MemRef, MemRef, str, list[str], list[str]]:
    """Open the loops: both sides, the test of lying inside ("" if sure), packed indices, plain indices."""
    plain, packed = (memory.raw(body, body.memref(side)) for side in op.sides())
    rank = len(plain.sizes)
    body.comment(op)
    indices = [body.fresh("tile" if n < rank else "in") for n in range(len(packed.sizes))]
    for name, size in zip(indices, packed.sizes, strict=True):
        body.put(f"for (vnpu::i64 {name} = 0; {name} < {size}; ++{name}) {{")
        body.depth += 1
    places = [""] * rank
    for outer, dim in enumerate(op.order()):
        places[dim] = indices[outer]
    extents = dict(zip(op.order(), packed.sizes[:rank], strict=True))
    for inner, dim in enumerate(op.inner_dims_pos.get_values()):
        tile = packed.sizes[rank + inner]
        places[dim] = f"({times(places[dim], grouped(tile))} + {indices[rank + inner]})"
        extents[dim] = times(grouped(extents[dim]), grouped(tile))
    return plain, packed, _inside(plain.sizes, extents, places), indices, places


def _inside(sizes: Sequence[str], extents: dict[int, str], places: Sequence[str]) -> str:
    """C++ text of whether a packed element has a place in the plain side; "" where all have."""
    beyond = [dim for dim in range(len(sizes)) if extents[dim] != sizes[dim]]
    return " && ".join(f"{places[dim]} < {sizes[dim]}" for dim in beyond)


def _close(body: Body, indices: Sequence[str]) -> None:
    for _ in indices:
        body.depth -= 1
        body.put("}")
