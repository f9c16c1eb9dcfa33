"""Vectors that do not begin where the core's loads and stores begin: it drops the low bits of an address.

aiecc takes the alignment out of the LLVM IR that it gives Peano (mlir-aie 7e00b579, aiecc's IRTransforms.h,
`downgradeIRForPeano`), so Peano takes every vector for aligned to its own width. Of those that are not,
mlir-aie mends one kind: a vector.transfer_read of 512 bits at a constant that is no multiple of 32 bytes, of
its memref or through a view. It becomes an aligned read of twice the width and an `aievec.shift`, which has
a lowering for 512 bits alone (AIEVecToLLVM.cpp): other widths are refused. A core does not trap: upstream
lost eight floats of an accumulator that lay 32 bytes off (mlir-air, DFlashFeasibility.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from xdsl.dialects import memref, vector
from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType, VectorType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr

from aerie.air_dialect.effects import VIEWS
from aerie.air_dialect.index_constants import constant_int
from aerie.air_dialect.index_divisors import is_affine_index, known_divisor
from aerie.air_dialect.ops import HerdOp
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.values import resolve_alias, root_value
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.l1_placement import misaligned_buffers
from aerie.device.npu2 import ALIGN_STRIPPED, BUFFER_ADDRESSES, SHIFT_LOWERING, SHIFTS, DeviceModel
from aerie.device.report import Fault, Finding
from aerie.device.scopes import ArrayConfiguration, CheckedProgram, op_location
from aerie.device.transfers import element_bits, space_of

SHIFTED_BITS, SHIFT_GRANULE = 512, 256
"""The vectors that mlir-aie can shift, and what it takes for aligned, in bits."""


SAME_BEGIN = frozenset(
    {"memref.cast", "memref.collapse_shape", "memref.expand_shape", "memref.memory_space_cast"}
)
"""Views that begin where their source does."""


@dataclass(frozen=True)
class VectorAccess:
    """A vector that a core reads from L1 or writes to it.

    bits: of the whole vector; lane_bits: of one element; width: the bytes that it must be aligned to.
    """

    op: Operation
    base: SSAValue
    type: MemRefType[Attribute]
    indices: tuple[SSAValue, ...]
    bits: int
    lane_bits: int
    lanes: int
    width: int

    @property
    def reads(self) -> bool:
        """Whether it is a load."""
        return isinstance(self.op, vector.LoadOp | vector.TransferReadOp)

    @property
    def strides(self) -> list[int | None] | None:
        """Bytes from one index to the next, per dimension; None where nothing is known."""
        found = self.type.get_strides()
        return None if found is None else [step and step * self.lane_bits // 8 for step in found]

    @property
    def offset(self) -> int | None:
        """The byte of the buffer at which it begins; None where that is no constant."""
        numbers = [constant_int(index) for index in self.indices]
        strides, view = self.strides, view_begin(self.base)
        if strides is None or view is None or None in numbers or None in strides:
            return None
        begin = view.elements * self.lane_bits // 8
        return begin + sum((n or 0) * (step or 0) for n, step in zip(numbers, strides, strict=True))

    @property
    def is_shifted(self) -> bool:
        """Whether mlir-aie reads twice as much from an aligned place on, and shifts: the innermost index with
        those of views is a constant, and in a vector's length no multiple of 32 bytes."""
        last, view = constant_int(self.indices[-1]) if self.indices else None, view_begin(self.base)
        if not isinstance(self.op, vector.TransferReadOp) or last is None or view is None:
            return False
        if isinstance(self.op.permutation_map.data.results[0], AffineConstantExpr):
            return False  # one element to all lanes
        return (last + view.innermost) % self.lanes * self.lane_bits % SHIFT_GRANULE != 0


class ViewBegin(NamedTuple):
    """Where a view begins in its buffer: in elements, and along the innermost dimension alone."""

    elements: int
    innermost: int


def view_begin(value: SSAValue) -> ViewBegin | None:
    """Where a value begins in the buffer that it is a view of; None where that is no constant."""
    elements = innermost = 0
    while True:
        owner, source = value.owner, resolve_alias(value)
        if isinstance(owner, memref.SubviewOp) and isinstance(owner.source.type, MemRefType):
            strides = owner.source.type.get_strides()
            given = iter([constant_int(offset) for offset in owner.offsets])
            offsets = [
                next(given) if offset == DYNAMIC_INDEX else offset
                for offset in owner.static_offsets.get_values()
            ]
            if strides is None or None in strides or None in offsets:
                return None
            elements += sum((at or 0) * (step or 0) for at, step in zip(offsets, strides, strict=True))
            innermost += offsets[-1] or 0 if offsets else 0
            source = owner.source
        elif isinstance(owner, Operation) and owner.name in VIEWS:
            if owner.name not in SAME_BEGIN:
                return None
            source = owner.operands[0]
        if source is None:
            return ViewBegin(elements, innermost)
        value = source


def vector_access(op: Operation, device: DeviceModel) -> VectorAccess | None:
    """The vector access that an operation is; None for others, and for widths that are not native."""
    if isinstance(op, vector.LoadOp | vector.StoreOp):
        base, kind = op.base, (op.result if isinstance(op, vector.LoadOp) else op.vector).type
    elif isinstance(op, vector.TransferReadOp | vector.TransferWriteOp):
        base, kind = op.source, (op.result if isinstance(op, vector.TransferReadOp) else op.vector).type
    else:
        return None
    bits = element_bits(base.type)
    if not isinstance(base.type, MemRefType) or not isinstance(kind, VectorType) or not bits:
        return None
    total, widest = prod(kind.get_shape()) * bits, device.vector_bytes * 8
    if space_of(base.type) != 2 or (total not in (128, 256) and total % 512):
        return None
    width, lanes = min(total, widest) // 8, kind.get_shape()[-1] if kind.get_shape() else 1
    return VectorAccess(op, base, base.type, tuple(op.indices), total, bits, lanes, width)


def check_vector_alignment(program: CheckedProgram) -> Iterator[Finding]:
    """Vectors at offsets that are no multiple of their width, in a buffer that is aligned to it."""
    for herd in program.module.walk():
        if not isinstance(herd, HerdOp) or any(isinstance(parent, HerdOp) for parent in parent_ops(herd)):
            continue
        for op in herd.walk():
            found = vector_access(op, program.device)
            if found is not None:
                yield from _offsets(found)


def _offsets(access: VectorAccess) -> Iterator[Fault]:
    width, place = access.width, op_location(access.op)
    moved = f"{min(access.bits // 8, width) * 8} bits"
    if access.offset is not None and access.is_shifted:
        yield _shifted(access)
        return
    if access.offset is not None and access.offset % width:
        off = access.offset % width
        message = f"{moved} at byte {access.offset} of its memref; {masked_address_message(access, off)}"
        yield Fault("misaligned", place, message, ALIGN_STRIPPED, access.op)
        return
    odd = _odd_step(access)
    if odd is not None and access.offset is None and all(map(is_affine_index, access.indices)):
        message = f"{moved} at steps of {odd} bytes; {masked_address_message(access, None)}"
        yield Fault("misaligned", place, message, ALIGN_STRIPPED, access.op, certain=False)


def _shifted(access: VectorAccess) -> Fault:
    lowers = access.bits == SHIFTED_BITS
    message = f"{access.bits} bits at byte {access.offset}; the compiler reads twice as much and shifts"
    if not lowers:
        message += (
            f", which has a lowering (aievec.shift) for {SHIFTED_BITS} bits alone; begin at a multiple of "
            f"{SHIFT_GRANULE // 8} bytes, or read {SHIFTED_BITS} bits"
        )
    place, source = op_location(access.op), SHIFTS if lowers else SHIFT_LOWERING
    return Fault("vector-alignment", place, message, source, access.op, certain=not lowers)


def masked_address_message(access: VectorAccess, off: int | None) -> str:
    """What the core makes of an access that is `off` bytes off."""
    verb = "reads" if access.reads else "writes"
    lower = "what lies lower" if off is None else f"{off} bytes lower"
    return (
        f"a core drops the low bits of an address, so it {verb} {lower}; vectors of {access.width * 8} bits "
        f"begin at multiples of {access.width} bytes, so move by whole vectors"
    )


def _odd_step(access: VectorAccess) -> int | None:
    """The bytes of a step that leaves multiples of the width."""
    steps = zip(map(known_divisor, access.indices), access.strides or (), strict=False)
    sizes = [step * stride for step, stride in steps if stride is not None]
    return next((size for size in sizes if size % access.width), None)


# ---- buffers that the compiler puts at odd places ----


def check_buffer_alignment(scope: ArrayConfiguration) -> Iterator[Finding]:
    """L1 buffers that come to lie where a vector of 512 bits cannot begin, and are accessed by such.

    Not by functions in C++, whose vectors are not known here: checks at run see them.
    """
    if scope.device.vector_bytes <= scope.device.bus_bytes:
        return
    for herds in scope.herds.values():
        found = misaligned_buffers(scope, herds)
        if not found:
            continue
        wide = {buffer: op for herd in herds for op, buffer in _widest(herd, scope.device)}
        for buffer, address in found.items():
            if buffer in wide:
                message, op = _misplaced(buffer, address, scope.device), wide[buffer]
                yield Fault("misaligned", op_location(op), message, BUFFER_ADDRESSES, op)


def _widest(herd: HerdOp, device: DeviceModel) -> Iterator[tuple[Operation, SSAValue]]:
    """Accesses of the core's widest vectors, each with the buffer it is of."""
    for op in herd.walk():
        access = vector_access(op, device)
        if access is not None and access.width == device.vector_bytes:
            yield op, root_value(access.base)


def _misplaced(buffer: SSAValue, address: int, device: DeviceModel) -> str:
    name = f"%{buffer.name_hint} " if buffer.name_hint else ""
    width = device.vector_bytes
    off = address % width
    return (
        f"{name}({attribute_text(buffer.type)}) comes to byte {address} of a core's L1, {off} behind a "
        f"multiple of {width}: buffers are aligned to {device.bus_bytes} bytes, and a core drops the low "
        f"bits of an address, so vectors of {width * 8} bits are read and written {off} bytes lower; give L1 "
        f"buffers sizes that are multiples of {width} bytes"
    )
