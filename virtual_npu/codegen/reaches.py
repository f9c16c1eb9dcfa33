"""How far loops reach into a memref, in C++ that is evaluated before them.

Bounds of loops and indices may be known at run time only. What lies between the smallest and the largest
index contains all that the loops touch, so where all of that is written, they cannot read what is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import affine, scf
from xdsl.dialects.builtin import AffineMapAttr, VectorType
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.ir.affine import AffineBinaryOpKind, AffineMap

from virtual_npu.codegen.algebra import Algebra
from virtual_npu.codegen.body import Body
from virtual_npu.codegen.effects import is_inside
from virtual_npu.codegen.intervals import interval
from virtual_npu.codegen.refusals import attribute
from virtual_npu.codegen.text import grouped, plus, times

_FIRST_INDEX = {
    "memref.load": 1, "memref.store": 2, "affine.load": 1, "affine.store": 2, "vector.load": 1,
    "vector.store": 2, "affine.vector_load": 1, "affine.vector_store": 2, "vector.transfer_read": 1,
    "vector.transfer_write": 2,
}  # fmt: skip
"""Accesses whose first operands are the value to store, if any, and the memref; then come the indices."""

Reach = tuple[str, str]
"""C++ text of the smallest and the largest value, both included."""


def reach(body: Body, nest: Operation, value: SSAValue) -> Reach | None:
    """First and last element of a memref that accesses in a nest come to; None where that cannot be told.

    An index outside of its dimension may make it larger than the memref.
    """
    found: list[Reach] = []
    for user in (inner for inner in nest.walk() if any(operand is value for operand in inner.operands)):
        one = _of_access(body, nest, user, value)
        if one is None:
            return None
        found.append(one)
    lows, highs = ([*dict.fromkeys(side)] for side in zip(*found, strict=True))
    return _nested("minsi", lows), _nested("maxsi", highs)


def _nested(function: str, texts: Sequence[str]) -> str:
    first, *rest = texts
    for text in rest:
        first = f"vnpu::{function}<vnpu::i64>({first}, {text})"
    return first


def _of_access(body: Body, nest: Operation, op: Operation, value: SSAValue) -> Reach | None:
    view, first = body.memref(value), _FIRST_INDEX.get(op.name)
    if first is None:
        return None
    map_ = attribute(op, "map")
    is_mapped = isinstance(map_, AffineMapAttr) and not op.name.startswith("vector.transfer")
    operands = op.operands[first:] if is_mapped else op.operands[first : first + len(view.sizes)]
    bounds = of_indices(
        body, nest, operands, map_.data if isinstance(map_, AffineMapAttr) and is_mapped else None
    )
    lanes = _lanes(op, len(view.sizes))
    low, high = "0", "0"
    for bound, extent, stride in zip(bounds, lanes, view.strides, strict=True):
        if bound is None or not stride.isdigit():
            return None
        low = plus(low, times(grouped(bound[0]), stride))
        high = plus(high, times(grouped(plus(bound[1], str(extent - 1))), stride))
    return low, high


def of_indices(
    body: Body, nest: Operation, operands: Sequence[SSAValue], map_: AffineMap | None
) -> list[Reach | None]:
    """The values of indices over all iterations of a nest."""
    bounds = [_bounds(body, nest, operand) for operand in operands]
    return bounds if map_ is None else [_ALGEBRA.value(expr, bounds, map_.num_dims) for expr in map_.results]


def _lanes(op: Operation, rank: int) -> list[int]:
    """How many elements from an index on an access comes to, per dimension, whatever its permutation map."""
    moved = op.results[0].type if op.results else op.operands[0].type
    if not isinstance(moved, VectorType):
        return [1] * rank
    shape = list(moved.get_shape())
    is_plain = not op.name.startswith("vector.transfer") and len(shape) <= rank
    return [1] * (rank - len(shape)) + shape if is_plain else [max([1, *shape])] * rank


def _bounds(body: Body, nest: Operation, value: SSAValue) -> Reach | None:
    """The values of an index over all iterations of a nest."""
    known = interval(value)
    if known is not None:
        return str(known[0]), str(known[1])
    if not is_inside(nest, value):
        return body.text(value), body.text(value)
    if isinstance(value, BlockArgument):
        return _of_loop_variable(body, nest, value)
    assert isinstance(value, OpResult)
    map_ = value.op.properties.get("map")
    bounds = [_bounds(body, nest, operand) for operand in value.op.operands]
    if value.op.name == "affine.apply" and isinstance(map_, AffineMapAttr):
        return _ALGEBRA.value(map_.data.results[0], bounds, map_.data.num_dims)
    function = _FUNCTIONS.get(value.op.name)
    known_bounds = [bound for bound in bounds if bound is not None]
    return function(*known_bounds) if function and len(known_bounds) == len(bounds) else None


def _of_loop_variable(body: Body, nest: Operation, value: BlockArgument) -> Reach | None:
    loop = value.owner.parent_op()
    if isinstance(loop, scf.ForOp) and value.index == 0:
        low, high = _bounds(body, nest, loop.lb), _bounds(body, nest, loop.ub)
    elif isinstance(loop, scf.ParallelOp):
        low = _bounds(body, nest, loop.lowerBound[value.index])
        high = _bounds(body, nest, loop.upperBound[value.index])
    elif isinstance(loop, affine.ForOp) and value.index == 0:
        low = _of_only_result(body, nest, loop.lowerBoundMap, loop.lowerBoundOperands)
        high = _of_only_result(body, nest, loop.upperBoundMap, loop.upperBoundOperands)
    else:
        return None
    return None if low is None or high is None else (low[0], plus(high[1], "-1"))


def _of_only_result(
    body: Body, nest: Operation, map_: AffineMapAttr, operands: Sequence[SSAValue]
) -> Reach | None:
    if len(map_.data.results) != 1:
        return None
    bounds = [_bounds(body, nest, operand) for operand in operands]
    return _ALGEBRA.value(map_.data.results[0], bounds, map_.data.num_dims)


def _add(left: Reach, right: Reach) -> Reach:
    return plus(left[0], right[0]), plus(left[1], right[1])


def _subtract(left: Reach, right: Reach) -> Reach:
    return f"{left[0]} - {grouped(right[1])}", f"{left[1]} - {grouped(right[0])}"


def _multiply(left: Reach, right: Reach) -> Reach | None:
    """By a number only: a factor that is known at run time may be negative."""
    by, other = (left, right) if left[0] == left[1] and left[0].isdigit() else (right, left)
    if by[0] != by[1] or not by[0].isdigit():
        return None
    return times(grouped(other[0]), by[0]), times(grouped(other[1]), by[0])


_ALGEBRA: Algebra[Reach] = Algebra(
    lambda value: (str(value), str(value)),
    {AffineBinaryOpKind.Add: _add, AffineBinaryOpKind.Mul: _multiply},
)
_FUNCTIONS: dict[str, Callable[..., Reach | None]] = {
    "arith.addi": _add,
    "arith.subi": _subtract,
    "arith.muli": _multiply,
    "arith.index_cast": lambda value: value,
    "index.add": _add,
    "index.sub": _subtract,
    "index.mul": _multiply,
}
