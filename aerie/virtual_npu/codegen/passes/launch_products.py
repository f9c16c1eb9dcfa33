"""Finds launches whose points together are one matrix product, with each sum rounded once.

What is recognised, after the products themselves (products.py), in a launch with one segment:

    air.herd                 sums = 0
    vnpu.product             sums += A B
    air.herd                 sums are read, rounded to bf16, and taken to L2 by a DMA
    air.dma_memcpy_nd        from L2 to C

with A, B and C from outside, and what a point of the launch has of them linear in its coordinates. Every
coordinate is one more axis then, of m or of n, and all points are one call of vnpu::multiply_rounded: what
neighbouring points have in common is prepared once, and sums are rounded where they are.

Why that is the same:

- sums, and what they pass through, are the segment's own, and nothing else reads or writes them;
- each sum is followed to its place in C, element by element (rounded_sums.py). All of them get there, no two
  to the same place, by steps of one length along each axis; and they lie within C;
- points of a launch are independent: no point reads what another one writes. Where C lies in A or B after
  all, which is seen when the program runs, the launch runs as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import DictionaryAttr, MemRefType, ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue

from aerie.air_dialect.index_constants import constant_int
from aerie.air_dialect.linear_forms import LinearForm, linear_form
from aerie.air_dialect.ops import DmaMemcpyNdOp, HerdOp, LaunchOp, SegmentOp
from aerie.air_dialect.values import is_defined_in, resolve_alias
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.dialect import (
    ProductOp,
    axes_attr,
    axes_of_attr,
    int_array_attr,
    ints_of_attr,
    wrap,
)
from aerie.virtual_npu.codegen.execution import BodyMode, is_coroutine, visit_operations
from aerie.virtual_npu.codegen.passes.axes import MAX_AXES, Axis, is_distinct
from aerie.virtual_npu.codegen.passes.dma_views import side_offset, walk_extents
from aerie.virtual_npu.codegen.passes.rounded_sums import SumPath, effective_ops, follow_sums
from aerie.virtual_npu.options import BuildOptions

# ---- rewriting ----


def find_rounded_products(module: ModuleOp, options: BuildOptions) -> None:
    """Put a `vnpu.product` that rounds around such launches."""
    products: list[tuple[LaunchOp, _RoundedProduct]] = []

    def visit(op: Operation, mode: BodyMode) -> bool:
        if not isinstance(op, LaunchOp) or mode is not BodyMode.STRAIGHT or is_coroutine(op, options):
            return True
        rounded = product_of_launch(op)
        if rounded is not None:
            products.append((op, rounded))
        return False

    visit_operations(module, options, visit)
    for launch, rounded in products:
        rounded.put_around(launch)


@dataclass(frozen=True)
class _RoundedProduct:
    """C = round(A B): the product of one point, where it begins in A, B and C, and the axes of all points."""

    product: ProductOp
    memrefs: tuple[SSAValue, ...]
    starts: tuple[int, ...]
    points: Sequence[Axis]
    sums: SumPath
    """Of the product of a point; its axes of k are those of all points."""

    def put_around(self, launch: LaunchOp) -> None:
        """Wrap the launch."""
        m, n = self.axes()
        counts = [sum(axis.index == index for axis in self.points) for index in "mn"]
        properties: dict[str, Attribute] = {
            "m": axes_attr([[axis.extent, axis.a, axis.c] for axis in m]),
            "n": axes_attr([[axis.extent, axis.b, axis.c] for axis in n]),
            "k": self.product.k,
            "block": self.product.block,
            "points": int_array_attr(counts),
        }
        for side, start in zip("abc", self.starts, strict=True):
            properties[f"{side}_start"] = int_array_attr([start])
        for side, index in (("a", "m"), ("b", "n")):
            rearranged = self.product.properties.get(f"{side}_rearranged")
            if isinstance(rearranged, DictionaryAttr):
                properties[f"{side}_rearranged"] = _with_points(rearranged, self.points, index)
        wrap(launch, ProductOp, [*self.memrefs, [], [], []], properties)

    def axes(self) -> tuple[list[Axis], list[Axis]]:
        """The axes of m and of n, those of the points first."""
        own = ((self.sums.m, "m"), (self.sums.n, "n"))
        m, n = ([*(axis for axis in self.points if axis.index == index), *axes] for axes, index in own)
        return m, n

    def is_one(self) -> bool:
        """Whether all points together are one product that can be expressed, in a C that contains all of
        it."""
        m, n = self.axes()
        is_short = len(m) <= MAX_AXES and len(n) <= MAX_AXES
        return is_short and is_distinct([*m, *n]) and _lies_within(self.memrefs[2], self.starts[2], [*m, *n])


def _with_points(rearranged: DictionaryAttr, points: Sequence[Axis], index: str) -> DictionaryAttr:
    """Return the attribute of a rearranged operand for all points: each point reads its buffer in the same
    way."""
    zeros = [0, 0] if "made" in rearranged.data else [0]
    still = [[axis.extent, *zeros] for axis in points if axis.index == index]
    return DictionaryAttr(
        {**rearranged.data, "outer": axes_attr([*still, *axes_of_attr(rearranged.data["outer"])])}
    )


# ---- recognising ----


def product_of_launch(launch: LaunchOp) -> _RoundedProduct | None:
    """The product that the points of a launch are; None where they are none."""
    phases = _phases(launch)
    if phases is None:
        return None
    clear, product, drain, leave = phases
    sums = follow_sums(product, clear, drain, leave)
    starts = _starts(launch, product, leave)
    memrefs = [_outside(launch, value) for value in (product.a, product.b, leave.dst)]
    known = [memref for memref in memrefs if memref is not None]
    if sums is None or starts is None or len(known) < 3 or any(known[2] is memref for memref in known[:2]):
        return None
    points = _points(launch, starts)
    first = (starts[0].constant, starts[1].constant, starts[2].constant + sums.start)
    rounded = None if points is None else _RoundedProduct(product, tuple(known), first, points, sums)
    return rounded if rounded is not None and rounded.is_one() else None


_Phases = tuple[HerdOp, ProductOp, HerdOp, DmaMemcpyNdOp]


def _phases(launch: LaunchOp) -> _Phases | None:
    """What a launch does, where that is these four things in one segment and nothing else."""
    segments = list(effective_ops(launch.body.block.ops))
    if len(segments) != 1 or not isinstance(segments[0], SegmentOp) or segments[0].sizes:
        return None
    if any(op.async_token is not None or op.async_dependencies for op in (launch, segments[0])):
        return None
    match list(effective_ops(segments[0].body.block.ops)):
        case [HerdOp() as clear, ProductOp() as product, HerdOp() as drain, DmaMemcpyNdOp() as leave]:
            return clear, product, drain, leave
    return None


def _outside(launch: LaunchOp, value: SSAValue) -> SSAValue | None:
    """What a value in a launch is outside of it; None for what the launch makes itself."""
    named: SSAValue | None = value
    while named is not None and is_defined_in(launch, named):
        named = resolve_alias(named)
    return named


def _starts(launch: LaunchOp, product: ProductOp, leave: DmaMemcpyNdOp) -> list[LinearForm] | None:
    """Where a point begins in A, B and C, by the coordinates of the launch, in elements."""
    sides = ((product.a_start, product.a_indices), (product.b_start, product.b_indices))
    forms = []
    for start, indices in sides:
        constant, *factors = ints_of_attr(start)
        forms.append(LinearForm(constant, dict(zip(indices, factors, strict=True))))
    assert isinstance(leave.dst.type, MemRefType)
    walk = walk_extents(leave.dst.type, leave.dst_sizes, leave.dst_strides)
    if walk is None:
        return None
    forms.append(side_offset(walk[1], leave.dst_offsets))
    lifted = [_lifted(form, launch) for form in forms]
    known = [form for form in lifted if form is not None]
    return known if len(known) == len(forms) else None


def _lifted(expression: LinearForm, launch: LaunchOp) -> LinearForm | None:
    """A form over values in the segment, over the coordinates of the launch; None where it has others."""
    total = LinearForm(expression.constant)
    for value, factor in expression.terms.items():
        outer = value if value in launch.ids else resolve_alias(value)
        if outer is None:
            return None
        known = LinearForm(0, {outer: 1}) if outer in launch.ids else _lifted(linear_form(outer), launch)
        if known is None:
            return None
        total = total.plus(known.times(factor))
    return total


def _points(launch: LaunchOp, starts: Sequence[LinearForm]) -> list[Axis] | None:
    """The axes that the coordinates of the launch are; None where one is neither of m nor of n."""
    points = []
    for coordinate, size in zip(launch.ids, launch.sizes, strict=True):
        extent = constant_int(size)
        if extent is None or extent < 1:
            return None
        axis = Axis(extent, *(start.terms.get(coordinate, 0) for start in starts))
        if extent > 1 and axis.index not in ("m", "n"):
            return None
        points += [axis] if extent > 1 else []
    return points


def _lies_within(memref: SSAValue, start: int, axes: Sequence[Axis]) -> bool:
    assert isinstance(memref.type, MemRefType)
    shape = memref.type.get_shape()
    is_dense = types.DYNAMIC not in shape and types.memref_strides(memref.type) == types.row_major(shape)
    last = start + sum((axis.extent - 1) * axis.c for axis in axes)
    return is_dense and start >= 0 and all(axis.c >= 0 for axis in axes) and last < prod(shape)
