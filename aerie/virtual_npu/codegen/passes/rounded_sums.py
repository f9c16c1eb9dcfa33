"""Follows the sums of a product, element by element, through a herd that rounds them, to their place in C.

A herd sets all sums to +0; after the product another one reads them, rounds them to bf16 in a buffer of each
tile, and sends that to L2 by a DMA; a DMA takes them from there to C. What is at each place on the way is an
array of places before, so that any order and layout is followed, as long as it moves whole elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import BFloat16Type, DenseIntOrFPElementsAttr, Float32Type, MemRefType
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.linear_forms import LinearForm, weighted_sum
from aerie.air_dialect.ops import DmaMemcpyNdOp, HerdOp
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.dialect import ProductOp, axes_of_attr, ints_of_attr
from aerie.virtual_npu.codegen.passes.axes import Axis
from aerie.virtual_npu.codegen.passes.dma_views import READS, side_offset, walk_extents
from aerie.virtual_npu.codegen.passes.loops import Loop, LoopNest, only_computes
from aerie.virtual_npu.codegen.passes.products import WRITES, buffer_copies, vector_place
from aerie.virtual_npu.codegen.vector_lanes import shape_of

Places = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
"""Where elements lie in a buffer: one dimension for each loop, tile coordinate or lane."""

NOWHERE = -1


@dataclass(frozen=True)
class SumPath:
    """Where the sums of a point get to in C: the first one, and the axes of m and of n, with steps in C."""

    start: int
    m: list[Axis]
    n: list[Axis]


def follow_sums(product: ProductOp, clear: HerdOp, drain: HerdOp, leave: DmaMemcpyNdOp) -> SumPath | None:
    """None where a sum does not begin with zero, or gets to no place of its own in C."""
    sums = product.c
    begin, *terms = ints_of_attr(product.c_start)
    if terms or not _is_made_by(product.parent_op(), sums) or buffer_copies(sums) > 1:
        return None
    m, n = axes_of_attr(product.m), axes_of_attr(product.n)
    made = _walk(begin, [(extent, step) for extent, _, step in (*m, *n)])
    made = made.reshape(prod(axis[0] for axis in m), -1)
    cleared, places = _cleared(clear, sums), _places_in_c(drain, leave, sums)
    if cleared is None or places is None or not _is_among(made, cleared):
        return None
    to = places[made]
    if to.min() < 0 or np.count_nonzero(places != NOWHERE) != made.size:
        return None
    down, along = _steps(to[:, 0], m), _steps(to[0], n)
    if down is None or along is None or not np.array_equal(to, to[:, :1] + to[:1] - to[0, 0]):
        return None
    rows = [Axis(extent, a, 0, step) for (extent, a, _), step in zip(m, down, strict=True)]
    columns = [Axis(extent, 0, b, step) for (extent, b, _), step in zip(n, along, strict=True)]
    return SumPath(int(to[0, 0]), rows, columns)


def _walk(first: int, axes: Sequence[tuple[int, int]]) -> Places:
    """All places of a walk over axes, outermost first, each an extent and a step."""
    places = np.array(first, np.int64)
    for extent, step in axes:
        places = places[..., None] + step * np.arange(extent)
    return places


def _are_distinct(places: Places) -> bool:
    """Whether no place, of 0 or more, is there twice."""
    return int(np.bincount(places.ravel()).max()) <= 1


def _is_among(places: Places, others: Places) -> bool:
    """Whether all places are some of the others."""
    known = np.zeros(max(int(places.max()), int(others.max())) + 1, np.bool_)
    known[others] = True
    return bool(known[places].all())


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
    loops, done = nest.loops(), list(effective_ops(nest.inside))
    if loops is None or len(done) != 1 or done[0].name not in WRITES:
        return None
    return _reached(nest, loops, done[0], sums) if _is_positive_zero(done[0].operands[0]) else None


def _is_positive_zero(value: SSAValue) -> bool:
    if not isinstance(value.owner, arith.ConstantOp):
        return False
    attribute = value.owner.value
    if not isinstance(attribute, DenseIntOrFPElementsAttr):
        return False
    return all(number == 0 and not np.signbit(number) for number in attribute.get_values())


def _reached(nest: LoopNest, loops: Sequence[Loop], op: Operation, buffer: SSAValue) -> Places | None:
    """Where a read or write of vectors gets to in a dense buffer, over all loops."""
    place = vector_place(op)
    if place is None or nest.outer_value(place[0]) is not buffer:
        return None
    memref, indices, dims = place
    assert isinstance(memref.type, MemRefType)
    strides = types.row_major(memref.type.get_shape())
    if types.memref_strides(memref.type) != strides:
        return None
    lanes = shape_of(op.results[0] if op.results else op.operands[0])
    walk = [(extent, strides[dim]) for extent, dim in zip(lanes, dims, strict=True)]
    return _over(loops, nest.resolve(weighted_sum(indices, strides)), walk, buffer)


def _over(
    loops: Sequence[Loop], form: LinearForm | None, walk: Sequence[tuple[int, int]], buffer: SSAValue
) -> Places | None:
    """All places of a walk that begins by a form over loops; None where one lies outside of the buffer, or
    something else decides on it."""
    if form is None or any(all(value is not loop.variable for loop in loops) for value in form.terms):
        return None
    coefficients = [form.terms.get(loop.variable, 0) for loop in loops]
    first = form.constant + sum(n * loop.first for n, loop in zip(coefficients, loops, strict=True))
    steps = [(loop.trip_count, n * loop.step) for n, loop in zip(coefficients, loops, strict=True)]
    places = _walk(first, [*steps, *walk])
    assert isinstance(buffer.type, MemRefType)
    is_inside_of_it = places.min() >= 0 and places.max() < prod(buffer.type.get_shape())
    return places if is_inside_of_it else None


def _places_in_c(drain: HerdOp, leave: DmaMemcpyNdOp, sums: SSAValue) -> Places | None:
    """For each sum where in C it gets to, from where the point begins there, or NOWHERE."""
    drained = _drained(drain, sums)
    if drained is None or not _is_plain(leave) or leave.src is not drained.buffer:
        return None
    if not _is_made_by(leave.parent_op(), leave.src) or buffer_copies(leave.src) > 1:
        return None
    source = _side(leave.src, leave.src_offsets, leave.src_sizes, leave.src_strides)
    assert isinstance(leave.dst.type, MemRefType)
    walk = walk_extents(leave.dst.type, leave.dst_sizes, leave.dst_strides)
    if source is None or walk is None:
        return None
    assert isinstance(sums.type, MemRefType)
    left, to = drained.held[source], _walk(0, list(zip(*walk, strict=True))).ravel()
    places = np.full(prod(sums.type.get_shape()), NOWHERE, np.int64)
    if left.size != to.size or left.min() < 0 or not _are_distinct(left):
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
    walk = walk_extents(memref.type, sizes, strides)
    if walk is None or types.memref_strides(memref.type) != types.row_major(memref.type.get_shape()):
        return None
    form = side_offset(walk[1], offsets)
    places = _over(tiles, nest.resolve(form) if nest else form, list(zip(*walk, strict=True)), memref)
    return None if places is None else places.reshape(*(loop.trip_count for loop in tiles), -1)


@dataclass(frozen=True)
class _Drained:
    """A buffer in L2, and which sum each element of it holds, rounded; NOWHERE for none."""

    buffer: SSAValue
    held: Places


def _drained(herd: HerdOp, sums: SSAValue) -> _Drained | None:
    """What a herd leaves in L2, where all that it does is to round sums and to send them there."""
    nest = LoopNest(herd)
    loops, done = nest.loops(), list(effective_ops(nest.inside))
    if loops is None or len(done) != 4 or len(nest.ops) < 2:
        return None
    dma, read, narrow, write = done
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
    return _composed(
        nest.outer_value(dma.dst), prod(loop.trip_count for loop in tiles), taken, put, sent, got
    )


def _composed(
    buffer: SSAValue, tiles: int, taken: Places, put: Places, sent: Places, got: Places
) -> _Drained | None:
    """What the buffer holds: of every tile the sums that it took, put into its own one, sent from there."""
    taken, put, sent, got = (places.reshape(tiles, -1) for places in (taken, put, sent, got))
    assert isinstance(buffer.type, MemRefType)
    held = np.full(prod(buffer.type.get_shape()), NOWHERE, np.int64)
    if sent.shape != got.shape or not _are_distinct(got):
        return None
    for i in range(tiles):
        own = np.full(max(int(put.max()), int(sent.max())) + 1, NOWHERE, np.int64)
        own[put[i]] = taken[i]
        held[got[i]] = own[sent[i]]
        if not _are_distinct(put[i]):
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


def effective_ops(ops: Iterable[Operation]) -> Iterator[Operation]:
    """The operations that do something; to round counts as that."""
    for op in ops:
        if isinstance(op, arith.TruncFOp) or not (only_computes(op) or op.name in _STRUCTURAL):
            yield op


_STRUCTURAL = (
    *("memref.alloc", "memref.dealloc", "scf.yield"),
    *("air.launch_terminator", "air.segment_terminator", "air.herd_terminator"),
)
