"""Emitters of vector operations that build vectors, and permute or select lanes.

A vector is held flat in row-major order, so a shape cast is free and every movement of lanes is a
function from the flat index of a result lane to that of a source lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import vector
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    IntegerAttr,
    VectorType,
)
from xdsl.ir import Operation, OpResult, SSAValue

from aerie.virtual_npu.codegen import size_checks, types
from aerie.virtual_npu.codegen.body import Body, emitter
from aerie.virtual_npu.codegen.op_errors import attribute, unsupported


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The extents of a vector; () for a scalar."""
    return value.type.get_shape() if isinstance(value.type, VectorType) else ()


def before_shape_cast(value: SSAValue) -> SSAValue:
    """A vector before it was given another shape: its elements stay in their order."""
    while isinstance(value, OpResult) and value.op.name == "vector.shape_cast":
        value = value.op.operands[0]
    return value


def attribute_integers(op: Operation, name: str) -> list[int]:
    """The integers of an attribute, an array of integers or a dense array; [] for any other."""
    attr = attribute(op, name)
    if isinstance(attr, DenseArrayBase):
        return [int(number) for number in attr.get_values()]
    if isinstance(attr, ArrayAttr):
        return [number.value.data for number in attr if isinstance(number, IntegerAttr)]
    return []


def braces(texts: Sequence[str]) -> str:
    """C++ text of a braced list."""
    return "{" + ", ".join(texts) + "}"


# ---- making vectors, and moving their lanes ----


def coordinates(flat: str, shape: Sequence[int]) -> list[str]:
    """C++ text of every coordinate of a flat row-major index."""
    texts, inner = [], 1
    for dim in range(len(shape) - 1, -1, -1):
        divided = flat if inner == 1 else f"{flat} / {inner}"
        texts.append(
            f"({divided})"
            if dim == 0 and inner != 1
            else divided
            if dim == 0
            else f"({divided} % {shape[dim]})"
        )
        if shape[dim] == 1:
            texts[-1] = "0"
        inner *= shape[dim]
    return list(reversed(texts))


def flat_index(places: Sequence[str], shape: Sequence[int]) -> str:
    """C++ text of the flat row-major index of coordinates."""
    text, inner, terms = "", 1, []
    for coordinate, extent in zip(reversed(places), reversed(shape), strict=True):
        if extent != 1 and coordinate != "0":
            terms.append(coordinate if inner == 1 else f"{coordinate} * {inner}")
        inner *= extent
    text = " + ".join(reversed(terms))
    return text or "0"


def emit_shuffle(source: str, count: int, index: str) -> str:
    """C++ text of a vector of `count` lanes, lane i being lane `index` (a text in i) of `source`."""
    return source if index == "i" else f"vnpu::pick<{count}>({source}, [](int i) {{ return {index}; }})"


def permuted(source: str, shape: Sequence[int], order: Sequence[int]) -> str:
    """C++ text of a transposed vector: result dimension d is source dimension order[d]."""
    result = [shape[dim] for dim in order]
    if [dim for dim in order if shape[dim] != 1] == [dim for dim in range(len(shape)) if shape[dim] != 1]:
        return source
    places = coordinates("i", result)
    back = [places[list(order).index(dim)] for dim in range(len(shape))]
    return emit_shuffle(source, prod(shape), flat_index(back, shape))


@emitter("vector.transpose")
def _transpose(body: Body, op: Operation) -> None:
    order = attribute_integers(op, "permutation") or attribute_integers(op, "transp")
    source = op.operands[0]
    text = permuted(body.text(source), shape_of(source), order)
    body.alias(op.results[0], text) if text == body.text(source) else body.define(op.results[0], text)


@emitter("vector.shape_cast")
def _shape_cast(body: Body, op: Operation) -> None:
    body.alias(op.results[0], body.text(op.operands[0]))


@emitter("vector.broadcast")
def _broadcast(body: Body, op: Operation) -> None:
    source, type_ = op.operands[0], op.results[0].type
    assert isinstance(type_, VectorType)
    count, scalar = types.lanes(type_), types.scalar(type_.element_type)
    if not isinstance(source.type, VectorType):
        body.define(op.results[0], f"vnpu::splat<{scalar}, {count}>({body.text(source)})")
        return
    inner = shape_of(source)
    places = coordinates("i", type_.get_shape())[len(type_.get_shape()) - len(inner) :]
    kept = ["0" if extent == 1 else c for c, extent in zip(places, inner, strict=True)]
    index = "i" if prod(inner) == count else flat_index(kept, inner)
    body.define(op.results[0], emit_shuffle(body.text(source), count, index))


@emitter("vector.extract")
def _extract(body: Body, op: Operation) -> None:
    assert isinstance(op, vector.ExtractOp)
    shape = shape_of(op.vector)
    position = _position(body, op, op.static_position.get_values(), op.dynamic_position, shape)
    start = flat_index([*position, *["0"] * (len(shape) - len(position))], shape)
    source = body.text(op.vector)
    if isinstance(op.result.type, VectorType):
        count = types.lanes(op.result.type)
        expression = f"vnpu::pick<{count}>({source}, [=](int lane) {{ return int({start}) + lane; }})"
        body.define(op.result, source if count == prod(shape) else expression)
    else:
        body.define(op.result, f"vnpu::lane({source}, {start})")


def _position(
    body: Body, op: Operation, static: Sequence[int], dynamic: Sequence[SSAValue], shape: Sequence[int]
) -> list[str]:
    """C++ text of the coordinates of a lane or a row of lanes; those known at run time only are checked."""
    rest = iter(body.texts(dynamic))
    places = [next(rest) if number == -(1 << 63) else str(number) for number in static]
    return size_checks.checked_positions(body, op, places, shape)


@emitter("vector.insert")
def _insert(body: Body, op: Operation) -> None:
    assert isinstance(op, vector.InsertOp)
    shape = shape_of(op.dest)
    position = _position(body, op, op.static_position.get_values(), op.dynamic_position, shape)
    start = flat_index([*position, *["0"] * (len(shape) - len(position))], shape)
    source, dest = body.text(op.source), body.text(op.dest)
    if isinstance(op.source.type, VectorType):
        expression = f"vnpu::place({source}, {dest}, [=](int lane) {{ return int({start}) + lane; }})"
    else:
        expression = f"vnpu::with_lane({dest}, {start}, {source})"
    body.define(op.result, expression)


@emitter("vector.extract_strided_slice")
def _extract_slice(body: Body, op: Operation) -> None:
    source, shape = op.operands[0], shape_of(op.operands[0])
    moved = _slice_index(op, shape_of(op.results[0]), shape)
    body.define(op.results[0], emit_shuffle(body.text(source), prod(shape_of(op.results[0])), moved))


@emitter("vector.insert_strided_slice")
def _insert_slice(body: Body, op: Operation) -> None:
    source, dest = op.operands
    moved = _slice_index(op, shape_of(source), shape_of(dest))
    place = f"vnpu::place({body.text(source)}, {body.text(dest)}, [](int i) {{ return {moved}; }})"
    body.define(op.results[0], place)


def _slice_index(op: Operation, small: Sequence[int], large: Sequence[int]) -> str:
    """The flat index in the large vector of lane i of the slice."""
    offsets, strides = attribute_integers(op, "offsets"), attribute_integers(op, "strides")
    if any(stride != 1 for stride in strides):
        raise unsupported(op, "strides other than 1 are not supported")
    offsets = offsets + [0] * (len(large) - len(offsets))
    places = ["0"] * (len(large) - len(small)) + coordinates("i", small)
    moved = [f"({c} + {offset})" if offset else c for c, offset in zip(places, offsets, strict=True)]
    return flat_index(moved, large)


@emitter("vector.shuffle")
def _shuffle(body: Body, op: Operation) -> None:
    assert isinstance(op, vector.ShuffleOp)
    left, right = body.text(op.v1), body.text(op.v2)
    inner = prod(shape_of(op.result)[1:])
    count = prod(shape_of(op.result))
    mask = ", ".join(str(number) for number in op.mask.get_values())
    index = f"static const int table[] = {{{mask}}}; return table[i / {inner}] * {inner} + i % {inner};"
    body.define(op.result, f"vnpu::pick<{count}>(vnpu::join({left}, {right}), [](int i) {{ {index} }})")


@emitter("vector.from_elements")
def _from_elements(body: Body, op: Operation) -> None:
    type_ = op.results[0].type
    assert isinstance(type_, VectorType)
    scalar, name = types.scalar(type_.element_type), body.fresh("elements")
    body.emit_line(f"const {scalar} {name}[{types.lanes(type_)}] = {braces(body.texts(op.operands))};")
    body.define(op.results[0], f"vnpu::load<{scalar}, {types.lanes(type_)}>({name})")


@emitter("vector.create_mask")
def _create_mask(body: Body, op: Operation) -> None:
    shape = shape_of(op.results[0])
    limits = body.texts(op.operands)
    places = coordinates("i", shape)
    tests = [f"{c} < {limit}" for c, limit in zip(places, limits, strict=True)]
    all_on = f"vnpu::splat<bool, {prod(shape)}>(true)"
    body.emit_line(f"vnpu::Lanes<bool, {prod(shape)}> {(name := body.fresh('mask'))}({all_on});")
    body.emit_line(f"for (int i = 0; i < {prod(shape)}; ++i) {name}.at[i] = {' && '.join(tests)};")
    body.define(op.results[0], f"{name}.vec()")


def _filled(body: Body, op: Operation, scalar: str, lane: str) -> None:
    """Define a vector result whose lane i is an expression in i."""
    count = prod(shape_of(op.results[0]))
    name = body.fresh("lanes")
    body.emit_line(f"vnpu::Lanes<{scalar}, {count}> {name};")
    body.emit_line(f"for (int i = 0; i < {count}; ++i) {name}.at[i] = {lane};")
    body.define(op.results[0], f"{name}.vec()")


@emitter("vector.step")
def _step(body: Body, op: Operation) -> None:
    _filled(body, op, "vnpu::i64", "i")


@emitter("vector.constant_mask")
def _constant_mask(body: Body, op: Operation) -> None:
    shape = shape_of(op.results[0]) or (1,)
    places = coordinates("i", shape)
    bounds = attribute_integers(op, "mask_dim_sizes")
    tests = [f"{place} < {bound}" for place, bound in zip(places, bounds, strict=True)]
    _filled(body, op, "bool", " && ".join(tests))


@emitter("vector.splat")
def _splat(body: Body, op: Operation) -> None:
    type_ = op.results[0].type
    assert isinstance(type_, VectorType)
    scalar = types.scalar(type_.element_type)
    body.define(op.results[0], f"vnpu::splat<{scalar}, {types.lanes(type_)}>({body.text(op.operands[0])})")


@emitter("vector.to_elements")
def _to_elements(body: Body, op: Operation) -> None:
    source = body.text(op.operands[0])
    for lane, result in enumerate(op.results):
        body.define(result, f"vnpu::lane({source}, {lane})")


def _lane_position(body: Body, op: Operation, vector: SSAValue, operands: Sequence[SSAValue]) -> str:
    if not operands:
        return "0"
    (place,) = size_checks.checked_positions(body, op, body.texts(operands), shape_of(vector) or (1,))
    return place


@emitter("vector.extractelement")
def _extract_element(body: Body, op: Operation) -> None:
    source, *position = op.operands
    place = _lane_position(body, op, source, position)
    body.define(op.results[0], f"vnpu::lane({body.text(source)}, {place})")


@emitter("vector.insertelement")
def _insert_element(body: Body, op: Operation) -> None:
    value, dest, *position = op.operands
    place = _lane_position(body, op, dest, position)
    body.define(op.results[0], f"vnpu::with_lane({body.text(dest)}, {place}, {body.text(value)})")


@emitter("vector.interleave")
def _interleave(body: Body, op: Operation) -> None:
    left, right = body.texts(op.operands)
    count = prod(shape_of(op.operands[0]))
    joined = f"vnpu::join({left}, {right})"
    body.define(op.results[0], emit_shuffle(joined, 2 * count, f"i / 2 + i % 2 * {count}"))


@emitter("vector.deinterleave")
def _deinterleave(body: Body, op: Operation) -> None:
    source, count = body.text(op.operands[0]), prod(shape_of(op.results[0]))
    for odd, result in enumerate(op.results):
        body.define(result, emit_shuffle(source, count, f"2 * i + {odd}"))
