"""The part of a memref that loops access, in C++ that is evaluated before them: a block, or bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects import vector
from xdsl.dialects.builtin import AffineMapAttr, MemRefType, VectorType
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.ir.affine import AffineMap

from aerie.air_dialect.effects import ACCESSES, accesses
from aerie.air_dialect.index_expressions import IndexAnalysis
from aerie.air_dialect.index_intervals import interval
from aerie.air_dialect.index_operators import IndexOperator
from aerie.air_dialect.values import is_defined_in, walk
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import Body
from aerie.virtual_npu.codegen.cpp_text import add, min_or_max, mul, parenthesize

# ---- bounds ----


Bounds = tuple[str, str]
"""C++ text of the smallest and the largest value, both included."""


def accessed_bounds(body: Body, nest: Operation, value: SSAValue) -> Bounds | None:
    """First and last element of a memref that a nest accesses; None if they are unknown.

    Both may be known at run time only. All that the loops access lies between them, so where all of that is
    written, the loops read nothing that is not. With an index out of bounds they may exceed the memref.
    """
    bounds: list[Bounds] = []
    for user in (inner for inner in walk(nest) if any(operand is value for operand in inner.operands)):
        access = _of_access(body, nest, user, value)
        if access is None:
            return None
        bounds.append(access)
    lows, highs = ([*dict.fromkeys(side)] for side in zip(*bounds, strict=True))
    return min_or_max(IndexOperator.MIN, lows), min_or_max(IndexOperator.MAX, highs)


def _of_access(body: Body, nest: Operation, op: Operation, value: SSAValue) -> Bounds | None:
    if op.name not in ACCESSES:
        return None
    view, first = body.memref(value), ACCESSES[op.name][0] + 1
    map_ = op.properties.get("map")
    if isinstance(map_, AffineMapAttr):
        bounds = index_bounds(body, nest, op.operands[first:], map_.data)
    else:
        bounds = index_bounds(body, nest, op.operands[first : first + len(view.sizes)], None)
    lanes = _lanes(op, len(view.sizes))
    low, high = "0", "0"
    for bound, extent, stride in zip(bounds, lanes, view.strides, strict=True):
        if bound is None or not stride.isdigit():
            return None
        low = add(low, mul(parenthesize(bound[0]), stride))
        high = add(high, mul(parenthesize(add(bound[1], str(extent - 1))), stride))
    return low, high


def index_bounds(
    body: Body, nest: Operation, operands: Sequence[SSAValue], map_: AffineMap | None
) -> list[Bounds | None]:
    """The bounds of indices over all iterations of a nest."""
    reading = _reading(body, nest)
    return (
        [reading.analyze(operand) for operand in operands]
        if map_ is None
        else reading.analyze_map(map_, operands)
    )


def _lanes(op: Operation, rank: int) -> list[int]:
    """How many elements from an index on an access comes to, per dimension, whatever its permutation map."""
    moved = op.results[0].type if op.results else op.operands[0].type
    if not isinstance(moved, VectorType):
        return [1] * rank
    shape = list(moved.get_shape())
    is_plain = not op.name.startswith("vector.transfer") and len(shape) <= rank
    return [1] * (rank - len(shape)) + shape if is_plain else [max([1, *shape])] * rank


def _reading(body: Body, nest: Operation) -> IndexAnalysis[Bounds]:
    """Indices in a nest by their bounds: numbers, or what is made of values from outside."""

    def number(value: SSAValue) -> Bounds | None:
        known = interval(value)
        return None if known is None else (str(known[0]), str(known[1]))

    def text(value: SSAValue) -> Bounds | None:
        return None if is_defined_in(nest, value) else (body.text(value), body.text(value))

    return replace(BOUNDS, known_value=lambda value: number(value) or text(value))


def _of_loop_variable(_: SSAValue, low: Bounds | None, high: Bounds | None, _step: object) -> Bounds | None:
    return None if low is None or high is None else (low[0], add(high[1], "-1"))


def _add(lhs: Bounds, rhs: Bounds) -> Bounds:
    return add(lhs[0], rhs[0]), add(lhs[1], rhs[1])


def _subtract(lhs: Bounds, rhs: Bounds) -> Bounds:
    return f"{lhs[0]} - {parenthesize(rhs[1])}", f"{lhs[1]} - {parenthesize(rhs[0])}"


def _multiply(lhs: Bounds, rhs: Bounds) -> Bounds | None:
    """Bounds times a number; None for a factor known only at run time, which may be negative."""
    by, other = (lhs, rhs) if lhs[0] == lhs[1] and lhs[0].isdigit() else (rhs, lhs)
    if by[0] != by[1] or not by[0].isdigit():
        return None
    return mul(parenthesize(other[0]), by[0]), mul(parenthesize(other[1]), by[0])


BOUNDS: IndexAnalysis[Bounds] = IndexAnalysis(
    lambda value: (str(value), str(value)),
    {
        **dict.fromkeys(IndexOperator),
        IndexOperator.ADD: _add,
        IndexOperator.SUBTRACT: _subtract,
        IndexOperator.MULTIPLY: _multiply,
        IndexOperator.CAST: lambda found: found,
    },
    variable=_of_loop_variable,
)


# ---- blocks ----


@dataclass(frozen=True)
class Block:
    """A contiguous part of a memref: fixed in the first dimensions, all of the last ones, as `%acc[%tx,
    %ty]`.

    offset: C++ text of where it begins, in elements from the memref's first. count: its elements. writes:
    whether the nest writes it.
    """

    offset: str
    count: int
    writes: bool


def accessed_block(body: Body, nest: Operation, value: SSAValue) -> Block | None:
    """Return the block of a memref that contains every access in a nest of loops; None if it is unknown.

    Where tiles share a buffer, each mostly has such a block of its own: `%acc[%tx, %ty, %i, %j]`. The order
    checks can then record the block once, before the loops, instead of every access.
    """
    users = [inner for inner in walk(nest) if any(operand is value for operand in inner.operands)]
    places = {_place(body, nest, user, value) for user in users}
    if len(places) != 1 or None in places:
        return None
    (found,) = places
    assert found is not None
    offset, count = found
    writes = any(writes for user in users for touched, writes in accesses(user) if touched is value)
    return Block(offset, count, writes)


def _place(body: Body, nest: Operation, op: Operation, value: SSAValue) -> tuple[str, int] | None:
    if op.name not in ACCESSES or "map" in op.properties:
        return None
    if not _always_runs(nest, op) or not _stays_inside(op):
        return None
    assert isinstance(value.type, MemRefType)
    sizes, strides = value.type.get_shape(), types.memref_strides(value.type)
    if types.DYNAMIC in (*sizes, *strides):
        return None
    first_index = ACCESSES[op.name][0] + 1
    indices = op.operands[first_index : first_index + len(sizes)]
    moved = op.results[0].type if op.results else op.operands[0].type
    shape = moved.get_shape() if isinstance(moved, VectorType) else ()
    extents = [1] * (len(sizes) - len(shape)) + list(shape)
    covered = [_covers(nest, *dim) for dim in zip(indices, extents, sizes, strict=True)]
    first = len(sizes)
    while first > 0 and covered[first - 1]:
        first -= 1
    fixed = [_fixed(body, nest, index) for index in indices[:first]]
    texts = [text for text in fixed if text is not None]
    if len(texts) < first or any(extent != 1 for extent in extents[:first]):
        return None
    if list(strides[first:]) != types.row_major(tuple(sizes[first:])):
        return None
    products = (mul(parenthesize(text), str(stride)) for text, stride in zip(texts, strides, strict=False))
    return add("0", *products), prod(sizes[first:])


def _always_runs(nest: Operation, op: Operation) -> bool:
    """Whether only loops are between a nest and an operation in it."""
    parent = op.parent_op()
    while parent is not None and parent is not nest:
        if not parent.name.endswith((".for", ".parallel", ".forall")):
            return False
        parent = parent.parent_op()
    return True


def _stays_inside(op: Operation) -> bool:
    """Whether a vector transfer moves the last dimensions in their order, without lanes outside."""
    if not isinstance(op, vector.TransferReadOp | vector.TransferWriteOp):
        return True
    map_ = op.permutation_map.data
    minor = AffineMap.identity(map_.num_dims).results[map_.num_dims - len(map_.results) :]
    return map_.results == minor and all(bound.value.data for bound in op.in_bounds) and op.mask is None


def _covers(nest: Operation, index: SSAValue, extent: int, size: int) -> bool:
    """Whether an index, over all iterations of a nest, goes through a whole dimension."""
    found = interval(index)
    return found is not None and found[0] == 0 and found[1] + extent == size and _made_inside(nest, index)


def _made_inside(nest: Operation, value: SSAValue) -> bool:
    """Whether only loop variables of a nest, and constants, make a value."""
    found = interval(value)
    if found is not None and found[0] == found[1]:
        return True
    if isinstance(value, OpResult):
        return bool(value.op.operands) and all(_made_inside(nest, operand) for operand in value.op.operands)
    return is_defined_in(nest, value)


def _fixed(body: Body, nest: Operation, value: SSAValue) -> str | None:
    """C++ text of an index that is the same in all iterations; None for others."""
    found = interval(value)
    if found is not None and found[0] == found[1]:
        return str(found[0])
    return None if is_defined_in(nest, value) else body.text(value)
