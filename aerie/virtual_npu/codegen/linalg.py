"""Emitters of linalg on memrefs: every structured op is a loop nest around its scalar body."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import AffineMapAttr, DenseArrayBase, MemRefType, TensorType
from xdsl.dialects.linalg.abstract_ops import LinalgStructuredOperation
from xdsl.dialects.linalg.ops import IndexOp
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap

from aerie.air_dialect.assembly import op_classes
from aerie.air_dialect.index_intervals import INTERVALS
from aerie.air_dialect.upstream import linalg_named
from aerie.air_dialect.upstream.linalg import PackOp, UnpackOp
from aerie.virtual_npu.codegen import memory, types
from aerie.virtual_npu.codegen.body import Body, MemRef, Scalar, emitter
from aerie.virtual_npu.codegen.cpp_text import map_results, mul, parenthesize
from aerie.virtual_npu.codegen.memory import address, checked_access, whole_view
from aerie.virtual_npu.codegen.op_errors import attribute, unsupported

_STRUCTURED = [
    "linalg.generic", "linalg.add", "linalg.sub", "linalg.mul", "linalg.max", "linalg.min", "linalg.exp",
    "linalg.log", "linalg.sqrt", "linalg.select", "linalg.reduce", "linalg.map", "linalg.quantized_matmul",
    *(op.name for op in op_classes(linalg_named)),
]  # fmt: skip


@emitter(*_STRUCTURED)
def _structured(body: Body, op: Operation) -> None:
    if any(isinstance(value.type, TensorType) for value in op.operands):
        raise unsupported(op, "tensors are not supported: bufferize to memrefs first")
    if not isinstance(op, LinalgStructuredOperation):
        raise unsupported(op, "this form is not supported: write linalg.generic")
    maps = [map_.data for map_ in op.get_indexing_maps() if isinstance(map_, AffineMapAttr)]
    extents = _extents(body, op, maps)
    body.comment(op)
    indices = []
    with body.outlined():
        views = _views(body, op, maps, extents)
        for dim, extent in enumerate(extents):
            name = body.fresh(f"d{dim}")
            indices.append(name)
            body.emit_line(f"for (vnpu::i64 {name} = 0; {name} < {extent}; ++{name}) {{")
            body.depth += 1
        _scalar_body(body, op, views, maps, indices, extents)
        for _ in extents:
            body.depth -= 1
            body.emit_line("}")


def _extents(body: Body, op: LinalgStructuredOperation, maps: Sequence[AffineMap]) -> list[str]:
    """The extent of every loop, read off the operands."""
    extents: dict[int, str] = {}
    for value, map_ in zip(op.operands, maps, strict=True):
        if not isinstance(value.type, MemRefType):
            continue
        for expr, size in zip(map_.results, body.memref(value).sizes, strict=True):
            if isinstance(expr, AffineDimExpr):
                extents.setdefault(expr.position, size)
    count = maps[0].num_dims
    missing = [f"d{dim}" for dim in range(count) if dim not in extents]
    if missing:
        raise unsupported(op, f"no operand has the extent of {', '.join(missing)}")
    return [extents[dim] for dim in range(count)]


def _views(
    body: Body, op: LinalgStructuredOperation, maps: Sequence[AffineMap], extents: Sequence[str]
) -> list[MemRef | None]:
    """What the loops read and write their operands through.

    With checks, an operand that they walk as a whole is checked before them. None for a scalar, and, with
    checks, for a memref whose elements are checked one by one.
    """
    views: list[MemRef | None] = []
    written: list[SSAValue] = []
    outputs = len(op.operands) - len(op.outputs)
    for number, (value, argument, map_) in enumerate(zip(op.operands, op.body.block.args, maps, strict=True)):
        if not isinstance(value.type, MemRefType) or (body.checked and not _is_walked(map_)):
            views.append(None)
            continue
        for dim, expr in enumerate(map_.results):
            assert not body.checked or isinstance(expr, AffineDimExpr)
            if isinstance(expr, AffineDimExpr):
                memory.same_extent(body, op, value, dim, extents[expr.position])
        if argument.uses:
            memory.reads_whole(body, op, value)
        if number >= outputs:
            written.append(value)
        views.append(memory.raw_view(body, body.memref(value)))
    for value in written:
        memory.writes_whole(body, op, value)
    return views


def _is_walked(map_: AffineMap) -> bool:
    """Whether loops over all dimensions of an operand touch each of its elements."""
    return all(isinstance(expr, AffineDimExpr) for expr in map_.results)


def _scalar_body(
    body: Body,
    op: LinalgStructuredOperation,
    views: Sequence[MemRef | None],
    maps: Sequence[AffineMap],
    indices: Sequence[str],
    extents: Sequence[str],
) -> None:
    """Load the operands of one point, run the region, store what it yields."""
    block = op.body.block
    elements = [_indices(map_, indices, extents) for map_ in maps]
    for value, argument, view, element in zip(op.operands, block.args, views, elements, strict=True):
        if not isinstance(value.type, MemRefType):
            body.values[argument] = body.values[value]
        elif argument.uses:
            name = body.name_for(argument)
            text = _element(view, element) if view else memory.read_at(body, op, value, element)
            body.emit_line(f"const {types.scalar(argument.type)} {name} = {text};")
            body.values[argument] = Scalar(name)
    body.loop_indices.append(list(indices))
    body.operations(block)
    body.loop_indices.pop()
    assert block.last_op is not None
    first = len(op.operands) - len(op.outputs)
    for number, result in enumerate(block.last_op.operands, start=first):
        view, text = views[number], body.text(result)
        if view:
            body.emit_line(f"{_element(view, elements[number])} = {text};")
        else:
            body.emit_line(memory.write_at(body, op, op.operands[number], elements[number], text))


def _indices(map_: AffineMap, indices: Sequence[str], extents: Sequence[str]) -> list[memory.AccessIndex]:
    """The indices into an operand at one point of the loops."""
    ranges = [(0, max(0, int(extent) - 1)) if extent.isdigit() else None for extent in extents]
    texts = map_results(map_, indices)
    return [
        memory.AccessIndex(f"({text})", INTERVALS.analyze_affine(expr, ranges, map_.num_dims))
        for text, expr in zip(texts, map_.results, strict=True)
    ]


def _element(view: MemRef, indices: Sequence[memory.AccessIndex]) -> str:
    return f"{view.pointer}[{address(view, [index.text for index in indices])}]"


@emitter("linalg.index")
def _index(body: Body, op: Operation) -> None:
    assert isinstance(op, IndexOp)
    body.alias(op.results[0], body.loop_indices[-1][op.dim.value.data])


@emitter("linalg.fill")
def _fill(body: Body, op: Operation) -> None:
    value, target = op.operands
    view = body.memref(target)
    body.comment(op)
    text = body.text(value)
    if value.type != view.type.element_type:
        text = f"vnpu::cast<{types.scalar(view.type.element_type)}>({text})"
    name = body.fresh("filled")
    body.emit_line(f"const {types.scalar(view.type.element_type)} {name} = {text};")
    memory.writes_whole(body, op, target)
    view = memory.raw_view(body, view)
    _loops(body, view, lambda offset: f"{view.pointer}[{offset}] = {name};")


def _loops(body: Body, view: MemRef, statement: object) -> None:
    """A loop over every element of a memref; one loop where it is dense."""
    sizes, strides = whole_view(view)
    known = [size.isdigit() and stride.isdigit() for size, stride in zip(sizes, strides, strict=True)]
    if all(known) and [int(s) for s in strides] == types.row_major(tuple(int(size) for size in sizes)):
        sizes, strides = [view.extent], ["1"]
    indices = [body.fresh("i") for _ in sizes]
    for name, size in zip(indices, sizes, strict=True):
        body.emit_line(f"for (vnpu::i64 {name} = 0; {name} < {size}; ++{name}) {{")
        body.depth += 1
    offset = " + ".join(f"{name} * {stride}" for name, stride in zip(indices, strides, strict=True))
    assert callable(statement)
    body.emit_line(statement(offset))
    for _ in sizes:
        body.depth -= 1
        body.emit_line("}")


@emitter("linalg.copy")
def _copy(body: Body, op: Operation) -> None:
    source, target = (body.memref(value) for value in op.operands)
    if source.type.element_type != target.type.element_type:
        _structured(body, op)
        return
    body.comment(op)
    sides = [checked_access(body, op, view, "0", *whole_view(view)) for view in (target, source)]
    body.emit_line(f"vnpu::dma({body.site(op)}, {sides[0]}, {sides[1]});")


@emitter("linalg.transpose")
def _transpose(body: Body, op: Operation) -> None:
    source, target = (body.memref(value) for value in op.operands)
    found = attribute(op, "permutation")
    order = [int(number) for number in found.get_values()]  # type: ignore[union-attr]
    body.comment(op)
    moved = checked_access(
        body, op, source, "0", [source.sizes[d] for d in order], [source.strides[d] for d in order]
    )
    body.emit_line(
        f"vnpu::dma({body.site(op)}, {checked_access(body, op, target, '0', *whole_view(target))}, {moved});"
    )


@emitter("linalg.broadcast")
def _broadcast(body: Body, op: Operation) -> None:
    """The source is walked in the target's shape, with stride 0 over the dimensions that it lacks."""
    source, target = (body.memref(value) for value in op.operands[:2])
    added = attribute(op, "dimensions")
    assert isinstance(added, DenseArrayBase)
    strides, own = [], iter(source.strides)
    for dim in range(len(target.sizes)):
        strides.append("0" if dim in added.get_values() else next(own))
    body.comment(op)
    sizes = list(target.sizes) or ["1"]
    spread = checked_access(body, op, source, "0", sizes, strides or ["1"])
    body.emit_line(
        f"vnpu::dma({body.site(op)}, {checked_access(body, op, target, '0', *whole_view(target))}, {spread});"
    )


# ---- pack and unpack: element by element over the packed side ----


@emitter("linalg.pack")
def _pack(body: Body, op: Operation) -> None:
    assert isinstance(op, PackOp)
    _refuse_tensors(op)
    padding = None if op.padding_value is None else body.text(op.padding_value)
    memory.reads_whole(body, op, op.source)
    memory.writes_whole(body, op, op.dest)
    plain, packed, inside, indices, places = _open_loops(body, op)
    target = f"{packed.pointer}[{address(packed, indices)}]"
    source = f"{plain.pointer}[{address(plain, places)}]"
    if inside and padding is None:
        raise unsupported(
            op, "the tiles may reach beyond the source, and there is no padding_value for the rest"
        )
    value = f"{inside} ? {source} : {padding}" if inside else source
    body.emit_line(f"{target} = {value};")
    _close_loops(body, indices)


@emitter("linalg.unpack")
def _unpack(body: Body, op: Operation) -> None:
    assert isinstance(op, UnpackOp)
    _refuse_tensors(op)
    memory.reads_whole(body, op, op.source)
    memory.writes_whole(body, op, op.dest)
    plain, packed, inside, indices, places = _open_loops(body, op)
    guard = f"if ({inside}) " if inside else ""
    source = f"{packed.pointer}[{address(packed, indices)}]"
    body.emit_line(f"{guard}{plain.pointer}[{address(plain, places)}] = {source};")
    _close_loops(body, indices)


def _refuse_tensors(op: Operation) -> None:
    if any(isinstance(value.type, TensorType) for value in op.operands):
        raise unsupported(op, "tensors are not supported: bufferize to memrefs first")


def _open_loops(body: Body, op: PackOp | UnpackOp) -> tuple[MemRef, MemRef, str, list[str], list[str]]:
    """Open the loops: both sides, the test of lying inside ("" if sure), packed indices, plain indices."""
    plain, packed = (memory.raw_view(body, body.memref(side)) for side in op.sides())
    rank = len(plain.sizes)
    body.comment(op)
    indices = [body.fresh("tile" if n < rank else "in") for n in range(len(packed.sizes))]
    for name, size in zip(indices, packed.sizes, strict=True):
        body.emit_line(f"for (vnpu::i64 {name} = 0; {name} < {size}; ++{name}) {{")
        body.depth += 1
    places = [""] * rank
    for outer, dim in enumerate(op.order()):
        places[dim] = indices[outer]
    extents = dict(zip(op.order(), packed.sizes[:rank], strict=True))
    for inner, dim in enumerate(op.inner_dims_pos.get_values()):
        tile = packed.sizes[rank + inner]
        places[dim] = f"({mul(places[dim], parenthesize(tile))} + {indices[rank + inner]})"
        extents[dim] = mul(parenthesize(extents[dim]), parenthesize(tile))
    return plain, packed, _inside(plain.sizes, extents, places), indices, places


def _inside(sizes: Sequence[str], extents: dict[int, str], places: Sequence[str]) -> str:
    """C++ text of whether a packed element has a place in the plain side; "" where all have."""
    beyond = [dim for dim in range(len(sizes)) if extents[dim] != sizes[dim]]
    return " && ".join(f"{places[dim]} < {sizes[dim]}" for dim in beyond)


def _close_loops(body: Body, indices: Sequence[str]) -> None:
    for _ in indices:
        body.depth -= 1
        body.emit_line("}")
