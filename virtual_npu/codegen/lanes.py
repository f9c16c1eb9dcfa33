"""Emitters of vector operations that make vectors, or move and combine the lanes of two."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import IntegerAttr, VectorType
from xdsl.ir import Operation

from virtual_npu.codegen import types
from virtual_npu.codegen.body import Body, emits
from virtual_npu.codegen.refusals import attribute
from virtual_npu.codegen.vector import (
    combine,
    coordinates,
    flat_index,
    integers,
    pick,
    reduction_kind,
    shape_of,
)


def _filled(body: Body, op: Operation, scalar: str, lane: str) -> None:
    """Define a vector result whose lane i is an expression in i."""
    count = prod(shape_of(op.results[0]))
    name = body.fresh("lanes")
    body.put(f"vnpu::Lanes<{scalar}, {count}> {name};")
    body.put(f"for (int i = 0; i < {count}; ++i) {name}.at[i] = {lane};")
    body.define(op.results[0], f"{name}.vec()")


@emits("vector.step")
def _step(body: Body, op: Operation) -> None:
    _filled(body, op, "vnpu::i64", "i")


@emits("vector.constant_mask")
def _constant_mask(body: Body, op: Operation) -> None:
    shape = shape_of(op.results[0]) or (1,)
    places = coordinates("i", shape)
    bounds = integers(op, "mask_dim_sizes")
    tests = [f"{place} < {bound}" for place, bound in zip(places, bounds, strict=True)]
    _filled(body, op, "bool", " && ".join(tests))


@emits("vector.splat")
def _splat(body: Body, op: Operation) -> None:
    type_ = op.results[0].type
    assert isinstance(type_, VectorType)
    scalar = types.scalar(type_.element_type)
    body.define(op.results[0], f"vnpu::splat<{scalar}, {types.lanes(type_)}>({body.text(op.operands[0])})")


@emits("vector.to_elements")
def _to_elements(body: Body, op: Operation) -> None:
    source = body.text(op.operands[0])
    for lane, result in enumerate(op.results):
        body.define(result, f"vnpu::lane({source}, {lane})")


def _position(body: Body, operands: Sequence[object]) -> str:
    return body.text(operands[0]) if operands else "0"  # type: ignore[arg-type]


@emits("vector.extractelement")
def _extract_element(body: Body, op: Operation) -> None:
    source, *position = op.operands
    body.define(op.results[0], f"vnpu::lane({body.text(source)}, {_position(body, position)})")


@emits("vector.insertelement")
def _insert_element(body: Body, op: Operation) -> None:
    value, dest, *position = op.operands
    place = _position(body, position)
    body.define(op.results[0], f"vnpu::with_lane({body.text(dest)}, {place}, {body.text(value)})")


@emits("vector.interleave")
def _interleave(body: Body, op: Operation) -> None:
    left, right = body.texts(op.operands)
    count = prod(shape_of(op.operands[0]))
    joined = f"vnpu::join({left}, {right})"
    body.define(op.results[0], pick(joined, 2 * count, f"i / 2 + i % 2 * {count}"))


@emits("vector.deinterleave")
def _deinterleave(body: Body, op: Operation) -> None:
    source, count = body.text(op.operands[0]), prod(shape_of(op.results[0]))
    for odd, result in enumerate(op.results):
        body.define(result, pick(source, count, f"2 * i + {odd}"))


@emits("vector.outerproduct")
def _outer_product(body: Body, op: Operation) -> None:
    """Products of sums are fused with the addition, one rounding each, as vector.contract's are."""
    left, right, *accumulator = op.operands
    rows, columns = prod(shape_of(left)), prod(shape_of(right))
    count, scalar = rows * columns, types.scalar(types.element(left.type))
    spread = pick(body.text(left), count, f"i / {columns}")
    if isinstance(right.type, VectorType):
        repeated = pick(body.text(right), count, f"i % {columns}")
    else:
        repeated = f"vnpu::splat<{scalar}, {count}>({body.text(right)})"
    if accumulator and reduction_kind(op) == "add" and types.is_float(types.element(left.type)):
        text = f"vnpu::fma({spread}, {repeated}, {body.text(accumulator[0])})"
    else:
        text = f"vnpu::mul({spread}, {repeated})"
        if accumulator:
            text = f"vnpu::{reduction_kind(op)}({body.text(accumulator[0])}, {text})"
    body.define(op.results[0], text)


@emits("vector.scan")
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
    body.put(f"const vnpu::Lanes<{scalar}, {count}> {values}({body.text(source)});")
    body.put(f"vnpu::Lanes<{scalar}, {count // shape[axis]}> {totals}({body.text(initial)});")
    body.put(f"vnpu::Lanes<{scalar}, {count}> {all_};")
    back = 0 if inclusive.value.data else prod(shape[axis + 1 :])
    first = f"{values}.at[i]" if inclusive.value.data else f"{totals}.at[to]"
    with body.block(f"for (int i = 0; i < {count}; ++i)"):
        body.put(f"const int to = {total};")
        body.put(f"if ({places[axis]} == 0) {totals}.at[to] = {first};")
        body.put(f"else {totals}.at[to] = ({combine(op)})({totals}.at[to], {values}.at[i - {back}]);")
        body.put(f"{all_}.at[i] = {totals}.at[to];")
    body.define(op.results[0], f"{all_}.vec()")
    body.define(op.results[1], f"{totals}.vec()")
