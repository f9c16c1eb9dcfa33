"""Iteration spaces: which values a coordinate or the variable of a loop takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xdsl.dialects import affine, scf
from xdsl.dialects.builtin import DYNAMIC_INDEX, AffineMapAttr, DenseArrayBase, IntegerType
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr

from air_dialect.ops import HerdOp, HierarchyOp, SegmentOp
from air_dialect.upstream.scf import ForallOp
from virtual_npu.static.values import constant, origin

Bound = SSAValue | int | None
"""A value, a number, or what cannot be told."""


class Space(NamedTuple):
    """The values from `low` in steps of `step` up to, without, `high`; `parallel`: all at the same time."""

    low: Bound
    high: Bound
    step: Bound
    parallel: bool

    def values(self) -> range | None:
        """All of them, where the bounds are constant."""
        low, high, step = map(number, self[:3])
        return None if low is None or high is None or step is None or step < 1 else range(low, high, step)


def number(bound: Bound) -> int | None:
    """The integer that a bound is, else None."""
    return constant(bound) if isinstance(bound, SSAValue) else bound


def space_of_variable(value: SSAValue) -> Space | None:
    """The space of a coordinate or of a loop's variable; None for any other value."""
    value = origin(value)
    if not isinstance(value, BlockArgument):
        return None
    spaces = _spaces(value.owner.parent_op())
    return spaces[value.index] if value.index < len(spaces) else None


def _spaces(op: Operation | None) -> list[Space]:
    """The spaces of the block arguments with which the body of an operation begins."""
    if isinstance(op, HierarchyOp):
        return [Space(0, size, 1, isinstance(op, HerdOp | SegmentOp)) for size in op.sizes]
    if isinstance(op, scf.ForOp):
        return [Space(op.lb, op.ub, op.step, False)]
    if isinstance(op, affine.ForOp):
        bounds = _constants(op.lowerBoundMap), _constants(op.upperBoundMap), [op.step.value.data]
        return _together(*bounds, parallel=False)
    if isinstance(op, scf.ParallelOp):
        return _together(op.lowerBound, op.upperBound, op.step)
    if isinstance(op, ForallOp):
        return _together(
            _mixed(op.static_lower, op.dynamic_lower),
            _mixed(op.static_upper, op.dynamic_upper),
            _mixed(op.static_step, op.dynamic_step),
        )
    if isinstance(op, affine.ParallelOp):
        lower = _constants(op.lowerBoundsMap, op.lowerBoundsGroups.get_values())
        upper = _constants(op.upperBoundsMap, op.upperBoundsGroups.get_values())
        return _together(lower, upper, [step.value.data for step in op.steps])
    return []


def _together(
    low: Sequence[Bound], high: Sequence[Bound], step: Sequence[Bound], parallel: bool = True
) -> list[Space]:
    return [Space(*bounds, parallel) for bounds in zip(low, high, step, strict=True)]


def _mixed(static: DenseArrayBase[IntegerType], dynamic: Sequence[SSAValue]) -> list[Bound]:
    values = iter(dynamic)
    return [next(values) if entry == DYNAMIC_INDEX else int(entry) for entry in static.get_values()]


def _constants(map_: AffineMapAttr, groups: Sequence[int] | None = None) -> list[Bound]:
    """The bound of each group of results (all are one where not said): its number, where it is a constant."""
    results = iter(map_.data.results)
    bounds: list[Bound] = []
    for count in (len(map_.data.results),) if groups is None else groups:
        group = [next(results) for _ in range(count)]
        single = group[0] if len(group) == 1 else None
        bounds.append(single.value if isinstance(single, AffineConstantExpr) else None)
    return bounds
