"""Emitters of vector: transfers, lane movement, reductions, contraction.

A vector is held flat in row-major order, so a shape cast is free and every movement of lanes is a
function from the flat index of a result lane to that of a source lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import vector
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    IntegerAttr,
    VectorType,
)
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr

from virtual_npu.codegen import memory, types
from virtual_npu.codegen.body import Body, MemRef, emits
from virtual_npu.codegen.memory import at
from virtual_npu.codegen.refusals import attribute, unsupported
from virtual_npu.codegen.text import grouped, plus


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The extents of a vector; () for a scalar."""
    return value.type.get_shape() if isinstance(value.type, VectorType) else ()


def integers(op: Operation, name: str) -> list[int]:
    """An attribute that lists integers."""
    found = attribute(op, name)
    if isinstance(found, DenseArrayBase):
        return [int(number) for number in found.get_values()]
    if isinstance(found, ArrayAttr):
        return [number.value.data for number in found if isinstance(number, IntegerAttr)]
    return []


def _braces(texts: Sequence[str]) -> str:
    return "{" + ", ".join(texts) + "}"


# ---- memory ----


def _template(type_: VectorType) -> str:
    """`T, S0, S1, ...` for the memory helpers; a 0-d vector counts as one lane."""
    return ", ".join([types.scalar(type_.element_type), *map(str, type_.get_shape() or (1,))])


def _minor(view: MemRef, rank: int) -> list[str]:
    """The strides of the last `rank` dimensions; leading vector dimensions beyond them step by 0."""
    strides = list(view.strides[len(view.strides) - rank :]) if rank else ["1"]
    return ["0"] * (rank - len(strides)) + strides


@emits("vector.load", "affine.vector_load")
def _load(body: Body, op: Operation) -> None:
    type_ = op.results[0].type
    assert isinstance(type_, VectorType)
    pointer, strides = _window(body, op, op.operands[0], op.operands[1:], type_)
    call = memory.vector_call(body, op, op.operands[0], f"read<{_template(type_)}>", [pointer, strides])
    body.define(op.results[0], call)


@emits("vector.store", "affine.vector_store")
def _store(body: Body, op: Operation) -> None:
    value, target, *indices = op.operands
    assert isinstance(value.type, VectorType)
    pointer, strides = _window(body, op, target, indices, value.type)
    arguments = [pointer, strides, body.text(value)]
    body.put(memory.vector_call(body, op, target, f"write<{_template(value.type)}>", arguments) + ";")


def _window(
    body: Body, op: Operation, value: SSAValue, operands: Sequence[SSAValue], type_: VectorType
) -> tuple[str, str]:
    """C++ text of where a vector begins in the last dimensions of a memref, and of its strides."""
    view, map_, shape = body.memref(value), attribute(op, "map"), type_.get_shape()
    indices = memory.indices_of(body, operands, map_.data if isinstance(map_, AffineMapAttr) else None)
    lanes = [*[1] * (len(indices) - len(shape)), *shape][-len(indices) :] if indices else []
    for dim, (index, count) in enumerate(zip(indices, lanes, strict=True)):
        memory.stay_within(body, op, value, dim, index, str(count))
    return at(view, [index.text for index in indices]), _braces(_minor(view, len(shape)))


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
        self.pointer = at(self.view, self.indices)
        self._stay_within(body, op, type_, mask)
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

    def _stay_within(
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
                memory.stay_within(body, op, op.source, dim, index)
            elif bounds[of_dim[dim]] and mask is None:
                memory.stay_within(body, op, op.source, dim, index, str(type_.get_shape()[of_dim[dim]]))
            else:
                memory.stay_natural(body, op, op.source, dim, index)

    def _left(self, body: Body, op: vector.TransferReadOp | vector.TransferWriteOp, dim: int) -> str:
        """Elements from the index to the end of a dimension."""
        size, known = self.view.sizes[dim], body.number(op.indices[dim])
        if known is not None and size.isdigit():
            return str(int(size) - known)
        return plus(size, f"-{grouped(self.indices[dim])}")


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
    text = pick(body.text(mask), prod(shape), index)
    if text == body.text(mask):
        return text
    name = body.fresh("mask")
    body.put(f"const auto {name} = {text};")
    return name


@emits("vector.transfer_read")
def _transfer_read(body: Body, op: Operation) -> None:
    assert isinstance(op, vector.TransferReadOp)
    type_ = op.result.type
    assert isinstance(type_, VectorType)
    side = _Transfer(body, op, type_, op.mask)
    template, strides = _template(type_), _braces(side.strides)
    if side.is_inside:
        expression = memory.vector_call(body, op, op.source, f"read<{template}>", [side.pointer, strides])
    else:
        arguments = [side.pointer, strides, _braces(side.limits), body.text(op.padding), *side.mask]
        expression = memory.vector_call(body, op, op.source, f"read_within<{template}>", arguments)
    body.define(op.result, expression)


@emits("vector.transfer_write")
def _transfer_write(body: Body, op: Operation) -> None:
    assert isinstance(op, vector.TransferWriteOp)
    type_ = op.vector.type
    assert isinstance(type_, VectorType)
    side = _Transfer(body, op, type_, op.mask)
    template, strides, value = _template(type_), _braces(side.strides), body.text(op.vector)
    if side.is_inside:
        call = memory.vector_call(body, op, op.source, f"write<{template}>", [side.pointer, strides, value])
    else:
        arguments = [side.pointer, strides, _braces(side.limits), value, *side.mask]
        call = memory.vector_call(body, op, op.source, f"write_within<{template}>", arguments)
    body.put(f"{call};")


@emits("vector.maskedload")
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


@emits("vector.maskedstore")
def _masked_store(body: Body, op: Operation) -> None:
    assert isinstance(op, vector.MaskedStoreOp)
    type_ = op.value_to_store.type
    assert isinstance(type_, VectorType)
    pointer = _masked_window(body, op, op.base, op.indices, op.mask)
    n, value = types.lanes(type_), body.text(op.value_to_store)
    scalar = types.scalar(type_.element_type)
    arguments = [pointer, "{1}", f"{{{n}}}", value, f"&{body.text(op.mask)}"]
    body.put(memory.vector_call(body, op, op.base, f"write_within<{scalar}, {n}>", arguments) + ";")


def _masked_window(
    body: Body, op: Operation, value: SSAValue, operands: Sequence[SSAValue], mask: SSAValue
) -> str:
    """C++ text of where a vector begins whose lanes must lie inside where the mask is on."""
    *outer, last = enumerate(memory.indices_of(body, operands))
    for dim, index in outer:
        memory.stay_within(body, op, value, dim, index)
    dim, index = last
    size = body.memref(value).sizes[dim]
    if body.checked:
        where = f"{memory.place(body, op, value)}, {dim}, {index.text}"
        body.put(f"vnpu::lanes_within({where}, {body.text(mask)}, {size});")
    return at(body.memref(value), body.texts(operands))


@emits("vector.create_mask")
def _create_mask(body: Body, op: Operation) -> None:
    shape = shape_of(op.results[0])
    limits = body.texts(op.operands)
    places = coordinates("i", shape)
    tests = [f"{c} < {limit}" for c, limit in zip(places, limits, strict=True)]
    all_on = f"vnpu::splat<bool, {prod(shape)}>(true)"
    body.put(f"vnpu::Lanes<bool, {prod(shape)}> {(name := body.fresh('mask'))}({all_on});")
    body.put(f"for (int i = 0; i < {prod(shape)}; ++i) {name}.at[i] = {' && '.join(tests)};")
    body.define(op.results[0], f"{name}.vec()")


# ---- lanes ----


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
    """C++ text of the flat index of coordinates."""
    text, inner, terms = "", 1, []
    for coordinate, extent in zip(reversed(places), reversed(shape), strict=True):
        if extent != 1 and coordinate != "0":
            terms.append(coordinate if inner == 1 else f"{coordinate} * {inner}")
        inner *= extent
    text = " + ".join(reversed(terms))
    return text or "0"


def pick(source: str, count: int, index: str) -> str:
    """C++ text of a vector of `count` lanes, lane i being lane `index` (a text in i) of `source`."""
    return source if index == "i" else f"vnpu::pick<{count}>({source}, [](int i) {{ return {index}; }})"


def permuted(source: str, shape: Sequence[int], order: Sequence[int]) -> str:
    """C++ text of a transposed vector: result dimension d is source dimension order[d]."""
    result = [shape[dim] for dim in order]
    if [dim for dim in order if shape[dim] != 1] == [dim for dim in range(len(shape)) if shape[dim] != 1]:
        return source
    places = coordinates("i", result)
    back = [places[list(order).index(dim)] for dim in range(len(shape))]
    return pick(source, prod(shape), flat_index(back, shape))


@emits("vector.transpose")
def _transpose(body: Body, op: Operation) -> None:
    order = integers(op, "permutation") or integers(op, "transp")
    source = op.operands[0]
    text = permuted(body.text(source), shape_of(source), order)
    body.alias(op.results[0], text) if text == body.text(source) else body.define(op.results[0], text)


@emits("vector.shape_cast")
def _shape_cast(body: Body, op: Operation) -> None:
    body.alias(op.results[0], body.text(op.operands[0]))


@emits("vector.broadcast")
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
    body.define(op.results[0], pick(body.text(source), count, index))


@emits("vector.extract")
def _extract(body: Body, op: Operation) -> None:
    assert isinstance(op, vector.ExtractOp)
    shape = shape_of(op.vector)
    position = _position(body, op.static_position.get_values(), op.dynamic_position)
    start = flat_index([*position, *["0"] * (len(shape) - len(position))], shape)
    source = body.text(op.vector)
    if isinstance(op.result.type, VectorType):
        count = types.lanes(op.result.type)
        expression = f"vnpu::pick<{count}>({source}, [=](int lane) {{ return int({start}) + lane; }})"
        body.define(op.result, source if count == prod(shape) else expression)
    else:
        body.define(op.result, f"vnpu::lane({source}, {start})")


def _position(body: Body, static: Sequence[int], dynamic: Sequence[SSAValue]) -> list[str]:
    rest = iter(body.texts(dynamic))
    return [next(rest) if number == -(1 << 63) else str(number) for number in static]


@emits("vector.insert")
def _insert(body: Body, op: Operation) -> None:
    assert isinstance(op, vector.InsertOp)
    shape = shape_of(op.dest)
    position = _position(body, op.static_position.get_values(), op.dynamic_position)
    start = flat_index([*position, *["0"] * (len(shape) - len(position))], shape)
    source, dest = body.text(op.source), body.text(op.dest)
    if isinstance(op.source.type, VectorType):
        expression = f"vnpu::place({source}, {dest}, [=](int lane) {{ return int({start}) + lane; }})"
    else:
        expression = f"vnpu::with_lane({dest}, {start}, {source})"
    body.define(op.result, expression)


@emits("vector.extract_strided_slice")
def _extract_slice(body: Body, op: Operation) -> None:
    source, shape = op.operands[0], shape_of(op.operands[0])
    moved = _slice_index(op, shape_of(op.results[0]), shape)
    body.define(op.results[0], pick(body.text(source), prod(shape_of(op.results[0])), moved))


@emits("vector.insert_strided_slice")
def _insert_slice(body: Body, op: Operation) -> None:
    source, dest = op.operands
    moved = _slice_index(op, shape_of(source), shape_of(dest))
    place = f"vnpu::place({body.text(source)}, {body.text(dest)}, [](int i) {{ return {moved}; }})"
    body.define(op.results[0], place)


def _slice_index(op: Operation, small: Sequence[int], large: Sequence[int]) -> str:
    """The flat index in the large vector of lane i of the slice."""
    offsets, strides = integers(op, "offsets"), integers(op, "strides")
    if any(stride != 1 for stride in strides):
        raise unsupported(op, "strides other than 1 are not supported")
    offsets = offsets + [0] * (len(large) - len(offsets))
    places = ["0"] * (len(large) - len(small)) + coordinates("i", small)
    moved = [f"({c} + {offset})" if offset else c for c, offset in zip(places, offsets, strict=True)]
    return flat_index(moved, large)


@emits("vector.shuffle")
def _shuffle(body: Body, op: Operation) -> None:
    assert isinstance(op, vector.ShuffleOp)
    left, right = body.text(op.v1), body.text(op.v2)
    inner = prod(shape_of(op.result)[1:])
    count = prod(shape_of(op.result))
    mask = ", ".join(str(number) for number in op.mask.get_values())
    index = f"static const int table[] = {{{mask}}}; return table[i / {inner}] * {inner} + i % {inner};"
    body.define(op.result, f"vnpu::pick<{count}>(vnpu::join({left}, {right}), [](int i) {{ {index} }})")


@emits("vector.from_elements")
def _from_elements(body: Body, op: Operation) -> None:
    type_ = op.results[0].type
    assert isinstance(type_, VectorType)
    scalar, name = types.scalar(type_.element_type), body.fresh("elements")
    body.put(f"const {scalar} {name}[{types.lanes(type_)}] = {_braces(body.texts(op.operands))};")
    body.define(op.results[0], f"vnpu::load<{scalar}, {types.lanes(type_)}>({name})")


# ---- reductions ----

_COMBINE = {
    "add": "add", "mul": "mul", "minui": "minui", "minsi": "minsi", "maxui": "maxui", "maxsi": "maxsi",
    "minnumf": "minnumf", "maxnumf": "maxnumf", "minimumf": "minimumf", "maximumf": "maximumf",
    "and": "andi", "or": "ori", "xor": "xori",
}  # fmt: skip


def reduction_kind(op: Operation) -> str:
    """The C++ function that combines two values of a reduction."""
    kind = attribute(op, "kind")
    if kind is None:
        return "add"
    text = str(getattr(kind, "data", kind))
    names = [name for name in _COMBINE if name == text or f"<{name}>" in text]
    if not names:
        names = [
            str(flag.value) for flag in getattr(kind, "data", ()) if getattr(flag, "value", None) in _COMBINE
        ]
    if not names:
        raise unsupported(op, f"combining kind {text} is not supported")
    return _COMBINE[names[0]]


def combine(op: Operation) -> str:
    """A C++ lambda that combines two scalars or two vectors."""
    return f"[](auto a, auto b) {{ return vnpu::{reduction_kind(op)}(a, b); }}"


def _is_reassociable(op: Operation) -> bool:
    flags = str(attribute(op, "fastmath"))
    return "reassoc" in flags or "fast>" in flags


@emits("vector.reduction")
def _reduction(body: Body, op: Operation) -> None:
    """In order of the lanes, starting from the accumulator if there is one."""
    source, *accumulator = body.texts(op.operands)
    type_ = types.element(op.operands[0].type)
    is_exact = not types.is_float(type_) or reduction_kind(op) not in ("add", "mul")
    combined = combine(op)
    if is_exact or _is_reassociable(op):
        text = f"vnpu::reduce_tree({source}, {combined})"
        if accumulator:
            text = f"vnpu::{reduction_kind(op)}<{types.scalar(type_)}>({accumulator[0]}, {text})"
    elif accumulator:
        start = f"vnpu::splat<{types.scalar(type_)}, 1>({accumulator[0]})"
        text = f"vnpu::lane(vnpu::fold({source}, {start}, [](int) {{ return 0; }}, {combined}), 0)"
    else:
        text = f"vnpu::reduce({source}, {combined})"
    body.define(op.results[0], text)


@emits("vector.multi_reduction")
def _multi_reduction(body: Body, op: Operation) -> None:
    source, accumulator = op.operands
    shape, dims = shape_of(source), set(integers(op, "reduction_dims"))
    kept = [dim for dim in range(len(shape)) if dim not in dims]
    places = coordinates("i", shape)
    target = flat_index([places[dim] for dim in kept], [shape[dim] for dim in kept])
    start = body.text(accumulator)
    scalar = types.scalar(types.element(source.type))
    is_scalar = not isinstance(accumulator.type, VectorType)
    if is_scalar:
        start = f"vnpu::splat<{scalar}, 1>({start})"
    index = f"[]([[maybe_unused]] int i) {{ return {target}; }}"
    text = f"vnpu::fold({body.text(source)}, {start}, {index}, {combine(op)})"
    body.define(op.results[0], f"vnpu::lane({text}, 0)" if is_scalar else text)


# ---- contraction ----


@emits("vector.contract")
def _contract(body: Body, op: Operation) -> None:
    lhs, rhs, acc = op.operands[:3]
    maps = contract_maps(op)
    extents = contract_extents(op, maps, [shape_of(value) for value in (lhs, rhs, acc)])
    in_lhs, in_rhs, in_acc = (set(map_) for map_ in maps)
    dims = [dim for dim in range(len(extents)) if extents[dim] != 1]
    batch = [dim for dim in dims if dim in in_lhs & in_rhs & in_acc]
    rows = [dim for dim in dims if dim in (in_lhs & in_acc) - in_rhs]
    columns = [dim for dim in dims if dim in (in_rhs & in_acc) - in_lhs]
    reduced = [dim for dim in dims if dim in (in_lhs & in_rhs) - in_acc]
    if {*batch, *rows, *columns, *reduced} != set(dims):
        raise unsupported(op, "a dimension that only one operand has is not supported")
    a = _arranged(body, lhs, maps[0], extents, [*batch, *rows, *reduced])
    b = _arranged(body, rhs, maps[1], extents, [*batch, *reduced, *columns])
    c = _arranged(body, acc, maps[2], extents, [*batch, *rows, *columns])
    counts = [prod(extents[dim] for dim in group) for group in (batch, rows, columns, reduced)]
    others = "" if reduction_kind(op) == "add" else f", {combine(op)}"
    body.unit.needs.add("contract")
    function = "contract_by" if others else "contract"
    result = f"vnpu::{function}<{', '.join(map(str, counts))}>({a}, {b}, {c}{others})"
    _define_contracted(body, op, result, maps[2], extents, [*batch, *rows, *columns])


def contract_maps(op: Operation) -> list[list[int]]:
    """For each of lhs, rhs, acc: the iteration dimension of every vector dimension."""
    maps = attribute(op, "indexing_maps")
    assert isinstance(maps, ArrayAttr)
    found = []
    for map_ in maps:
        assert isinstance(map_, AffineMapAttr)
        found.append([expr.position for expr in map_.data.results if isinstance(expr, AffineDimExpr)])
        if len(found[-1]) != len(map_.data.results):
            raise unsupported(op, f"indexing map {map_.data} is not a projected permutation")
    return found


def contract_extents(
    op: Operation, maps: Sequence[Sequence[int]], shapes: Sequence[Sequence[int]]
) -> list[int]:
    """The extent of every iteration dimension."""
    extents: dict[int, int] = {}
    for map_, shape in zip(maps, shapes, strict=True):
        for dim, extent in zip(map_, shape, strict=True):
            if extents.setdefault(dim, extent) != extent:
                raise unsupported(op, f"dimension d{dim} has extents {extents[dim]} and {extent}")
    return [extents[dim] for dim in range(len(extents))]


def _arranged(
    body: Body, value: SSAValue, map_: Sequence[int], extents: Sequence[int], order: Sequence[int]
) -> str:
    """C++ text of a vector with its iteration dimensions in the given order (unit ones left out)."""
    text = body.text(value)
    if not isinstance(value.type, VectorType):
        return f"vnpu::splat<{types.scalar(value.type)}, 1>({text})"
    wide = [dim for dim in map_ if extents[dim] != 1]
    return permuted(text, [extents[dim] for dim in wide], [wide.index(dim) for dim in order])


def _define_contracted(
    body: Body, op: Operation, text: str, map_: Sequence[int], extents: Sequence[int], order: Sequence[int]
) -> None:
    """Name the result, back in the accumulator's own order of dimensions."""
    if not isinstance(op.results[0].type, VectorType):
        body.define(op.results[0], f"vnpu::lane({text}, 0)")
        return
    wide = [dim for dim in map_ if extents[dim] != 1]
    back = permuted(text, [extents[dim] for dim in order], [list(order).index(dim) for dim in wide])
    body.define(op.results[0], back)
