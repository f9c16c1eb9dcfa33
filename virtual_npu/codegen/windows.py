"""L1 buffers that hold what a DMA brought and nothing else: windows on the source of the DMA.

Where a loop copies a piece of a buffer into an L1 buffer and only reads it there, reading the source in its
place gives the same. That is so when

- the DMA writes all of the buffer, in its order, without padding, and lies within its source (else it would
  end the run with a message);
- every other use of the buffer is a read in the loops, after the DMA in its block or deeper, or gives the
  buffer back, so that each read sees what the last DMA brought;
- nothing in the loops writes the source: the caller sees to that (virtual_npu.codegen.products);
- each dimension of the buffer walks the source in steps of one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, OpResult, SSAValue

from air_dialect.ops import DmaMemcpyNdOp
from virtual_npu.codegen import types
from virtual_npu.codegen.effects import is_inside
from virtual_npu.codegen.intervals import interval
from virtual_npu.codegen.linear import Linear, weighted


@dataclass(frozen=True)
class Window:
    """A memref, as it is read: where in which memref its first element lies, and its dimensions' steps."""

    memref: SSAValue
    start: Linear
    steps: tuple[int, ...]


def window(loops: Operation, read: Operation, buffer: SSAValue) -> Window | None:
    """How `read` in `loops` sees a memref; None where that cannot be told.

    A buffer that a DMA in the loops fills is a window on the source of the DMA, any other one on itself.
    """
    fills = [use.operation for use in buffer.uses if _fills(use.operation, buffer, loops)]
    if not fills:
        return itself(buffer)
    if len(fills) > 1 or not _is_only_read(loops, fills[0], buffer) or not _precedes(fills[0], read):
        return None
    assert isinstance(fills[0], DmaMemcpyNdOp)
    return _on_source(fills[0])


def _fills(op: Operation, buffer: SSAValue, loops: Operation) -> bool:
    return isinstance(op, DmaMemcpyNdOp) and op.dst is buffer and _is_in(loops, op)


def _is_in(loops: Operation, op: Operation) -> bool:
    return op.parent is not None and any(inner is op for inner in loops.walk())


def itself(buffer: SSAValue) -> Window | None:
    """A memref as a window on itself; None where its layout is not known."""
    assert isinstance(buffer.type, MemRefType)
    steps = types.memref_strides(buffer.type)
    return None if types.DYNAMIC in steps else Window(buffer, Linear(), tuple(steps))


def _is_only_read(loops: Operation, fill: Operation, buffer: SSAValue) -> bool:
    """Whether a buffer is allocated and, but for the DMA that fills it, read in the loops or given back."""
    if not isinstance(buffer, OpResult) or buffer.op.name != "memref.alloc" or is_inside(loops, buffer):
        return False
    users = [use.operation for use in buffer.uses]
    return all(
        op is fill or op.name == "memref.dealloc" or (op.name in READS and _is_in(loops, op)) for op in users
    )


READS = ("vector.transfer_read", "vector.load")


def _precedes(fill: Operation, read: Operation) -> bool:
    """Whether an operation stands before another one in its block, or before one around that."""
    around: Operation | None = read
    while around is not None and around.parent is not fill.parent:
        around = around.parent_op()
    return around is not None and around is not fill and fill.is_before_in_block(around)


def _on_source(dma: DmaMemcpyNdOp) -> Window | None:
    assert isinstance(dma.dst.type, MemRefType)
    assert isinstance(dma.src.type, MemRefType)
    if dma.async_token is not None or dma.async_dependencies or dma.pad_before or dma.pad_after:
        return None
    shape = dma.dst.type.get_shape()
    walk = walked(dma.src.type, dma.src_sizes, dma.src_strides)
    if not covers(dma) or walk is None:
        return None
    sizes, strides = walk
    steps = refined(shape, sizes, strides)
    start = weighted(dma.src_offsets, strides[len(strides) - len(dma.src_offsets) :])
    if steps is None or start is None or not _lies_within(dma.src.type, start, sizes, strides):
        return None
    return Window(dma.src, start, steps)


def covers(dma: DmaMemcpyNdOp) -> bool:
    """Whether the destination is all of its memref, dense and in its order."""
    type_ = dma.dst.type
    assert isinstance(type_, MemRefType)
    shape = type_.get_shape()
    if types.DYNAMIC in shape or types.memref_strides(type_) != types.row_major(shape):
        return False
    if not dma.dst_sizes:
        return not dma.dst_offsets
    sizes, strides = _constants(dma.dst_sizes), _constants(dma.dst_strides)
    return (sizes, strides) == (list(shape), types.row_major(shape)) and not any(
        number != 0 for number in _constants(dma.dst_offsets) or []
    )


def walked(
    type_: MemRefType, sizes: Sequence[SSAValue], strides: Sequence[SSAValue]
) -> tuple[list[int], list[int]] | None:
    """The extents and steps of one side of a DMA, where they are known; without lists, of all of a memref."""
    if not sizes:
        steps = types.memref_strides(type_)
        known = types.DYNAMIC not in (*type_.get_shape(), *steps)
        return (list(type_.get_shape()), steps) if known else None
    extents, found = _constants(sizes), _constants(strides)
    return None if extents is None or found is None else (extents, found)


def _constants(values: Sequence[SSAValue]) -> list[int] | None:
    found = [interval(value) for value in values]
    known = [one[0] for one in found if one is not None and one[0] == one[1]]
    return known if len(known) == len(found) else None


def refined(shape: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The step of every dimension of `shape` in a walk over as many elements; None where one has several."""
    if prod(shape) != prod(sizes):
        return None
    walk = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    steps = []
    for extent in reversed(shape):
        taken = _take(walk, extent)
        if taken is None:
            return None
        steps.append(taken)
    return tuple(reversed(steps))


def _take(walk: list[tuple[int, int]], extent: int) -> int | None:
    """Take so many elements from the end of a walk, all of one step apart; gives the step."""
    step, taken = 0, 1
    while taken < extent:
        size, stride = walk.pop()
        step = step or stride
        if stride != step * taken:
            return None
        wanted = extent // taken
        if size > wanted:
            if size % wanted or extent % taken:
                return None
            walk.append((size // wanted, stride * wanted))
            size = wanted
        taken *= size
    return step if taken == extent else None


def _lies_within(type_: MemRefType, start: Linear, sizes: Sequence[int], strides: Sequence[int]) -> bool:
    values, whole = start.values(), walked(type_, (), ())
    if values is None or whole is None or any(stride < 0 for stride in strides):
        return False
    return values[0] >= 0 and values[1] + _reach(sizes, strides) <= _reach(*whole)


def _reach(sizes: Sequence[int], strides: Sequence[int]) -> int:
    return sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
