"""Emitters of vector operations on memory: loads, stores, transfers, lanes anywhere; and vector.mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

from xdsl.dialects import vector
from xdsl.dialects.builtin import (
    AffineMapAttr,
    DenseArrayBase,
    VectorType,
    i32,
)
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr

from aerie.air_dialect.upstream.vector_memory import MaskOp
from aerie.virtual_npu.codegen import memory, types
from aerie.virtual_npu.codegen.affine import neutral_element
from aerie.virtual_npu.codegen.alignment_checks import check_alignment
from aerie.virtual_npu.codegen.body import Body, MemRef, Scalar, emitter
from aerie.virtual_npu.codegen.cpp_text import add, parenthesize
from aerie.virtual_npu.codegen.memory import element_pointer
from aerie.virtual_npu.codegen.op_errors import attribute, unsupported
from aerie.virtual_npu.codegen.vector_lanes import braces, coordinates, emit_shuffle, flat_index, shape_of
from aerie.virtual_npu.codegen.vector_sums import reduction_kind

# ---- loads, stores, transfers ----


def _template(type_: VectorType) -> str:
    """`T, S0, S1, ...` for the memory helpers; a 0-d vector counts as one lane."""
    return ", ".join([types.scalar(type_.element_type), *map(str, type_.get_shape() or (1,))])


def _minor(view: MemRef, rank: int) -> list[str]:
    """The strides of the last `rank` dimensions; leading vector dimensions beyond them step by 0."""
    strides = list(view.strides[len(view.strides) - rank :]) if rank else ["1"]
    return ["0"] * (rank - len(strides)) + strides


@emitter("vector.load", "affine.vector_load")
def _load(body: Body, op: Operation) -> None:
    type_ = op.results[0].type
    assert isinstance(type_, VectorType)
    pointer, strides = _window(body, op, op.operands[0], op.operands[1:], type_)
    check_alignment(body, op, pointer, strides)
    call = memory.vector_call(body, op, op.operands[0], f"read<{_template(type_)}>", [pointer, strides])
    body.define(op.results[0], call)


@emitter("vector.store", "affine.vector_store")
def _store(body: Body, op: Operation) -> None:
    value, target, *indices = op.operands
    assert isinstance(value.type, VectorType)
    pointer, strides = _window(body, op, target, indices, value.type)
    check_alignment(body, op, pointer, strides)
    arguments = [pointer, strides, body.text(value)]
    body.emit_line(memory.vector_call(body, op, target, f"write<{_template(value.type)}>", arguments) + ";")


def _window(
    body: Body, op: Operation, value: SSAValue, operands: Sequence[SSAValue], type_: VectorType
) -> tuple[str, str]:
    """C++ text of where a vector begins in the last dimensions of a memref, and of its strides."""
    view, map_, shape = body.memref(value), attribute(op, "map"), type_.get_shape()
    indices = memory.indices_of(body, operands, map_.data if isinstance(map_, AffineMapAttr) else None)
    lanes = [*[1] * (len(indices) - len(shape)), *shape][-len(indices) :] if indices else []
    for dim, (index, count) in enumerate(zip(indices, lanes, strict=True)):
        memory.check_bounds(body, op, value, dim, index, str(count))
    return element_pointer(view, [index.text for index in indices]), braces(_minor(view, len(shape)))


class _Transfer:
    """The memory side of a vector transfer: per vector dimension a stride and a limit."""

    def __init__(
        self,
        body: Body,
        op: vector.TransferReadOp | vector.TransferWriteOp,
        type_: VectorType,
        mask: SSAValue | None,
    ) -> None:
        self.view = body.memref(op.source)
        self.indices = body.texts(op.indices)
        self.pointer = element_pointer(self.view, self.indices)
        self._check_bounds(body, op, type_, mask)
        bounds = [bound.value.data != 0 for bound in op.in_bounds]
        self.strides: list[str] = []
        self.limits: list[str] = []
        shape = type_.get_shape()
        for dim, expr in enumerate(op.permutation_map.data.results):
            extent = str(shape[dim])
            if isinstance(expr, AffineConstantExpr):
                self.strides.append("0")
                self.limits.append(extent)
                continue
            if not isinstance(expr, AffineDimExpr):
                raise unsupported(op, f"permutation map {op.permutation_map.data}: use dimensions and 0 only")
            self.strides.append(self.view.strides[expr.position])
            inside = bool(bounds) and bounds[dim]
            self.limits.append(extent if inside else self._left(body, op, expr.position))
        self.strides, self.limits = self.strides or ["1"], self.limits or ["1"]
        self.is_inside = mask is None and all(
            limit.isdigit() and int(limit) >= extent
            for limit, extent in zip(self.limits, shape or (1,), strict=True)
        )
        self.mask = [] if mask is None else [f"&{_mask_by_lane(body, op, shape, mask)}"]

    def _check_bounds(
        self,
        body: Body,
        op: vector.TransferReadOp | vector.TransferWriteOp,
        type_: VectorType,
        mask: SSAValue | None,
    ) -> None:
        """Refuse what lies outside of dimensions that are in bounds, or are not part of the vector."""
        exprs = op.permutation_map.data.results
        bounds = [bound.value.data != 0 for bound in op.in_bounds] or [False] * len(exprs)
        of_dim = {e.position: i for i, e in enumerate(exprs) if isinstance(e, AffineDimExpr)}
        for dim, index in enumerate(memory.indices_of(body, op.indices)):
            if dim not in of_dim:
                memory.check_bounds(body, op, op.source, dim, index)
            elif bounds[of_dim[dim]] and mask is None:
                memory.check_bounds(body, op, op.source, dim, index, str(type_.get_shape()[of_dim[dim]]))
            else:
                memory.check_not_negative(body, op, op.source, dim, index)

    def _left(self, body: Body, op: vector.TransferReadOp | vector.TransferWriteOp, dim: int) -> str:
        """Elements from the index to the end of a dimension."""
        size, known = self.view.sizes[dim], body.number(op.indices[dim])
        if known is not None and size.isdigit():
            return str(int(size) - known)
        return add(size, f"-{parenthesize(self.indices[dim])}")


def _mask_by_lane(
    body: Body,
    op: vector.TransferReadOp | vector.TransferWriteOp,
    shape: Sequence[int],
    mask: SSAValue,
) -> str:
    """The name of a mask with a bit per lane; a given one has the order of the memory's dimensions."""
    exprs = op.permutation_map.data.results
    of_dim = {e.position: i for i, e in enumerate(exprs) if isinstance(e, AffineDimExpr)}
    order = [of_dim[position] for position in sorted(of_dim)]
    places = coordinates("i", shape)
    index = flat_index([places[i] for i in order], [shape[i] for i in order])
    if order == list(range(len(shape))):
        index = "i"
    text = emit_shuffle(body.text(mask), prod(shape), index)
    if text == body.text(mask):
        return text
    name = body.fresh("mask")
    body.emit_line(f"const auto {name} = {text};")
    return name


@emitter("vector.transfer_read")
def _transfer_read(body: Body, op: Operation) -> None:
    assert isinstance(op, vector.TransferReadOp)
    type_ = op.result.type
    assert isinstance(type_, VectorType)
    side = _Transfer(body, op, type_, op.mask)
    template, strides = _template(type_), braces(side.strides)
    if side.is_inside:
        check_alignment(body, op, side.pointer, strides)
        expression = memory.vector_call(body, op, op.source, f"read<{template}>", [side.pointer, strides])
    else:
        arguments = [side.pointer, strides, braces(side.limits), body.text(op.padding), *side.mask]
        expression = memory.vector_call(body, op, op.source, f"read_within<{template}>", arguments)
    body.define(op.result, expression)


@emitter("vector.transfer_write")
def _transfer_write(body: Body, op: Operation) -> None:
    assert isinstance(op, vector.TransferWriteOp)
    type_ = op.vector.type
    assert isinstance(type_, VectorType)
    side = _Transfer(body, op, type_, op.mask)
    template, strides, value = _template(type_), braces(side.strides), body.text(op.vector)
    if side.is_inside:
        check_alignment(body, op, side.pointer, strides)
        call = memory.vector_call(body, op, op.source, f"write<{template}>", [side.pointer, strides, value])
    else:
        arguments = [side.pointer, strides, braces(side.limits), value, *side.mask]
        call = memory.vector_call(body, op, op.source, f"write_within<{template}>", arguments)
    body.emit_line(f"{call};")


@emitter("vector.maskedload")
def _masked_load(body: Body, op: Operation) -> None:
    assert isinstance(op, vector.MaskedLoadOp)
    type_ = op.result.type
    assert isinstance(type_, VectorType)
    pointer = _masked_window(body, op, op.base, op.indices, op.mask)
    n, mask = types.lanes(type_), body.text(op.mask)
    scalar = types.scalar(type_.element_type)
    arguments = [pointer, "{1}", f"{{{n}}}", f"{scalar}{{}}", f"&{mask}"]
    loaded = memory.vector_call(body, op, op.base, f"read_within<{scalar}, {n}>", arguments)
    body.define(op.result, f"vnpu::select({mask}, {loaded}, {body.text(op.pass_thru)})")


@emitter("vector.maskedstore")
def _masked_store(body: Body, op: Operation) -> None:
    assert isinstance(op, vector.MaskedStoreOp)
    type_ = op.value_to_store.type
    assert isinstance(type_, VectorType)
    pointer = _masked_window(body, op, op.base, op.indices, op.mask)
    n, value = types.lanes(type_), body.text(op.value_to_store)
    scalar = types.scalar(type_.element_type)
    arguments = [pointer, "{1}", f"{{{n}}}", value, f"&{body.text(op.mask)}"]
    body.emit_line(memory.vector_call(body, op, op.base, f"write_within<{scalar}, {n}>", arguments) + ";")


def _masked_window(
    body: Body, op: Operation, value: SSAValue, operands: Sequence[SSAValue], mask: SSAValue
) -> str:
    """C++ text of where a vector begins whose lanes must lie inside where the mask is on."""
    *outer, last = enumerate(memory.indices_of(body, operands))
    for dim, index in outer:
        memory.check_bounds(body, op, value, dim, index)
    dim, index = last
    size = body.memref(value).sizes[dim]
    if body.checked:
        where = f"{memory.place_name(body, op, value)}, {dim}, {index.text}"
        body.emit_line(f"vnpu::lanes_within({where}, {body.text(mask)}, {size});")
    return element_pointer(body.memref(value), body.texts(operands))


# ---- lanes anywhere in memory ----


def _lanes_of(body: Body, hint: str, value: SSAValue) -> str:
    """Emit a vector as an array of its elements; gives the array's name."""
    name = body.fresh(hint)
    scalar, count = types.scalar(types.element(value.type)), prod(shape_of(value))
    body.emit_line(f"vnpu::Lanes<{scalar}, {count}> {name}({body.text(value)});")
    return name


@contextmanager
def _each_lane(body: Body, mask: SSAValue) -> Iterator[None]:
    """A loop over the lanes i that are on."""
    on = _lanes_of(body, "on", mask)
    with body.block(f"for (int i = 0; i < {prod(shape_of(mask))}; ++i) if ({on}.at[i])"):
        yield


def _indices(body: Body, offsets: Sequence[SSAValue], lane: str) -> list[memory.AccessIndex]:
    """Where lane i lies: the last index moves with the lane."""
    *outer, last = memory.indices_of(body, offsets)
    return [*outer, memory.AccessIndex(add(last.text, lane), None)]


@emitter("vector.gather")
def _gather(body: Body, op: Operation) -> None:
    base, *offsets, where, mask, other = op.operands
    lanes, places = _lanes_of(body, "gathered", other), _lanes_of(body, "where", where)
    with _each_lane(body, mask):
        indices = _indices(body, offsets, f"vnpu::i64({places}.at[i])")
        body.emit_line(f"{lanes}.at[i] = {memory.read_at(body, op, base, indices)};")
    body.define(op.results[0], f"{lanes}.vec()")


@emitter("vector.scatter")
def _scatter(body: Body, op: Operation) -> None:
    base, *offsets, where, mask, value = op.operands
    lanes, places = _lanes_of(body, "scattered", value), _lanes_of(body, "where", where)
    with _each_lane(body, mask):
        indices = _indices(body, offsets, f"vnpu::i64({places}.at[i])")
        body.emit_line(memory.write_at(body, op, base, indices, f"{lanes}.at[i]"))


@emitter("vector.expandload")
def _expand_load(body: Body, op: Operation) -> None:
    base, *offsets, mask, other = op.operands
    lanes, position = _lanes_of(body, "lanes", other), body.fresh("position")
    body.emit_line(f"vnpu::i64 {position} = 0;")
    with _each_lane(body, mask):
        body.emit_line(
            f"{lanes}.at[i] = {memory.read_at(body, op, base, _indices(body, offsets, position))};"
        )
        body.emit_line(f"++{position};")
    body.define(op.results[0], f"{lanes}.vec()")


@emitter("vector.compressstore")
def _compress_store(body: Body, op: Operation) -> None:
    base, *offsets, mask, value = op.operands
    lanes, position = _lanes_of(body, "lanes", value), body.fresh("position")
    body.emit_line(f"vnpu::i64 {position} = 0;")
    with _each_lane(body, mask):
        body.emit_line(memory.write_at(body, op, base, _indices(body, offsets, position), f"{lanes}.at[i]"))
        body.emit_line(f"++{position};")


# ---- vector.mask: transfers take the mask, reductions leave the lanes that are off out ----


_SEGMENTS = "operandSegmentSizes"


@emitter("vector.mask")
def _mask(body: Body, op: Operation) -> None:
    assert isinstance(op, MaskOp)
    inner, end = op.masked, op.body.block.last_op
    assert end is not None
    if inner is None:
        sources = list(end.operands)
    else:
        emit = _EMITTERS.get(inner.name)
        if emit is None:
            raise unsupported(
                op, f"{inner.name} with a mask is not supported: mask its operands or its result"
            )
        sources = emit(body, inner, op.mask)
    for result, source in zip(op.results, sources, strict=True):
        if op.passthru is None:
            body.values[result] = body.values[source]
        else:
            texts = [body.text(value) for value in (op.mask, source, op.passthru)]
            body.define(result, f"vnpu::select({', '.join(texts)})")


def _transfer(body: Body, op: Operation, mask: SSAValue) -> list[SSAValue]:
    """A copy of the transfer with the mask as its last operand."""
    segments = op.properties[_SEGMENTS]
    assert isinstance(segments, DenseArrayBase)
    if segments.get_values()[-1]:
        raise unsupported(op, "this has a mask already: write the one or the other")
    sizes = DenseArrayBase.from_list(i32, [*segments.get_values()[:-1], 1])
    masked = type(op).create(
        operands=[*op.operands, mask],
        result_types=list(op.result_types),
        properties={**op.properties, _SEGMENTS: sizes},
    )
    masked.location = op.location
    for new, old in zip(masked.results, op.results, strict=True):
        new.name_hint = old.name_hint
    body.operation(masked)
    results = list(masked.results)
    masked.drop_all_references()
    return [*results]


def _reduction(body: Body, op: Operation, mask: SSAValue) -> list[SSAValue]:
    """The reduction with the neutral element in the lanes that the mask turns off."""
    source = op.operands[0]
    assert isinstance(source.type, VectorType)
    element, count = source.type.element_type, types.lanes(source.type)
    neutral = f"vnpu::splat<{types.scalar(element)}, {count}>({neutral_element(op, _kind(op), element)})"
    name, kept = body.fresh("masked"), body.values[source]
    body.emit_line(f"const auto {name} = vnpu::select({body.text(mask)}, {body.text(source)}, {neutral});")
    body.values[source] = Scalar(name)
    body.operation(op)
    body.values[source] = kept
    return list(op.results)


_ATOMIC = {"minsi": "mins", "maxsi": "maxs", "minui": "minu", "maxui": "maxu", "xori": "xori"}


def _kind(op: Operation) -> str:
    """The kind of a reduction, as atomic updates name it."""
    kind = reduction_kind(op)
    if kind in ("add", "mul"):
        return kind + ("f" if types.is_float(types.element(op.operands[0].type)) else "i")
    return _ATOMIC.get(kind, kind)


_EMITTERS: dict[str, Callable[[Body, Operation, SSAValue], list[SSAValue]]] = {
    vector.TransferReadOp.name: _transfer,
    vector.TransferWriteOp.name: _transfer,
    vector.ReductionOp.name: _reduction,
    "vector.multi_reduction": _reduction,
}
