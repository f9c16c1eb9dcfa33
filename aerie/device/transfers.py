"""The transfers of a program: the memref, sizes and strides of each side, and what runs in parallel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import memref
from xdsl.dialects.builtin import FixedBitwidthType, IndexType, MemRefType, VectorType
from xdsl.ir import Attribute, Operation, SSAValue

from aerie.air_dialect.index_constants import NUMBERS, constant_int
from aerie.air_dialect.index_expressions import iteration_range
from aerie.air_dialect.ops import (
    ChannelPutOp,
    ChannelTransferOp,
    DmaMemcpyNdOp,
    HierarchyOp,
    memory_space,
)
from aerie.air_dialect.values import root_value

LEVELS = (0, 1, 2)
"""The memories of an NPU: L3, L2 and L1."""


@dataclass(frozen=True)
class TransferSide:
    """One side of a transfer. Sizes and strides in elements, outermost first; None if not constant.

    reads: data leaves this memref. bits: of one element. offsets: the values of the offsets.
    other: the memref at the far end; None for a channel.
    """

    op: Operation
    memref: SSAValue
    type: MemRefType[Attribute]
    space: int
    bits: int
    reads: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    offsets: tuple[SSAValue, ...]
    other: SSAValue | None

    @property
    def known_dims(self) -> list[tuple[int, int]] | None:
        """(size, stride) of each dimension, None where any of them is no constant."""
        pairs = zip(self.sizes, self.strides, strict=True)
        dims = [(size, stride) for size, stride in pairs if size is not None and stride is not None]
        return dims if len(dims) == len(self.sizes) else None

    @property
    def channel(self) -> str | None:
        """The name of the channel it goes over, None for a DMA."""
        return self.op.chan_name if isinstance(self.op, ChannelTransferOp) else None


def element_bits(type_: Attribute) -> int | None:
    """Bits of one element of a memref; an index counts as 64. None for what has no fixed width."""
    if not isinstance(type_, MemRefType):
        return None
    element = type_.element_type
    if isinstance(element, IndexType):
        return 64
    if isinstance(element, FixedBitwidthType) and not isinstance(element, VectorType):
        return element.bitwidth
    return None


def memref_bytes(type_: Attribute) -> int | None:
    """Bytes of a whole memref; None where its shape is known only at run time, or its elements are odd."""
    bits = element_bits(type_)
    if not isinstance(type_, MemRefType) or bits is None or min(type_.get_shape(), default=1) < 0:
        return None
    return -(-math.prod(type_.get_shape()) * bits // 8)


def allocated_bytes(buffer: SSAValue) -> int | None:
    """Bytes of a buffer. Constant operands give the sizes that the type leaves open; None if unknown."""
    op, type_ = buffer.owner, buffer.type
    if not isinstance(op, memref.AllocOp) or not isinstance(type_, MemRefType) or not op.dynamic_sizes:
        return memref_bytes(type_)
    dynamic = iter([constant_int(size) for size in op.dynamic_sizes])
    shape = [next(dynamic, None) if extent < 0 else extent for extent in type_.get_shape()]
    known = [extent for extent in shape if extent is not None]
    if len(known) < len(shape) or min(known, default=1) < 0:
        return None
    return memref_bytes(MemRefType(type_.element_type, known))


def space_of(type_: Attribute) -> int | None:
    """0, 1 or 2 for L3, L2 and L1; None for a memory that no NPU has."""
    try:
        space = memory_space(type_)
    except ValueError:
        return None
    return space if space in LEVELS else None


def transfer_sides(op: Operation) -> tuple[TransferSide, ...]:
    """The memrefs that a transfer walks; empty for other operations, without those that cannot be read."""
    if isinstance(op, DmaMemcpyNdOp):
        both: tuple[TransferSide | None, ...] = (
            _side(op, op.src, True, (op.src_offsets, op.src_sizes, op.src_strides), op.dst),
            _side(op, op.dst, False, (op.dst_offsets, op.dst_sizes, op.dst_strides), op.src),
        )
    elif isinstance(op, ChannelTransferOp):
        lists = (op.offsets, op.sizes, op.strides)
        both = (_side(op, op.memref, isinstance(op, ChannelPutOp), lists, None),)
    else:
        return ()
    return tuple(side for side in both if side is not None)


def _side(
    op: Operation,
    memref_: SSAValue,
    reads: bool,
    lists: tuple[Sequence[SSAValue], Sequence[SSAValue], Sequence[SSAValue]],
    other: SSAValue | None,
) -> TransferSide | None:
    type_, space, bits = memref_.type, space_of(memref_.type), element_bits(memref_.type)
    if not isinstance(type_, MemRefType) or space is None or bits is None:
        return None
    offsets, sizes, strides = lists
    extents: tuple[int | None, ...] = tuple(constant_int(value) for value in sizes)
    steps: tuple[int | None, ...] = tuple(constant_int(value) for value in strides)
    if not extents:
        extents, steps = _dense_walk(type_)
    return TransferSide(op, memref_, type_, space, bits, reads, extents, steps, tuple(offsets), other)


def _dense_walk(type_: MemRefType[Attribute]) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """Sizes and strides of a memref walked in order."""
    extents = tuple(extent if extent >= 0 else None for extent in type_.get_shape())
    strides = type_.get_strides()
    return extents, tuple(strides) if strides is not None else (None,) * len(extents)


# ---- what runs side by side ----


def extents(op: HierarchyOp) -> tuple[int, ...]:
    """The extents of an iteration space; 1 for one that is not constant."""
    return tuple(1 if (size := constant_int(value)) is None else size for value in op.sizes)


def extent_of(leaf: SSAValue) -> int:
    """The number of values of an index in parallel, over tile ids, unrolled segments and parallel loops; 1
    for any other index."""
    values = parallel_range(leaf)
    return 1 if values is None else max(1, length(values))


def length(values: range) -> int:
    """The length of a range; `len` refuses more than a machine word counts."""
    return max(0, -(-(values.stop - values.start) // values.step))


def parallel_range(value: SSAValue) -> range | None:
    """The values of an index that run in parallel; None if they are unknown or sequential."""
    known = constant_int(value)
    if known is not None:
        return range(known, known + 1)
    space = iteration_range(root_value(value))
    if space is None or not space.parallel:
        return None
    low, high, step = (NUMBERS.analyze_term(bound) for bound in space[:3])
    return None if low is None or high is None or step is None or step < 1 else range(low, high, step)
