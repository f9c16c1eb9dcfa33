"""How a DMA walks memory: sizes, strides, offsets, lengths, padding.

The rules are mlir-aie's, read and never checked on hardware: lengths, strides and offsets in whole granules
of 4 bytes; innermost stride 1 unless elements are of 4 bytes; so many bits for each size and stride.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from xdsl.dialects.builtin import DenseArrayBase, NoneAttr
from xdsl.ir import SSAValue

from aerie.air_dialect.index_constants import constant_int
from aerie.air_dialect.index_divisors import is_affine_index, known_divisor
from aerie.air_dialect.index_intervals import interval
from aerie.air_dialect.ops import (
    ChannelTransferOp,
    DmaMemcpyNdOp,
    memory_space_name,
)
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.values import root_value
from aerie.device.descriptors import Dims, contiguous
from aerie.device.memtile_allocation import allocate_array
from aerie.device.npu2 import (
    ADDRESS_PATCH,
    DESCRIPTOR_FIELDS,
    DESCRIPTOR_RULES,
    LOWERING,
    TASK_QUEUE,
    DeviceModel,
    DmaLimits,
)
from aerie.device.report import Fault, Finding
from aerie.device.scopes import CheckedProgram, op_location
from aerie.device.transfers import TransferSide


class TransferFault(NamedTuple):
    """A fault of one side of a transfer; a warning where it is not certain."""

    kind: str
    message: str
    source: str
    certain: bool = True


SHIM_ELEMENTS = (8, 16, 32)
"""Bits of the elements that airrt-to-npu converts."""
MAX_SIZE = 1023
"""Of any dimension of a descriptor that is not walked in the order of memory."""
MAX_REPEATS = 256
"""The repeat count is an 8-bit field that holds the number of times less one."""


def check_walks(program: CheckedProgram) -> Iterator[Finding]:
    """Transfers that the DMA on one of their sides cannot walk."""
    parts = {part.buffer: part.share for scope in program.scopes for part in allocate_array(scope).parts}
    for side in program.transfers:
        for kind, message, source, certain in _side_faults(side, program.device, parts):
            level, type_ = memory_space_name(side.space), attribute_text(side.type)
            full = f"the {level} side ({type_}) has {message}"
            yield Fault(kind, op_location(side.op), full, source, side.op, certain)


# ---- how each side walks ----


def _side_faults(
    side: TransferSide, device: DeviceModel, parts: Mapping[SSAValue, int]
) -> Iterator[TransferFault]:
    limits: DmaLimits = (device.shim, device.memtile, device.core)[side.space]
    if side.space == 0 and side.bits not in SHIM_ELEMENTS:
        yield TransferFault(
            "element-width",
            f"elements of {side.bits} bits; the shim moves elements of 8, 16 or 32 bits, so move them as i32",
            TASK_QUEUE,
        )
    yield from _padding(side, device)
    if side.space == 0:
        yield from _host_offset(side, device.host_buffer_bytes)
    dims = side.known_dims
    if dims is None:
        return
    odd = list(_signs(dims))
    yield from odd
    if odd:
        return
    yield from _bounds(side, dims)
    dims, repeats = _without_repeats(dims)
    yield from _repeats(side, dims, repeats)
    dims = contiguous(dims)
    yield from _granules(side, dims, device.granule_bytes * 8)
    share = parts.get(root_value(side.memref), 1)
    yield from _length(side, dims, limits, device.granule_bytes * 8, share)
    yield from _fields(side, dims, repeats, limits, device.granule_bytes * 8)


def _host_offset(side: TransferSide, limit: int) -> Iterator[TransferFault]:
    """Where in a host buffer a transfer begins, at the most; an offset that is not known counts as 0."""
    pairs = zip(reversed(side.offsets), reversed(side.strides), strict=False)
    furthest = sum(_most(offset) * (stride or 0) for offset, stride in pairs) * side.bits // 8
    if furthest >= limit:
        yield TransferFault(
            "host-offset",
            f"an offset of up to {furthest} bytes; a shim's descriptor is given the offset in 32 bits, so it "
            f"would begin at byte {furthest % limit}; offsets end below {limit}, so put the rest "
            "into another argument",
            ADDRESS_PATCH,
        )


def _most(value: SSAValue) -> int:
    """The largest number that an index takes, 0 where that is not known."""
    found = interval(value)
    return 0 if found is None else found[1]


def _signs(dims: Dims) -> Iterator[TransferFault]:
    for place, (size, stride) in enumerate(dims):
        if size < 1:
            yield TransferFault(
                "size",
                f"size {size} in dimension {place}; a transfer needs at least one element, so "
                "make every size at least 1",
                DESCRIPTOR_FIELDS,
            )
        if stride < 0:
            yield TransferFault(
                "stride",
                f"stride {stride} in dimension {place}; a DMA walks upwards only, so turn the order around "
                "on the core",
                DESCRIPTOR_FIELDS,
            )


def _bounds(side: TransferSide, dims: Dims) -> Iterator[TransferFault]:
    """Only where the memref has no layout of its own; an offset that is not constant counts as 0."""
    shape = side.type.get_shape()
    if not isinstance(side.type.layout, NoneAttr) or min(shape, default=1) < 0:
        return
    offsets = [constant_int(value) or 0 for value in side.offsets]
    starts = [0] * (len(dims) - len(offsets)) + offsets
    last = sum((start + size - 1) * stride for start, (size, stride) in zip(starts, dims, strict=False))
    elements = math.prod(shape)
    if last >= elements:
        yield TransferFault(
            "bounds",
            f"a walk that reaches element {last} of {elements}; make offsets, sizes or strides smaller",
            DESCRIPTOR_RULES,
        )


def _without_repeats(dims: Dims) -> tuple[Dims, int]:
    """The walk without leading dimensions of stride 0, and how often they repeat it."""
    repeats = 1
    while len(dims) > 1 and (dims[0][1] == 0 or dims[0][0] == 1):
        repeats *= dims[0][0] if dims[0][1] == 0 else 1
        dims = dims[1:]
    return dims, repeats


def _repeats(side: TransferSide, dims: Dims, repeats: int) -> Iterator[TransferFault]:
    if repeats > MAX_REPEATS:
        yield TransferFault(
            "repeat",
            f"a walk that repeats {repeats} times; a repeat count of 8 bits allows {MAX_REPEATS}, so move it "
            "in parts",
            TASK_QUEUE,
            certain=side.space == 0,
        )
    still = [size for size, stride in dims if stride == 0 and size > 1]
    if still and (side.space != 0 or dims[-1][1] == 0):
        yield TransferFault(
            "stride",
            f"stride 0 over {still[0]} elements; only the outermost dimension can repeat, so put it there",
            DESCRIPTOR_FIELDS,
        )


def _granules(side: TransferSide, dims: Dims, granule: int) -> Iterator[TransferFault]:
    bits = side.bits
    size, stride = dims[-1] if dims else (1, 1)
    whole = "use an even number of elements" if bits == 16 else f"use a multiple of {granule // 8} bytes"
    if bits != granule and stride != 1:
        yield TransferFault(
            "innermost-stride",
            f"innermost stride {stride}: elements of {bits} bits move only in runs of stride 1; move blocks "
            "and transpose on the core",
            DESCRIPTOR_RULES,
        )
    if stride == 1 and size * bits % granule:
        message = f"runs of {_bytes(size * bits)}, no multiple of {granule // 8}; {whole}"
        yield TransferFault("granule", message, DESCRIPTOR_FIELDS)
    odd = [step for _, step in dims[:-1] if step * bits % granule]
    if odd:
        message = f"a stride of {_bytes(odd[0] * bits)}, no multiple of {granule // 8} bytes; {whole}"
        yield TransferFault("granule", message, DESCRIPTOR_FIELDS)
    for offset, step in zip(reversed(side.offsets), reversed(side.strides), strict=False):
        if known_divisor(offset) * (step or 0) * bits % granule:
            message = f"an offset that may be no multiple of {granule // 8} bytes; {whole}"
            yield TransferFault("alignment", message, DESCRIPTOR_RULES, is_affine_index(offset))


def _bytes(bits: int) -> str:
    return f"{bits // 8} bytes" if bits % 8 == 0 else f"{bits} bits"


def _length(
    side: TransferSide, dims: Dims, limits: DmaLimits, granule: int, parts: int
) -> Iterator[TransferFault]:
    """parts: how many an L2 buffer is cut into; a transfer of all of it is one of each part."""
    length = math.prod(size for size, _ in dims) * side.bits // granule // parts
    if length > limits.max_length_granules:
        yield TransferFault(
            "length",
            f"{length * granule // 8} bytes in one transfer; a descriptor holds "
            f"{limits.max_length_granules * granule // 8}, so move it in parts",
            DESCRIPTOR_FIELDS,
        )


def _fields(
    side: TransferSide, dims: Dims, repeats: int, limits: DmaLimits, granule: int
) -> Iterator[TransferFault]:
    """Sizes and strides that a descriptor does not hold. A run in memory order has none."""
    if len(dims) <= 1 and (not dims or dims[0][1] == 1):
        return
    if side.space != 0:
        yield from _sizes(dims)
    needed = sum(_cut(side, dims, limits, granule))
    if side.space == 0:
        yield from _task_dimensions(len(dims) + (repeats > 1), needed + (repeats > 1), dims, limits)
    else:
        yield from _dimensions(len(dims), needed, limits)
    furthest = max(stride for _, stride in dims) * side.bits // granule
    if furthest > limits.max_stride_granules:
        yield TransferFault(
            "stride",
            f"a stride of {furthest * granule // 8} bytes; a descriptor holds "
            f"{limits.max_stride_granules * granule // 8}, so lay the buffer out differently",
            DESCRIPTOR_FIELDS,
        )


def _sizes(dims: Dims) -> Iterator[TransferFault]:
    """Sizes that mlir-aie refuses in any descriptor; nothing cuts those of cores and memtiles."""
    large = next((size for size, stride in dims if size > MAX_SIZE and stride != 1), None)
    if large is not None:
        yield TransferFault(
            "size",
            f"a size of {large} in a walk; no descriptor holds more than {MAX_SIZE}, so write it "
            "as two dimensions",
            DESCRIPTOR_RULES,
        )


def _cut(side: TransferSide, dims: Dims, limits: DmaLimits, granule: int) -> Iterator[int]:
    """How many dimensions each one takes once its size is cut to what a register holds."""
    last = len(dims) - 1
    for place, (size, _) in enumerate(dims):
        yield _wraps(size, side.bits if place == last else granule, limits, granule)


def _dimensions(count: int, needed: int, limits: DmaLimits) -> Iterator[TransferFault]:
    """A core or a memtile walks a fixed program: one descriptor for each transfer."""
    if needed <= limits.dims:
        return
    cut = f" after cutting sizes above {limits.max_wrap}" if needed > count else ""
    words = "too many" if needed > 2 * limits.dims else str(needed)
    yield TransferFault(
        "dimensions",
        f"{words} dimensions{cut}; a descriptor walks {limits.dims}; move less at a time or lay the buffer "
        "out differently",
        DESCRIPTOR_RULES,
    )


def _task_dimensions(count: int, needed: int, dims: Dims, limits: DmaLimits) -> Iterator[TransferFault]:
    """The shim's transfers are tasks of the host: what one cannot walk becomes a loop of several."""
    room = limits.dims + 1
    if count > room:
        yield TransferFault(
            "dimensions",
            f"{count} dimensions; a task walks {limits.dims} and one iteration or repeat, and mlir-air drops "
            "the others; move less at a time or lay the buffer out differently",
            LOWERING,
        )
    elif needed > room:
        yield TransferFault(
            "dimensions",
            f"sizes above {limits.max_wrap} in {count} dimensions, which no single task walks; it becomes a "
            "loop of several, so move less at a time",
            TASK_QUEUE,
            certain=False,
        )
    elif count == room and dims[0][0] > limits.iterations and dims[0][1]:
        yield TransferFault(
            "iteration",
            f"an outermost size of {dims[0][0]} in {count} dimensions; a task iterates {limits.iterations} "
            "times at most, so it becomes a loop of several; move less at a time",
            TASK_QUEUE,
            certain=False,
        )


def _wraps(size: int, bits: int, limits: DmaLimits, granule: int) -> int:
    """How many dimensions one size takes, given the largest that a register holds."""
    granules = max(1, size * bits // granule)
    count = 1
    while granules > limits.max_wrap:
        part = next((d for d in range(limits.max_wrap, 1, -1) if granules % d == 0), None)
        if part is None:
            return 3 * (limits.dims + 2)
        granules //= part
        count += 1
    return count


def _padding(side: TransferSide, device: DeviceModel) -> Iterator[TransferFault]:
    """Padding is added as a memtile sends, in whole words; a transfer has it for its source side."""
    op = side.op
    assert isinstance(op, ChannelTransferOp | DmaMemcpyNdOp)
    before, after = op.pad_before, op.pad_after
    if not isinstance(before, DenseArrayBase) or not isinstance(after, DenseArrayBase) or not side.reads:
        return
    amounts = [(first, last) for first, last in zip(before.get_values(), after.get_values(), strict=False)]
    if not any(first or last for first, last in amounts):
        return
    if side.space != 1:
        level = memory_space_name(side.space)
        message = f"padding on its way out of {level}; only memtiles pad, so stage it through L2"
        yield TransferFault("padding", message, DESCRIPTOR_RULES)
    if side.known_dims is None:
        yield TransferFault(
            "padding", "padding with sizes that are not constant; write numbers", DESCRIPTOR_RULES
        )
    granule, (first, last) = device.granule_bytes * 8, amounts[-1]
    if first * side.bits % granule or last * side.bits % granule:
        message = (
            f"innermost padding of {first} and {last} elements of {side.bits} bits; a memtile pads whole "
            f"words of {device.granule_bytes} bytes, so pad by multiples of that"
        )
        yield TransferFault("padding", message, DESCRIPTOR_RULES)
