"""Reading access patterns back out of AIR: where a memref comes from, and how a transfer walks it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects import affine, arith, memref, scf
from xdsl.dialects.builtin import FixedBitwidthType, IndexType, IntegerAttr, MemRefType, UnrankedMemRefType
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineSymExpr,
)

from air_dialect.ops import ChannelGetOp, ChannelPutOp, DmaMemcpyNdOp, ExecuteOp, HierarchyOp, memory_space
from virtual_npu.errors import ResourceError
from virtual_npu.static.device import DmaLimits


@dataclass(frozen=True)
class Side:
    """One side of a transfer. Extents in elements, outermost first; None where not a constant.

    `reads` tells whether data leaves this memref; `other` is the memory space at the far end, None for a
    channel; `offsets` are the values that offsets are computed from.
    """

    op: Operation
    memref: SSAValue
    reads: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    offsets: tuple[SSAValue, ...]
    other: int | None

    @property
    def type(self) -> MemRefType[Attribute]:
        assert isinstance(self.memref.type, MemRefType)
        return self.memref.type

    @property
    def space(self) -> int:
        return space_of(self.type)

    @property
    def width(self) -> int:
        """Bytes of one element."""
        return element_bytes(self.type)


def element_bytes(type_: MemRefType[Attribute]) -> int:
    """Bytes of one element of a memref; an index counts as 8. ResourceError where a DMA could not move it."""
    element = type_.element_type
    if isinstance(element, IndexType):
        return 8
    if not isinstance(element, FixedBitwidthType):
        raise ResourceError(f"{type_} holds {element}, which no DMA can move; use integers or floats")
    return element.size


def memref_bytes(type_: Attribute) -> int:
    """Bytes of a whole memref; ResourceError where its shape is known only at run time."""
    if not isinstance(type_, MemRefType) or min(type_.get_shape(), default=1) < 0:
        raise ResourceError(
            f"{type_} has a size known only at run time; memory of the array is laid out before"
        )
    return math.prod(type_.get_shape()) * element_bytes(type_)


def space_of(type_: Attribute) -> int:
    """0, 1 or 2 for L3, L2 and L1; ResourceError for a memory that this device does not have."""
    try:
        space = memory_space(type_)
    except ValueError as error:
        raise ResourceError(str(error)) from error
    if space not in (0, 1, 2):
        raise ResourceError(f"{type_} is in memory {space}; there are L3 (0 or none), L2 (1) and L1 (2)")
    return space


def sides(op: Operation) -> tuple[Side, ...]:
    """The memrefs that a transfer operation walks; empty for any other operation."""
    if not isinstance(op, DmaMemcpyNdOp | ChannelPutOp | ChannelGetOp):
        return ()
    if any(isinstance(operand.type, UnrankedMemRefType) for operand in op.operands):
        raise ResourceError(f"{op.name} moves a memref of unknown rank; give it a shape")
    if isinstance(op, DmaMemcpyNdOp):
        to, start = space_of(op.dst.type), space_of(op.src.type)
        return (
            _side(op, op.src, True, op.src_offsets, op.src_sizes, op.src_strides, to),
            _side(op, op.dst, False, op.dst_offsets, op.dst_sizes, op.dst_strides, start),
        )
    reads = isinstance(op, ChannelPutOp)
    return (_side(op, op.memref, reads, op.offsets, op.sizes, op.strides, None),)


def _side(
    op: Operation,
    memref_: SSAValue,
    reads: bool,
    offsets: Sequence[SSAValue],
    sizes: Sequence[SSAValue],
    strides: Sequence[SSAValue],
    other: int | None,
) -> Side:
    extents: tuple[int | None, ...] = tuple(constant(value) for value in sizes)
    steps: tuple[int | None, ...] = tuple(constant(value) for value in strides)
    if not extents:
        assert isinstance(memref_.type, MemRefType)
        shape = memref_.type.get_shape()
        extents = tuple(extent if extent >= 0 else None for extent in shape)
        steps = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return Side(op, memref_, reads, extents, steps, tuple(offsets), other)


def origin(value: SSAValue) -> SSAValue:
    """Where a value was made: through `args(...)` of hierarchies and results of `air.execute`."""
    while True:
        source = _one_step(value)
        if source is None:
            return value
        value = source


def _one_step(value: SSAValue) -> SSAValue | None:
    owner = value.owner
    if isinstance(owner, Block):
        parent = owner.parent_op()
        if isinstance(parent, HierarchyOp) and isinstance(value, BlockArgument):
            place = value.index - 2 * len(parent.sizes)
            return parent.kernel_operands[place] if place >= 0 else None
        return None
    if isinstance(owner, ExecuteOp) and isinstance(value, OpResult) and value.index > 0:
        terminator = owner.regions[0].block.last_op
        assert terminator is not None
        return terminator.operands[value.index - 1]
    if isinstance(owner, memref.SubviewOp | memref.CastOp):
        return owner.source
    return None


def constant(value: SSAValue) -> int | None:
    """The integer a value is known to be, else None."""
    owner = origin(value).owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return owner.value.value.data
    return None


def leaves(value: SSAValue) -> Iterator[SSAValue]:
    """The values, none of them constants, that an index is computed from."""
    value = origin(value)
    if isinstance(value.owner, Block):
        yield value
    elif not isinstance(value.owner, arith.ConstantOp):
        for operand in value.owner.operands:
            yield from leaves(operand)


def multiple(value: SSAValue) -> int:
    """The largest number known to divide an index; 0 where it is 0."""
    value = origin(value)
    owner = value.owner
    if isinstance(owner, Block):
        loop = owner.parent_op()
        if isinstance(loop, scf.ForOp) and value is owner.args[0]:
            return math.gcd(multiple(loop.lb), multiple(loop.step))
        return 1
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return abs(owner.value.value.data)
    if isinstance(owner, affine.ApplyOp):
        return _expression_multiple(owner.map.data.results[0], owner.mapOperands, owner.map.data.num_dims)
    if isinstance(owner, arith.MuliOp):
        return multiple(owner.lhs) * multiple(owner.rhs)
    if isinstance(owner, arith.AddiOp | arith.SubiOp):
        return math.gcd(multiple(owner.lhs), multiple(owner.rhs))
    return 1


def _expression_multiple(expression: AffineExpr, operands: Sequence[SSAValue], dims: int) -> int:
    if isinstance(expression, AffineConstantExpr):
        return abs(expression.value)
    if isinstance(expression, AffineDimExpr):
        return multiple(operands[expression.position])
    if isinstance(expression, AffineSymExpr):
        return multiple(operands[dims + expression.position])
    if isinstance(expression, AffineBinaryOpExpr):
        left = _expression_multiple(expression.lhs, operands, dims)
        right = _expression_multiple(expression.rhs, operands, dims)
        if expression.kind is AffineBinaryOpKind.Mul:
            return left * right
        if expression.kind in (AffineBinaryOpKind.Add, AffineBinaryOpKind.Mod):
            return math.gcd(left, right)
    return 1


def descriptor_faults(side: Side, limits: DmaLimits, granule: int) -> list[str]:
    """Why a buffer descriptor cannot walk this side; empty where it can or where extents are not constant.

    The rules are mlir-aie's (`AIEXDialect.cpp` `verifyStridesWraps`, `AIEDialect.cpp` `DMABDOp::verify`),
    read and never checked on hardware: sizes, strides and offsets in whole granules of 4 bytes; innermost
    stride 1 for elements below 4 bytes; one dimension more than `limits.dims`, the iteration.
    """
    if None in side.sizes or None in side.strides:
        return []
    pairs = [(size, stride) for size, stride in zip(side.sizes, side.strides, strict=True) if size != 1]
    dims = _contiguous([(size or 0, stride or 0) for size, stride in pairs])
    return [*_granule_faults(side, dims, granule), *_field_faults(side, dims, limits, granule)]


def _contiguous(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same walk with dimensions that follow on each other merged."""
    merged: list[tuple[int, int]] = []
    for size, stride in dims:
        if merged and merged[-1][1] == size * stride:
            size *= merged.pop()[0]
        merged.append((size, stride))
    return merged


def _granule_faults(side: Side, dims: list[tuple[int, int]], granule: int) -> list[str]:
    width = side.width
    size, stride = dims[-1] if dims else (1, 1)
    faults = []
    if width < granule and stride != 1:
        faults.append(
            f"innermost stride {stride}: elements of {width} bytes move only in runs of stride 1; move "
            "blocks and transpose on the core"
        )
    if stride == 1 and size * width % granule:
        faults.append(
            f"runs of {size * width} bytes, no multiple of {granule}; use an even number of elements"
        )
    if any(stride * width % granule for _, stride in dims[:-1]):
        faults.append(f"a stride that is no multiple of {granule} bytes; use an even number of elements")
    for offset, step in zip(reversed(side.offsets), reversed(side.strides), strict=False):
        if multiple(offset) * (step or 0) * width % granule:
            faults.append(
                f"an offset that may be no multiple of {granule} bytes; use an even number of elements"
            )
    return faults


def _field_faults(side: Side, dims: list[tuple[int, int]], limits: DmaLimits, granule: int) -> list[str]:
    """What does not fit the registers of a descriptor. A run in memory order has no dimensions to hold."""
    width = side.width
    length = math.prod(size for size, _ in dims) * width // granule
    faults = []
    if length > limits.max_length_granules:
        faults.append(
            f"{length * granule} bytes in one transfer; a descriptor holds "
            f"{limits.max_length_granules * granule}"
        )
    if len(dims) <= 1 and (not dims or dims[0][1] == 1):
        return faults
    needed = sum(
        _wraps(size, width if i == len(dims) - 1 else granule, limits, granule)
        for i, (size, _) in enumerate(dims)
    )
    if needed > limits.dims + 1:
        faults.append(
            f"{needed} dimensions after cutting sizes above {limits.max_wrap}; a descriptor walks "
            f"{limits.dims} and one iteration; move less at a time or lay the buffer out differently"
        )
    furthest = max(stride for _, stride in dims) * width // granule
    if furthest > limits.max_stride_granules:
        faults.append(
            f"a stride of {furthest * granule} bytes; a descriptor holds "
            f"{limits.max_stride_granules * granule}"
        )
    return faults


def _wraps(size: int, width: int, limits: DmaLimits, granule: int) -> int:
    """How many dimensions one size takes, given the largest that a register holds."""
    granules = max(1, size * width // granule)
    count = 1
    while granules > limits.max_wrap:
        part = next((d for d in range(limits.max_wrap, 1, -1) if granules % d == 0), None)
        if part is None:
            return limits.dims + 2
        granules //= part
        count += 1
    return count
