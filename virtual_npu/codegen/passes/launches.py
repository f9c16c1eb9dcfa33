"""Launches whose points are one matrix product together, each sum of which is rounded once.

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
- each sum is followed to its place in C, element by element (`_Way`). All of them get there, no two to the
  same place, by steps of one length along each axis; and they lie within C;
- points of a launch are independent: no point reads what another one writes. Where C lies in A or B after
  all, which is seen when the program runs, the launch runs as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    BFloat16Type,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    Float32Type,
    MemRefType,
    ModuleOp,
)
from xdsl.ir import Attribute, Operation, SSAValue

from aerie.air_dialect.ops import DmaMemcpyNdOp, HerdOp, LaunchOp, SegmentOp
from aerie.air_dialect.readings import Linear, linear, number, weighted
from aerie.air_dialect.values import is_inside, passed
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.dialect import ProductOp, axes, axes_of, numbers, numbers_of, wrap
from aerie.virtual_npu.codegen.execution import Mode, each_operation, takes_turns
from aerie.virtual_npu.codegen.passes.axes import MOST_AXES, Axis, is_distinct
from aerie.virtual_npu.codegen.passes.loops import Loop, LoopNest
from aerie.virtual_npu.codegen.passes.products import WRITES, copies_of, place_of
from aerie.virtual_npu.codegen.passes.windows import READS, walked
from aerie.virtual_npu.codegen.vector_lanes import shape_of
from aerie.virtual_npu.options import BuildOptions

Places = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
"""Where elements lie in a buffer: one dimension for each loop, tile coordinate or lane."""

NOWHERE = -1

# ---- rewriting ----


def find_rounded_products(module: ModuleOp, options: BuildOptions) -> None:
    """Put a `vnpu.product` that rounds around such launches."""
    found: list[tuple[LaunchOp, _Rounded]] = []

    def visit(op: Operation, mode: Mode) -> bool:
        if not isinstance(op, LaunchOp) or mode is not Mode.STRAIGHT or takes_turns(op, options):
            return True
        rounded = of_launch(op)
        if rounded is not None:
            found.append((op, rounded))
        return False

    each_operation(module, options, visit)
    for launch, rounded in found:
        rounded.put_around(launch)


@dataclass(frozen=True)
class _Rounded:
    """C = round(A B): the product of one point, where it begins in A, B and C, and the axes of all points."""

    product: ProductOp
    memrefs: tuple[SSAValue, ...]
    starts: tuple[int, ...]
    points: Sequence[Axis]
    way: _Way
    """Of the product of a point; its axes of k are those of all points."""

    def put_around(self, launch: LaunchOp) -> None:
        """Wrap the launch."""
        m, n = self.axes()
        counts = [sum(axis.index == index for axis in self.points) for index in "mn"]
        properties: dict[str, Attribute] = {
            "m": axes([[axis.extent, axis.a, axis.c] for axis in m]),
            "n": axes([[axis.extent, axis.b, axis.c] for axis in n]),
            "k": self.product.k,
            "block": self.product.block,
            "points": numbers(counts),
        }
        for side, start in zip("abc", self.starts, strict=True):
            properties[f"{side}_start"] = numbers([start])
        for side, index in (("a", "m"), ("b", "n")):
            rearranged = self.product.properties.get(f"{side}_rearranged")
            if isinstance(rearranged, DictionaryAttr):
                properties[f"{side}_rearranged"] = _with_points(rearranged, self.points, index)
        wrap(launch, ProductOp, [*self.memrefs, [], [], []], properties)

    def axes(self) -> tuple[list[Axis], list[Axis]]:
        """The axes of m and of n, those of the points first."""
        own = ((self.way.m, "m"), (self.way.n, "n"))
        m, n = ([*(axis for axis in self.points if axis.index == index), *axes] for axes, index in own)
        return m, n

    def is_one(self) -> bool:
        """Whether all points together are a product that can be said, in a C that has all of it."""
        m, n = self.axes()
        is_short = len(m) <= MOST_AXES and len(n) <= MOST_AXES
        return is_short and is_distinct([*m, *n]) and _lies_within(self.memrefs[2], self.starts[2], [*m, *n])


def _with_points(found: DictionaryAttr, points: Sequence[Axis], index: str) -> DictionaryAttr:
    """What is said of a rearranged operand, for all points: in each of them its buffer is read alike."""
    still = [[axis.extent, 0] for axis in points if axis.index == index]
    return DictionaryAttr({**found.data, "outer": axes([*still, *axes_of(found.data["outer"])])})


# ---- recognising ----


def of_launch(launch: LaunchOp) -> _Rounded | None:
    """The product that the points of a launch are; None where they are none."""
    phases = _phases(launch)
    if phases is None:
        return None
    clear, product, drain, leave = phases
    way = _way(product, clear, drain, leave)
    starts = _starts(launch, product, leave)
    memrefs = [_outside(launch, value) for value in (product.a, product.b, leave.dst)]
    known = [memref for memref in memrefs if memref is not None]
    if way is None or starts is None or len(known) < 3 or any(known[2] is memref for memref in known[:2]):
        return None
    points = _points(launch, starts)
    first = (starts[0].constant, starts[1].constant, starts[2].constant + way.start)
    rounded = None if points is None else _Rounded(product, tuple(known), first, points, way)
    return rounded if rounded is not None and rounded.is_one() else None


_Phases = tuple[HerdOp, ProductOp, HerdOp, DmaMemcpyNdOp]


def _phases(launch: LaunchOp) -> _Phases | None:
    """What a launch does, where that is these four things in one segment and nothing else."""
    segments = list(_matter(launch.body.block.ops))
    if len(segments) != 1 or not isinstance(segments[0], SegmentOp) or segments[0].sizes:
        return None
    if any(op.async_token is not None or op.async_dependencies for op in (launch, segments[0])):
        return None
    match list(_matter(segments[0].body.block.ops)):
        case [HerdOp() as clear, ProductOp() as product, HerdOp() as drain, DmaMemcpyNdOp() as leave]:
            return clear, product, drain, leave
    return None


def _matter(ops: Iterable[Operation]) -> Iterator[Operation]:
    """The operations that do something."""
    for op in ops:
        is_number = op.name.startswith(("arith.", "index.", "affine.apply")) and op.name != "arith.truncf"
        if not is_number and op.name not in _HARMLESS:
            yield op


_HARMLESS = (
    *("memref.alloc", "memref.dealloc", "vector.shape_cast", "scf.yield"),
    *("air.launch_terminator", "air.segment_terminator", "air.herd_terminator"),
)


def _outside(launch: LaunchOp, value: SSAValue) -> SSAValue | None:
    """What a value in a launch is outside of it; None for what the launch makes itself."""
    named: SSAValue | None = value
    while named is not None and is_inside(launch, named):
        named = passed(named)
    return named


def _starts(launch: LaunchOp, product: ProductOp, leave: DmaMemcpyNdOp) -> list[Linear] | None:
    """Where a point begins in A, B and C, by the coordinates of the launch, in elements."""
    sides = ((product.a_start, product.a_indices), (product.b_start, product.b_indices))
    forms = []
    for start, indices in sides:
        constant, *factors = numbers_of(start)
        forms.append(Linear(constant, dict(zip(indices, factors, strict=True))))
    assert isinstance(leave.dst.type, MemRefType)
    walk = walked(leave.dst.type, leave.dst_sizes, leave.dst_strides)
    if walk is None:
        return None
    forms.append(_offset(walk[1], leave.dst_offsets))
    lifted = [_lifted(form, launch) for form in forms]
    known = [form for form in lifted if form is not None]
    return known if len(known) == len(forms) else None


def _offset(strides: Sequence[int], offsets: Sequence[SSAValue]) -> Linear:
    """Where one side of a DMA begins."""
    return weighted(offsets, strides[len(strides) - len(offsets) :])


def _lifted(form: Linear, launch: LaunchOp) -> Linear | None:
    """A form over values in the segment, over the coordinates of the launch; None where it has others."""
    total = Linear(form.constant)
    for value, factor in form.terms.items():
        meant = value if value in launch.ids else passed(value)
        if meant is None:
            return None
        known = Linear(0, {meant: 1}) if meant in launch.ids else _lifted(linear(meant), launch)
        if known is None:
            return None
        total = total.plus(known.times(factor))
    return total


def _points(launch: LaunchOp, starts: Sequence[Linear]) -> list[Axis] | None:
    """The axes that the coordinates of the launch are; None where one is neither of m nor of n."""
    points = []
    for coordinate, size in zip(launch.ids, launch.sizes, strict=True):
        extent = number(size)
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


# ---- the way of the sums ----


@dataclass(frozen=True)
class _Way:
    """Where the sums of a point get to in C: the first one, and the axes of m and of n, with steps in C."""

    start: int
    m: list[Axis]
    n: list[Axis]


def _way(product: ProductOp, clear: HerdOp, drain: HerdOp, leave: DmaMemcpyNdOp) -> _Way | None:
    """None where a sum does not begin with zero, or gets to no place of its own in C."""
    sums = product.c
    begin, *terms = numbers_of(product.c_start)
    if terms or not _is_made_by(product.parent_op(), sums) or copies_of(sums) > 1:
        return None
    m, n = axes_of(product.m), axes_of(product.n)
    made = _walk(begin, [(extent, step) for extent, _, step in (*m, *n)])
    made = made.reshape(prod(axis[0] for axis in m), -1)
    cleared, places = _cleared(clear, sums), _places_in_c(drain, leave, sums)
    if cleared is None or places is None or not np.isin(made, cleared).all():
        return None
    to = places[made]
    if to.min() < 0 or np.count_nonzero(places != NOWHERE) != made.size:
        return None
    down, along = _steps(to[:, 0], m), _steps(to[0], n)
    if down is None or along is None or not np.array_equal(to, to[:, :1] + to[:1] - to[0, 0]):
        return None
    rows = [Axis(extent, a, 0, step) for (extent, a, _), step in zip(m, down, strict=True)]
    columns = [Axis(extent, 0, b, step) for (extent, b, _), step in zip(n, along, strict=True)]
    return _Way(int(to[0, 0]), rows, columns)


def _walk(first: int, axes: Sequence[tuple[int, int]]) -> Places:
    """All places of a walk over axes, outermost first, each an extent and a step."""
    places = np.array(first, np.int64)
    for extent, step in axes:
        places = places[..., None] + step * np.arange(extent)
    return places


def _steps(places: Places, axes: Sequence[Sequence[int]]) -> list[int] | None:
    """The step along each axis by which places follow each other; None where they do not so."""
    extents = [axis[0] for axis in axes]
    grid = places.reshape(extents)
    origin = (0,) * len(extents)
    steps = []
    for i in range(len(extents)):
        unit = (*origin[:i], 1, *origin[i + 1 :])
        steps.append(int(grid[unit] - grid[origin]) if extents[i] > 1 else 0)
    walk = _walk(int(grid[origin]), list(zip(extents, steps, strict=True)))
    return steps if np.array_equal(grid, walk) else None


def _cleared(herd: HerdOp, sums: SSAValue) -> Places | None:
    """The sums that a herd sets to +0, where that is all it does."""
    nest = LoopNest(herd)
    loops, matter = nest.loops(), list(_matter(nest.inside))
    if loops is None or len(matter) != 1 or matter[0].name not in WRITES:
        return None
    is_zero = _is_positive_zero(matter[0].operands[0])
    return _reached(nest, loops, matter[0], sums) if is_zero else None


def _is_positive_zero(value: SSAValue) -> bool:
    if not isinstance(value.owner, arith.ConstantOp):
        return False
    attribute = value.owner.value
    if not isinstance(attribute, DenseIntOrFPElementsAttr):
        return False
    return all(number == 0 and not np.signbit(number) for number in attribute.get_values())


def _reached(nest: LoopNest, loops: Sequence[Loop], op: Operation, buffer: SSAValue) -> Places | None:
    """Where a read or write of vectors gets to in a dense buffer, over all loops."""
    place = place_of(op)
    if place is None or nest.outside(place[0]) is not buffer:
        return None
    memref, indices, dims = place
    assert isinstance(memref.type, MemRefType)
    strides = types.row_major(memref.type.get_shape())
    if types.memref_strides(memref.type) != strides:
        return None
    lanes = shape_of(op.results[0] if op.results else op.operands[0])
    walk = [(extent, strides[dim]) for extent, dim in zip(lanes, dims, strict=True)]
    return _over(loops, nest.resolved(weighted(indices, strides)), walk, buffer)


def _over(
    loops: Sequence[Loop], form: Linear | None, walk: Sequence[tuple[int, int]], buffer: SSAValue
) -> Places | None:
    """All places of a walk that begins by a form over loops; None where one lies outside of the buffer, or
    something else decides on it."""
    if form is None or any(all(value is not loop.variable for loop in loops) for value in form.terms):
        return None
    coefficients = [form.terms.get(loop.variable, 0) for loop in loops]
    first = form.constant + sum(n * loop.first for n, loop in zip(coefficients, loops, strict=True))
    steps = [(loop.trips, n * loop.step) for n, loop in zip(coefficients, loops, strict=True)]
    places = _walk(first, [*steps, *walk])
    assert isinstance(buffer.type, MemRefType)
    is_inside_of_it = places.min() >= 0 and places.max() < prod(buffer.type.get_shape())
    return places if is_inside_of_it else None


def _places_in_c(drain: HerdOp, leave: DmaMemcpyNdOp, sums: SSAValue) -> Places | None:
    """For each sum where in C it gets to, from where the point begins there, or NOWHERE."""
    drained = _drained(drain, sums)
    if drained is None or not _is_plain(leave) or leave.src is not drained.buffer:
        return None
    if not _is_made_by(leave.parent_op(), leave.src) or copies_of(leave.src) > 1:
        return None
    source = _side(leave.src, leave.src_offsets, leave.src_sizes, leave.src_strides)
    assert isinstance(leave.dst.type, MemRefType)
    walk = walked(leave.dst.type, leave.dst_sizes, leave.dst_strides)
    if source is None or walk is None:
        return None
    assert isinstance(sums.type, MemRefType)
    left, to = drained.held[source], _walk(0, list(zip(*walk, strict=True))).ravel()
    places = np.full(prod(sums.type.get_shape()), NOWHERE, np.int64)
    if left.size != to.size or left.min() < 0 or len(np.unique(left)) != left.size:
        return None
    places[left] = to
    return places


def _is_plain(dma: DmaMemcpyNdOp) -> bool:
    """Whether a DMA waits for nothing, is waited for, and fills nothing up."""
    return not (dma.async_token or dma.async_dependencies or dma.pad_before or dma.pad_after)


def _side(
    memref: SSAValue,
    offsets: Sequence[SSAValue],
    sizes: Sequence[SSAValue],
    strides: Sequence[SSAValue],
    nest: LoopNest | None = None,
    tiles: Sequence[Loop] = (),
) -> Places | None:
    """The places that one side of a DMA walks, in its order, behind those of the tiles."""
    assert isinstance(memref.type, MemRefType)
    walk = walked(memref.type, sizes, strides)
    if walk is None or types.memref_strides(memref.type) != types.row_major(memref.type.get_shape()):
        return None
    form = _offset(walk[1], offsets)
    places = _over(tiles, nest.resolved(form) if nest else form, list(zip(*walk, strict=True)), memref)
    return None if places is None else places.reshape(*(loop.trips for loop in tiles), -1)


@dataclass(frozen=True)
class _Drained:
    """A buffer in L2, and which sum each element of it holds, rounded; NOWHERE for none."""

    buffer: SSAValue
    held: Places


def _drained(herd: HerdOp, sums: SSAValue) -> _Drained | None:
    """What a herd leaves in L2, where all that it does is to round sums and to send them there."""
    nest = LoopNest(herd)
    loops, matter = nest.loops(), list(_matter(nest.inside))
    if loops is None or len(matter) != 4 or len(nest.ops) < 2:
        return None
    dma, read, narrow, write = matter
    if not isinstance(dma, DmaMemcpyNdOp) or not _rounds(read, narrow, write):
        return None
    is_after = dma.parent is herd.body.block and nest.ops[1].is_before_in_block(dma)
    if not is_after or not _is_plain(dma) or not _is_own(dma.src, herd, [write, dma]):
        return None
    tiles = [loop for loop in loops if loop.variable in nest.coordinates()]
    taken, put = _reached(nest, loops, read, sums), _reached(nest, loops, write, dma.src)
    sent = _side(dma.src, dma.src_offsets, dma.src_sizes, dma.src_strides, nest, tiles)
    got = _side(dma.dst, dma.dst_offsets, dma.dst_sizes, dma.dst_strides, nest, tiles)
    if taken is None or put is None or sent is None or got is None:
        return None
    return _composed(nest.outside(dma.dst), prod(loop.trips for loop in tiles), taken, put, sent, got)


def _composed(
    buffer: SSAValue, tiles: int, taken: Places, put: Places, sent: Places, got: Places
) -> _Drained | None:
    """What the buffer holds: of every tile the sums that it took, put into its own one, sent from there."""
    taken, put, sent, got = (places.reshape(tiles, -1) for places in (taken, put, sent, got))
    assert isinstance(buffer.type, MemRefType)
    held = np.full(prod(buffer.type.get_shape()), NOWHERE, np.int64)
    if sent.shape != got.shape or len(np.unique(got)) != got.size:
        return None
    for i in range(tiles):
        own = np.full(max(int(put.max()), int(sent.max())) + 1, NOWHERE, np.int64)
        own[put[i]] = taken[i]
        held[got[i]] = own[sent[i]]
        if len(np.unique(put[i])) != put.shape[1]:
            return None
    return _Drained(buffer, held)


def _rounds(read: Operation, narrow: Operation, write: Operation) -> bool:
    """Whether what is read as f32 is written as bf16."""
    is_chain = (
        read.name in READS
        and isinstance(narrow, arith.TruncFOp)
        and write.name in WRITES
        and narrow.operands[0] is read.results[0]
        and write.operands[0] is narrow.results[0]
    )
    return (
        is_chain
        and isinstance(types.element(read.results[0].type), Float32Type)
        and isinstance(types.element(narrow.results[0].type), BFloat16Type)
    )


def _is_own(buffer: SSAValue, herd: HerdOp, users: Sequence[Operation]) -> bool:
    """Whether a herd allocates a buffer, and nothing else uses it than these."""
    others = [use.operation for use in buffer.uses if use.operation.name != "memref.dealloc"]
    return _is_made_by(herd, buffer) and all(op in users for op in others)


def _is_made_by(holder: Operation | None, buffer: SSAValue) -> bool:
    """Whether a buffer is allocated in the body of an operation."""
    made = buffer.owner
    return isinstance(made, Operation) and made.name == "memref.alloc" and made.parent_op() is holder
