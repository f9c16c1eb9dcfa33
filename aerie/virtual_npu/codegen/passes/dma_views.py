"""Buffers that hold only the data of a DMA: views of the DMA's source.

Where a nest copies a piece of a buffer into another one and only reads it there, reading the source in
its place gives the same. The source may be such a buffer again: L1 shows a piece of L2, that a piece of L3.
This is so when

- the DMA writes all of the buffer, in its order, without padding, and lies within its source (else it would
  end the run with a message);
- every other use of the buffer is a read in the nest, after the DMA in its block or deeper, or its
  deallocation, so that each read sees what the last DMA brought;
- nothing in the nest writes the source: the caller sees to that (products.py);
- each dimension of the buffer walks the source in steps of one length.

Between the DMA and the reads, one function in C++ may have rearranged the buffer (`RearrangingCall`). What
it does to the buffer is found out when the program runs (vnpu/rearranged.h). Or a function may have made
what is read, out of such a buffer (vnpu/made.h).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects import func
from xdsl.dialects.builtin import BFloat16Type, MemRefType, i8
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from aerie.air_dialect.index_intervals import interval
from aerie.air_dialect.linear_forms import LinearForm, linear_form, weighted_sum
from aerie.air_dialect.ops import DmaMemcpyNdOp, HerdOp
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.passes.loops import LoopNest


@dataclass(frozen=True)
class RearrangingCall:
    """A call of a function in C++ that has a buffer as its only argument, and the buffer's extents.

    Or one that makes a buffer of `made` elements out of this one, of bytes, and an integer (`argument`).
    """

    op: func.CallOp
    shape: tuple[int, ...]
    argument: LinearForm | None = None
    made: int = 0


@dataclass(frozen=True)
class SourceView:
    """A memref seen as part of another: where in `memref` its first element lies, and the step of each
    dimension in that memref.

    With a call that rearranges it, that is how the buffer was filled, before the function rearranged it.
    """

    memref: SSAValue
    start: LinearForm
    steps: tuple[int, ...]
    rearranged_by: RearrangingCall | None = None


class SourceViews:
    """The windows that the buffers are which a nest reads."""

    def __init__(self, nest: LoopNest) -> None:
        self.nest = nest
        self.covered_ops: list[Operation] = []
        """The DMAs and calls that the windows which were asked for stand for."""

    def view_of(self, memref: SSAValue, reader: Operation) -> SourceView | None:
        """The window that an operation of the nest reads through a memref; None if it is unknown.

        A buffer that a DMA in the nest fills is a window on the source of the DMA, any other one on itself.
        """
        buffer = self.nest.outer_value(memref)
        fills = [fill for fill in self.nest.fills if self.nest.outer_value(fill.dst) is buffer]
        if not fills:
            return self._made(buffer, reader) or identity_view(buffer)
        calls = [call for call in self.nest.calls if buffer in map(self.nest.outer_value, call.arguments)]
        order = [fills[0], *calls, reader]
        if len(fills) > 1 or len(calls) > 1 or not all(map(_precedes, order, order[1:])):
            return None
        if not self._is_only_read(buffer, fills[0], calls):
            return None
        source = self._on_source(fills[0])
        self.covered_ops += [fills[0], *calls]
        return self._rearranged(source, fills[0], calls) if calls and source is not None else source

    def _made(self, buffer: SSAValue, reader: Operation) -> SourceView | None:
        """What a function makes a buffer of, if that is a window; None if no function makes it."""
        calls = [call for call in self.nest.calls if buffer in map(self.nest.outer_value, call.arguments)]
        if len(calls) != 1 or not _precedes(calls[0], reader):
            return None
        (call,) = calls
        types_ = [value.type for value in call.operands]
        is_made = len(types_) == 3 and self.nest.outer_value(call.operands[2]) is buffer and not call.results
        if not is_made or not _is_buffer(types_[2], BFloat16Type()) or not _is_buffer(types_[1], i8):
            return None
        source = self.nest.outer_value(call.operands[1])
        fills = [fill for fill in self.nest.fills if self.nest.outer_value(fill.dst) is source]
        argument = self.nest.resolve(linear_form(call.operands[0]))
        if len(fills) != 1 or not _precedes(fills[0], call) or argument is None:
            return None
        if not all(self._is_only_read(each, fills[0], calls) for each in (source, buffer)):
            return None
        view = self._on_source(fills[0])
        if view is None or view.rearranged_by is not None:
            return None
        self.covered_ops += [fills[0], call]
        shapes = [type_.get_shape() for type_ in types_[1:] if isinstance(type_, MemRefType)]
        making = RearrangingCall(call, tuple(shapes[0]), argument, prod(shapes[1]))
        return replace(view, rearranged_by=making)

    def _is_only_read(self, buffer: SSAValue, fill: Operation, calls: Sequence[Operation]) -> bool:
        """Whether a buffer is allocated, and but for the DMA and the calls only read, in the nest."""
        if not isinstance(buffer, OpResult) or buffer.op.name != "memref.alloc":
            return False
        return all(
            op is fill or op in calls or op.name == "memref.dealloc" or self._reads(op, value)
            for op, value in self._uses(buffer)
        )

    def _uses(self, value: SSAValue) -> Iterator[tuple[Operation, SSAValue]]:
        """Every operation that uses a buffer, also where a herd of the nest captures it, and as what."""
        for use in value.uses:
            herd = use.operation
            if isinstance(herd, HerdOp) and herd in self.nest.ops:
                pairs = zip(herd.kernel_args, herd.kernel_operands, strict=True)
                for argument in [inner for inner, operand in pairs if operand is value]:
                    yield from self._uses(argument)
            else:
                yield herd, value

    def _reads(self, op: Operation, value: SSAValue) -> bool:
        if isinstance(op, DmaMemcpyNdOp):
            return op in self.nest.fills and op.dst is not value
        return op.name in READS and op in self.nest.inside

    def _on_source(self, dma: DmaMemcpyNdOp) -> SourceView | None:
        assert isinstance(dma.dst.type, MemRefType)
        assert isinstance(dma.src.type, MemRefType)
        if dma.async_token is not None or dma.async_dependencies or dma.pad_before or dma.pad_after:
            return None
        walk = walk_extents(dma.src.type, dma.src_sizes, dma.src_strides)
        source = self.view_of(dma.src, dma)
        if not writes_whole(dma) or walk is None or source is None or source.rearranged_by is not None:
            return None
        sizes, strides = walk
        steps = refine_strides(dma.dst.type.get_shape(), sizes, strides)
        start = self.nest.resolve(side_offset(strides, dma.src_offsets))
        if steps is None or start is None or not _lies_within(dma.src.type, start, sizes, strides):
            return None
        if source.memref is self.nest.outer_value(dma.src):
            return SourceView(source.memref, start, steps)
        return _through(source, dma.src.type, start, dma.dst.type.get_shape(), steps)

    def _rearranged(
        self, view: SourceView, fill: DmaMemcpyNdOp, calls: Sequence[func.CallOp]
    ) -> SourceView | None:
        (call,) = calls
        assert isinstance(fill.dst.type, MemRefType)
        shape = tuple(fill.dst.type.get_shape())
        is_plain = len(call.operands) == 1 and not call.results and call.parent is fill.parent
        if not is_plain or not isinstance(fill.dst.type.element_type, BFloat16Type):
            return None
        return replace(view, rearranged_by=RearrangingCall(call, shape))


READS = ("vector.transfer_read", "vector.load")


def _is_buffer(type_: Attribute, element: Attribute) -> bool:
    return isinstance(type_, MemRefType) and type_.element_type == element


def identity_view(buffer: SSAValue) -> SourceView | None:
    """A memref as a window on itself; None where its layout is not known."""
    assert isinstance(buffer.type, MemRefType)
    steps = types.memref_strides(buffer.type)
    return None if types.DYNAMIC in steps else SourceView(buffer, LinearForm(), tuple(steps))


def _precedes(first: Operation, second: Operation) -> bool:
    """Whether an operation stands before another one in its block, or before one around that."""
    around: Operation | None = second
    while around is not None and around.parent is not first.parent:
        around = around.parent_op()
    return around is not None and around is not first and first.is_before_in_block(around)


def _through(
    source: SourceView, type_: MemRefType, start: LinearForm, shape: Sequence[int], steps: Sequence[int]
) -> SourceView | None:
    """A walk over a buffer, of dense `type_`, that is itself a window: as a walk over what it looks at.

    A step in the buffer is so many steps of each of its dimensions. None where these add up to more than a
    dimension has, so that one would go over into the next.
    """
    strides, extents = types.row_major(type_.get_shape()), type_.get_shape()
    walks = [(start.constant, 1), *((step, extent - 1) for step, extent in zip(steps, shape, strict=True))]
    for value, factor in start.terms.items():
        known = interval(value)
        if known is None or known[0] < 0:
            return None
        walks.append((factor, known[1]))
    if any(step < 0 for step, _ in walks):
        return None
    parts = [[part * most for part in _in_dimensions(step, strides)] for step, most in walks]
    if any(sum(most) >= extent for most, extent in zip(zip(*parts, strict=True), extents, strict=True)):
        return None

    def in_source(step: int) -> int:
        return sum(n * far for n, far in zip(_in_dimensions(step, strides), source.steps, strict=True))

    moved = {value: in_source(factor) for value, factor in start.terms.items() if in_source(factor)}
    first = source.start.plus(LinearForm(in_source(start.constant), moved))
    return SourceView(source.memref, first, tuple(in_source(step) for step in steps))


def _in_dimensions(step: int, strides: Sequence[int]) -> list[int]:
    """How many steps of each dimension a step in a dense buffer is."""
    parts = []
    for stride in strides:
        parts.append(step // stride)
        step %= stride
    return parts


def writes_whole(dma: DmaMemcpyNdOp) -> bool:
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


def walk_extents(
    type_: MemRefType, sizes: Sequence[SSAValue], strides: Sequence[SSAValue]
) -> tuple[list[int], list[int]] | None:
    """The extents and steps of one side of a DMA, None where they are not constant; without lists, those of
    all of its memref."""
    if not sizes:
        steps = types.memref_strides(type_)
        known = types.DYNAMIC not in (*type_.get_shape(), *steps)
        return (list(type_.get_shape()), steps) if known else None
    extents, found = _constants(sizes), _constants(strides)
    return None if extents is None or found is None else (extents, found)


def side_offset(strides: Sequence[int], offsets: Sequence[SSAValue]) -> LinearForm:
    """Where one side of a DMA begins, in elements."""
    return weighted_sum(offsets, strides[len(strides) - len(offsets) :])


def _constants(values: Sequence[SSAValue]) -> list[int] | None:
    intervals = [interval(value) for value in values]
    known = [one[0] for one in intervals if one is not None and one[0] == one[1]]
    return known if len(known) == len(intervals) else None


def refine_strides(
    shape: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
) -> tuple[int, ...] | None:
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
        missing = extent // taken
        if size > missing:
            if size % missing or extent % taken:
                return None
            walk.append((size // missing, stride * missing))
            size = missing
        taken *= size
    return step if taken == extent else None


def _lies_within(type_: MemRefType, start: LinearForm, sizes: Sequence[int], strides: Sequence[int]) -> bool:
    values, whole = start.values(), walk_extents(type_, (), ())
    if values is None or whole is None or any(stride < 0 for stride in strides):
        return False
    return values[0] >= 0 and values[1] + _reach(sizes, strides) <= _reach(*whole)


def _reach(sizes: Sequence[int], strides: Sequence[int]) -> int:
    return sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
