"""How far loops reach into a memref, in C++ that is evaluated before them.

Bounds of loops and indices may be known at run time only. What lies between the smallest and the largest
index contains all that the loops touch, so where all of that is written, they cannot read what is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects.builtin import AffineMapAttr, VectorType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineMap

from air_dialect.effects import ACCESSES
from air_dialect.indices import Operator, Reading
from air_dialect.readings import interval
from air_dialect.values import is_inside
from virtual_npu.codegen import affine_text
from virtual_npu.codegen.body import Body
from virtual_npu.codegen.text import grouped, plus, times

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
    return affine_text.folded(Operator.MIN, lows), affine_text.folded(Operator.MAX, highs)


def _of_access(body: Body, nest: Operation, op: Operation, value: SSAValue) -> Reach | None:
    if op.name not in ACCESSES:
        return None
    view, first = body.memref(value), ACCESSES[op.name][0] + 1
    map_ = op.properties.get("map")
    if isinstance(map_, AffineMapAttr):
        bounds = of_indices(body, nest, op.operands[first:], map_.data)
    else:
        bounds = of_indices(body, nest, op.operands[first : first + len(view.sizes)], None)
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
    reading = _reading(body, nest)
    return [reading.read(operand) for operand in operands] if map_ is None else reading.of_map(map_, operands)


def _lanes(op: Operation, rank: int) -> list[int]:
    """How many elements from an index on an access comes to, per dimension, whatever its permutation map."""
    moved = op.results[0].type if op.results else op.operands[0].type
    if not isinstance(moved, VectorType):
        return [1] * rank
    shape = list(moved.get_shape())
    is_plain = not op.name.startswith("vector.transfer") and len(shape) <= rank
    return [1] * (rank - len(shape)) + shape if is_plain else [max([1, *shape])] * rank


def _reading(body: Body, nest: Operation) -> Reading[Reach]:
    """Indices in a nest by their bounds: numbers, or what is made of values from outside."""

    def number(value: SSAValue) -> Reach | None:
        known = interval(value)
        return None if known is None else (str(known[0]), str(known[1]))

    def text(value: SSAValue) -> Reach | None:
        return None if is_inside(nest, value) else (body.text(value), body.text(value))

    return replace(REACHES, given=lambda value: number(value) or text(value))


def _of_loop_variable(_: SSAValue, low: Reach | None, high: Reach | None, _step: object) -> Reach | None:
    return None if low is None or high is None else (low[0], plus(high[1], "-1"))


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


REACHES: Reading[Reach] = Reading(
    lambda value: (str(value), str(value)),
    {
        **dict.fromkeys(Operator),
        Operator.ADD: _add,
        Operator.SUBTRACT: _subtract,
        Operator.MULTIPLY: _multiply,
        Operator.CAST: lambda found: found,
    },
    variable=_of_loop_variable,
)
