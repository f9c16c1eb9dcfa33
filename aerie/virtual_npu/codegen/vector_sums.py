"""Emitters of vector operations that combine lanes: reductions, scans, outer products, contractions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import scf
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    BFloat16Type,
    Float32Type,
    IntegerAttr,
    VectorType,
)
from xdsl.ir import BlockArgument, Operation, SSAValue, Use
from xdsl.ir.affine import AffineDimExpr

from aerie.air_dialect.index_intervals import analyze_loop
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import Body, emitter
from aerie.virtual_npu.codegen.op_errors import attribute, unsupported
from aerie.virtual_npu.codegen.vector_lanes import (
    attribute_integers,
    before_shape_cast,
    coordinates,
    emit_shuffle,
    flat_index,
    permuted,
    shape_of,
)

# ---- reductions ----

_COMBINE = {
    "add": "add", "mul": "mul", "minui": "minui", "minsi": "minsi", "maxui": "maxui", "maxsi": "maxsi",
    "minnumf": "minnumf", "maxnumf": "maxnumf", "minimumf": "minimumf", "maximumf": "maximumf",
    "and": "andi", "or": "ori", "xor": "xori",
}  # fmt: skip


def reduction_kind(op: Operation) -> str:
    """The name of the C++ function that combines two values of a reduction, by its kind."""
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


CORE_SUM_LANES: dict[type, Sequence[int]] = {Float32Type: (16,), BFloat16Type: (16, 32)}
"""The vectors whose sum mlir-aie lowers for a core (VectorToAIEVecConversions): lanes 8 apart are added, then
those 4, 2 and 1 apart. bf16 is added in f32 and rounded once, after the halves of 32 lanes were added."""


def _is_core_sum(op: Operation) -> bool:
    element, lanes = types.element(op.operands[0].type), shape_of(op.operands[0])
    return reduction_kind(op) == "add" and lanes[-1] in CORE_SUM_LANES.get(type(element), ())


def _core_sum(op: Operation, source: str) -> str:
    """The C++ text of a sum as a core computes it."""
    if isinstance(types.element(op.operands[0].type), Float32Type):
        return f"vnpu::reduce_tree({source}, {combine(op)})"
    if shape_of(op.operands[0])[-1] == 32:
        source = f"vnpu::add(vnpu::part<0, 16>({source}), vnpu::part<16, 16>({source}))"
    return f"vnpu::cast<vnpu::bf16>(vnpu::reduce_tree(vnpu::cast<float>({source}), {combine(op)}))"


@emitter("vector.reduction")
def _reduction(body: Body, op: Operation) -> None:
    """Emit a reduction: as a core computes it where that is known, or as any tree where this has the same
    bits; else in the order of the lanes, starting from the accumulator if there is one."""
    source, *accumulator = body.texts(op.operands)
    type_ = types.element(op.operands[0].type)
    has_one_result = not types.is_float(type_) or reduction_kind(op) not in ("add", "mul")
    combined = combine(op)
    if _is_core_sum(op) or has_one_result or _is_reassociable(op):
        text = _core_sum(op, source) if _is_core_sum(op) else f"vnpu::reduce_tree({source}, {combined})"
        if accumulator:
            text = f"vnpu::{reduction_kind(op)}<{types.scalar(type_)}>({accumulator[0]}, {text})"
    elif accumulator:
        start = f"vnpu::splat<{types.scalar(type_)}, 1>({accumulator[0]})"
        text = f"vnpu::lane(vnpu::fold({source}, {start}, [](int) {{ return 0; }}, {combined}), 0)"
    else:
        text = f"vnpu::reduce({source}, {combined})"
    body.define(op.results[0], text)


@emitter("vector.multi_reduction")
def _multi_reduction(body: Body, op: Operation) -> None:
    source, accumulator = op.operands
    shape, dims = shape_of(source), set(attribute_integers(op, "reduction_dims"))
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


@emitter("vector.contract")
def _contract(body: Body, op: Operation) -> None:
    lhs, rhs, acc = op.operands[:3]
    maps, extents = contract_maps(op), contract_extents(op)
    batch, rows, columns, reduced = groups = _groups(op)
    a = _arranged(body, lhs, maps[0], extents, [*batch, *rows, *reduced])
    b = _arranged(body, rhs, maps[1], extents, [*batch, *reduced, *columns])
    c = _arranged(body, acc, maps[2], extents, [*batch, *rows, *columns])
    counts = [prod(extents[dim] for dim in group) for group in groups]
    body.file.runtime_parts.add("contract")
    if body.checked and body.file.options.numerics == "bfp16" and reduction_kind(op) == "add":
        shape = ", ".join(map(str, counts))
        body.emit_line(f"vnpu::look_at_blocks<{shape}>({body.site(op)}, {a}, {b}, {c});")
    result = _in_block_floats(body, op, counts, [a, b, c])
    if result is None and op in body.accumulation_groups:
        result = f"{body.accumulation_groups[op]}.contract({a}, {b}, {c})"
    elif result is None:
        others = "" if reduction_kind(op) == "add" else f", {combine(op)}"
        function = "contract_by" if others else "contract"
        result = f"vnpu::{function}<{', '.join(map(str, counts))}>({a}, {b}, {c}{others})"
    _define_contracted(body, op, result, maps[2], extents, [*batch, *rows, *columns])


def _groups(op: Operation) -> tuple[list[int], list[int], list[int], list[int]]:
    """The iteration dimensions of a contraction: of a batch, of rows, of columns, and those summed over."""
    extents = contract_extents(op)
    in_lhs, in_rhs, in_acc = (set(map_) for map_ in contract_maps(op))
    dims = [dim for dim in range(len(extents)) if extents[dim] != 1]
    batch = [dim for dim in dims if dim in in_lhs & in_rhs & in_acc]
    rows = [dim for dim in dims if dim in (in_lhs & in_acc) - in_rhs]
    columns = [dim for dim in dims if dim in (in_rhs & in_acc) - in_lhs]
    reduced = [dim for dim in dims if dim in (in_lhs & in_rhs) - in_acc]
    if {*batch, *rows, *columns, *reduced} != set(dims):
        raise unsupported(op, "a dimension that only one operand has is not supported")
    return batch, rows, columns, reduced


def _in_block_floats(body: Body, op: Operation, counts: Sequence[int], texts: Sequence[str]) -> str | None:
    """A product that bfp16 numerics make in block floats, of factors that are converted once in a block.

    None where it is no such product (vnpu/contract.h, is_bfp16_product), or a factor has no name of its own.
    """
    factors = op.operands[:2]
    is_sum = is_sum_of_bf16(op)
    is_block = tuple(counts) in ((1, 8, 8, 8), (1, 4, 8, 8))
    is_named = all(t == body.text(v) and t.isidentifier() for t, v in zip(texts, factors, strict=False))
    if body.file.options.numerics != "bfp16" or not (is_sum and is_block and is_named):
        return None
    products = [_products_by(op, factor) for factor in (0, 1)]
    if any(not _is_alike(op, other) for users in products for other in users):
        return None
    left, right = f"{texts[0]}_left", f"{texts[1]}_right"
    kinds = f"Bfp16Left<{counts[1]}> {left}", f"Bfp16Right {right}"
    for declaration, text, users in zip(kinds, texts, products, strict=False):
        if not any(other.is_before_in_block(op) for other in users):
            body.emit_line(f"const vnpu::{declaration}({text});")
    return f"vnpu::contract({left}, {right}, {texts[2]})"


def _products_by(op: Operation, factor: int) -> list[Operation]:
    """The other contractions of the block by a factor of this one, on its side."""
    uses = [use.operation for use in op.operands[factor].uses if use.index == factor]
    return [
        other for other in uses if other is not op and other.parent is op.parent and other.name == op.name
    ]


def _is_alike(op: Operation, other: Operation) -> bool:
    """Whether two contractions differ in nothing but their operands."""
    types_ = [[value.type for value in contraction.operands] for contraction in (op, other)]
    return types_[0] == types_[1] and (op.properties, op.attributes) == (other.properties, other.attributes)


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


def contract_extents(op: Operation) -> list[int]:
    """The extent of every iteration dimension."""
    extents: dict[int, int] = {}
    for map_, value in zip(contract_maps(op), op.operands, strict=False):
        for dim, extent in zip(map_, shape_of(value), strict=True):
            if extents.setdefault(dim, extent) != extent:
                raise unsupported(op, f"dimension d{dim} has extents {extents[dim]} and {extent}")
    return [extents[dim] for dim in range(len(extents))]


def is_sum_of_bf16(op: Operation) -> bool:
    """Whether a contraction adds products of bf16 in f32."""
    elements = [type(types.element(value.type)) for value in op.operands[:3]]
    return elements == [BFloat16Type, BFloat16Type, Float32Type] and reduction_kind(op) == "add"


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


# ---- contractions that a loop sums in one go ----

GROUP_STEPS = 32
"""Steps of k that an instruction of AMX adds to a sum at once (vnpu/dots.h)."""


def blocks_per_group(op: Operation) -> int:
    """How many blocks the loop around a contraction adds to a sum in one go; 1 where each is a go of its own.

    A sum that the loop carries, and that nobody sees before the loop ends, may take as many as have 32 steps
    together, where the loop has a whole number of these. So says the text alone, whether the loop becomes a
    product (passes/products.py) or runs as it stands.
    """
    loop = op.parent_op()
    if not isinstance(loop, scf.ForOp) or not is_sum_of_bf16(op) or not _is_carried(loop, op):
        return 1
    batch, _, _, reduced = _groups(op)
    extents, found = contract_extents(op), analyze_loop(loop)
    steps = prod(extents[dim] for dim in reduced)
    is_whole = found is not None and GROUP_STEPS % steps == 0 and found.trip_count * steps % GROUP_STEPS == 0
    return GROUP_STEPS // steps if is_whole and not batch and _only_computes(loop) else 1


def declare_groups(body: Body, loop: scf.ForOp) -> None:
    """Emit the variable that holds blocks until they are summed together, before the loop that adds them.

    bfp16 numerics sum each block by itself.
    """
    if body.file.options.numerics == "bfp16":
        return
    for op in loop.body.block.ops:
        blocks = blocks_per_group(op) if op.name == "vector.contract" else 1
        if blocks > 1:
            body.accumulation_groups[op] = body.fresh("go")
            extents = contract_extents(op)
            shape = [prod(extents[dim] for dim in group) for group in _groups(op)[1:]]
            template_arguments = ", ".join(map(str, [blocks, *shape]))
            body.emit_line(f"vnpu::SummedTogether<{template_arguments}> {body.accumulation_groups[op]};")


def _is_carried(loop: scf.ForOp, op: Operation) -> bool:
    """Whether a sum goes around the loop, and nothing but the contraction reads it there."""
    begin = before_shape_cast(op.operands[2])
    if not isinstance(begin, BlockArgument) or begin.owner is not loop.body.block:
        return False
    read, end = _only_use(begin), _only_use(op.results[0])
    is_read = read is not None and (read.operation, read.index) == (op, 2)
    return (
        is_read
        and end is not None
        and (end.operation, end.index + 1) == (loop.body.block.last_op, begin.index)
    )


def _only_use(value: SSAValue) -> Use | None:
    """The one use of a vector, in whatever shape; None where there are none or several."""
    while value.has_one_use():
        (use,) = value.uses
        if use.operation.name != "vector.shape_cast":
            return use
        value = use.operation.results[0]
    return None


def _only_computes(loop: scf.ForOp) -> bool:
    """Whether nothing in the loop waits for others, or holds a loop or branch."""
    kinds = ("arith.", "index.", "affine.apply", "vector.", "scf.yield")
    return all(not op.regions and op.name.startswith(kinds) for op in loop.body.block.ops)


# ---- of two dimensions ----


@emitter("vector.outerproduct")
def _outer_product(body: Body, op: Operation) -> None:
    """Products of sums are fused with the addition, one rounding each, as vector.contract's are."""
    left, right, *accumulator = op.operands
    rows, columns = prod(shape_of(left)), prod(shape_of(right))
    count, scalar = rows * columns, types.scalar(types.element(left.type))
    spread = emit_shuffle(body.text(left), count, f"i / {columns}")
    if isinstance(right.type, VectorType):
        repeated = emit_shuffle(body.text(right), count, f"i % {columns}")
    else:
        repeated = f"vnpu::splat<{scalar}, {count}>({body.text(right)})"
    if accumulator and reduction_kind(op) == "add" and types.is_float(types.element(left.type)):
        text = f"vnpu::fma({spread}, {repeated}, {body.text(accumulator[0])})"
    else:
        text = f"vnpu::mul({spread}, {repeated})"
        if accumulator:
            text = f"vnpu::{reduction_kind(op)}({body.text(accumulator[0])}, {text})"
    body.define(op.results[0], text)


@emitter("vector.scan")
def _scan(body: Body, op: Operation) -> None:
    """Lane by lane, in the order of the dimension, as upstream lowers it (LowerVectorScan.cpp).

    Only an exclusive scan begins with the initial value.
    """
    source, initial = op.operands
    dim, inclusive = attribute(op, "reduction_dim"), attribute(op, "inclusive")
    assert isinstance(dim, IntegerAttr)
    assert isinstance(inclusive, IntegerAttr)
    shape, axis = shape_of(source), dim.value.data
    scalar, count = types.scalar(types.element(source.type)), prod(shape)
    kept = [d for d in range(len(shape)) if d != axis]
    places = coordinates("i", shape)
    total = flat_index([places[d] for d in kept], [shape[d] for d in kept])
    values, totals, all_ = (body.fresh(hint) for hint in ("values", "totals", "all"))
    body.emit_line(f"const vnpu::Lanes<{scalar}, {count}> {values}({body.text(source)});")
    body.emit_line(f"vnpu::Lanes<{scalar}, {count // shape[axis]}> {totals}({body.text(initial)});")
    body.emit_line(f"vnpu::Lanes<{scalar}, {count}> {all_};")
    back = 0 if inclusive.value.data else prod(shape[axis + 1 :])
    first = f"{values}.at[i]" if inclusive.value.data else f"{totals}.at[to]"
    with body.block(f"for (int i = 0; i < {count}; ++i)"):
        body.emit_line(f"const int to = {total};")
        body.emit_line(f"if ({places[axis]} == 0) {totals}.at[to] = {first};")
        body.emit_line(f"else {totals}.at[to] = ({combine(op)})({totals}.at[to], {values}.at[i - {back}]);")
        body.emit_line(f"{all_}.at[i] = {totals}.at[to];")
    body.define(op.results[0], f"{all_}.vec()")
    body.define(op.results[1], f"{totals}.vec()")
