"""The rules AIR operations must keep: each `check_` and `require_` raises VerifyException where one is
broken.

They are those of mlir-air's verifiers (AIRDialect.cpp, August 2026), plus the few on which its later
passes rely without checking: constant herd sizes, equal element types of a DMA. A message names
the value, the limit and what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    IntegerAttr,
    MemRefType,
    UnrankedMemRefType,
)
from xdsl.ir import Attribute, BlockArgument, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.effects import ACCESSES, SCATTERED
from aerie.air_dialect.types import MemorySpace, attribute_text, memory_space, memory_space_name

MAX_PADDING = 65535
MAX_PACKET_ID = 31
MAX_REFEED_COUNT = 2**31 - 1


def constant_value(value: SSAValue) -> int | None:
    """The integer of an `arith.constant`: mlir-air looks no further for the size of a herd."""
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return int(owner.value.value.data)
    return None


def _integer_space(memref_type: Attribute) -> int | None:
    """The memory space of a memref, None when it is no integer (such memory is not the NPU's)."""
    try:
        return memory_space(memref_type)
    except ValueError:
        return None


# ---------------------------------------------------------------------------------------- hierarchy


def check_body_arguments(op: Operation, body: Region, dims: int, captured: Sequence[SSAValue]) -> None:
    """The body has one block argument per index, per size and per captured value, of its type."""
    arguments = body.block.args
    expected = 2 * dims + len(captured)
    if len(arguments) != expected:
        raise VerifyException(
            f"{op.name} body has {len(arguments)} block arguments, expected {expected}: {dims} indices, "
            f"{dims} sizes and {len(captured)} args"
        )
    for argument, value in zip(arguments[2 * dims :], captured, strict=True):
        if argument.type != value.type:
            raise VerifyException(
                f"{op.name} hands a value of type {attribute_text(value.type)} to an argument of type "
                f"{attribute_text(argument.type)}: they must be equal"
            )


def check_herd_sizes(sizes: Sequence[SSAValue]) -> None:
    """A herd has at most two dimensions, each a constant of at least 1."""
    if len(sizes) > 2:
        raise VerifyException(f"air.herd has {len(sizes)} dimensions: write columns and rows, as in (%x, %y)")
    for axis, size in zip(("columns", "rows"), sizes, strict=False):
        extent = constant_value(size)
        if extent is None:
            raise VerifyException(
                f"air.herd number of {axis} is not a constant: a grid of cores is fixed at compile time, "
                "write an arith.constant just outside the herd"
            )
        if extent < 1:
            raise VerifyException(f"air.herd has {extent} {axis}: it must be at least 1")


def check_allocations(op: Operation, body: Region, nearest: MemorySpace) -> None:
    """Every memref.alloc in the body is at `least` or nearer to the core."""
    for inner in body.walk():
        if not isinstance(inner, memref.AllocOp):
            continue
        space = _integer_space(inner.memref.type)
        if space is not None and space < nearest:
            raise VerifyException(
                f"memref.alloc of {attribute_text(inner.memref.type)} inside {op.name} is in "
                f"{memory_space_name(space)}: only memory space {int(nearest)} ({nearest.name}) or "
                "more can be allocated there"
            )


def _touched_by_core(op: Operation) -> SSAValue | None:
    """The memref whose elements an operation of a core loads, stores or updates."""
    access = ACCESSES.get(op.name) or SCATTERED.get(op.name)
    return None if access is None else op.operands[access[0]]


def check_core_accesses(body: Region) -> None:
    """Loads, stores and vector transfers in a herd touch L1 only."""
    for inner in body.walk():
        accessed = _touched_by_core(inner)
        if accessed is None or not isinstance(accessed.type, MemRefType):
            continue
        space = _integer_space(accessed.type)
        if space is not None and space < MemorySpace.L1:
            raise VerifyException(
                f"{inner.name} inside air.herd accesses {attribute_text(accessed.type)} in "
                f"{memory_space_name(space)}: a core reaches only its own L1 (memory space 2), "
                "copy the data there with air.dma_memcpy_nd or a channel first"
            )


# ---------------------------------------------------------------------------------------- transfers


def check_pattern(
    op: Operation,
    side: str,
    offsets: Sequence[SSAValue],
    sizes: Sequence[SSAValue],
    strides: Sequence[SSAValue],
) -> None:
    """Sizes and strides have one entry per dimension; offsets may leave leading ones out."""
    if len(sizes) != len(strides):
        raise VerifyException(
            f"{op.name} {side} has {len(sizes)} sizes and {len(strides)} strides: one each per dimension"
        )
    if sizes and len(offsets) > len(sizes):
        raise VerifyException(
            f"{op.name} {side} has {len(offsets)} offsets for {len(sizes)} sizes: give one per dimension"
        )


def check_padding(op: Operation, before: Attribute | None, after: Attribute | None) -> None:
    """pad_before and pad_after come together, with equal lengths and values from 0 to 65535."""
    if (before is None) != (after is None):
        missing = "pad_after" if after is None else "pad_before"
        raise VerifyException(f"{op.name} lacks {missing}: give both pad_before and pad_after, or none")
    if not isinstance(before, DenseArrayBase) or not isinstance(after, DenseArrayBase):
        return
    first, last = before.get_values(), after.get_values()
    if len(first) != len(last):
        raise VerifyException(
            f"{op.name} has {len(first)} values in pad_before and {len(last)} in pad_after: give one of each "
            "per dimension"
        )
    for value in (*first, *last):
        if not 0 <= value <= MAX_PADDING:
            raise VerifyException(f"{op.name} pads by {value}: padding must be from 0 to {MAX_PADDING}")


def _element_type(memref_type: Attribute) -> Attribute | None:
    if not isinstance(memref_type, MemRefType | UnrankedMemRefType):
        return None
    element: Attribute = memref_type.element_type
    return element


def check_element_types(dst_type: Attribute, src_type: Attribute) -> None:
    """Both sides of a DMA have the same element type."""
    if _element_type(dst_type) != _element_type(src_type):
        raise VerifyException(
            f"air.dma_memcpy_nd copies elements of {_element_type(src_type)} into elements of "
            f"{_element_type(dst_type)}: a DMA does not convert, make the element types equal"
        )


# ----------------------------------------------------------------------------------------- channels


def check_channel_type(channel_type: str, allowed: Sequence[str]) -> None:
    """channel_type is one that mlir-air lowers."""
    if channel_type not in allowed:
        raise VerifyException(
            f'unsupported channel_type "{channel_type}": write one of {", ".join(allowed)}, or leave it out '
            f"for {allowed[0]}"
        )


def check_channel_size(size: Sequence[int]) -> None:
    """Every extent of a bundle is at least 1."""
    for axis, extent in enumerate(size):
        if extent < 1:
            raise VerifyException(f"air.channel size[{axis}] is {extent}: it must be at least 1")


def check_broadcast(size: Sequence[int], broadcast_shape: Attribute | None) -> None:
    """broadcast_shape has the bundle's rank and follows NumPy's broadcasting."""
    if broadcast_shape is None:
        return
    shape = _integer_array("broadcast_shape", broadcast_shape)
    if len(shape) != len(size):
        raise VerifyException(
            f"broadcast_shape {shape} has rank {len(shape)}, the bundle {list(size)} has rank {len(size)}: "
            "they must be equal"
        )
    for axis, (extent, wide) in enumerate(zip(size, shape, strict=True)):
        if wide < extent:
            raise VerifyException(
                f"broadcast_shape[{axis}] is {wide}, less than size[{axis}] = {extent}: a broadcast cannot "
                "shrink a dimension"
            )
        if extent not in (1, wide):
            raise VerifyException(
                f"size[{axis}] is {extent} and broadcast_shape[{axis}] is {wide}: a size must be 1 or equal "
                "to the broadcast shape"
            )


def _integer_array(name: str, attribute: Attribute) -> list[int]:
    if not isinstance(attribute, ArrayAttr) or not all(isinstance(value, IntegerAttr) for value in attribute):
        raise VerifyException(f"{name} is {attribute}: write an array of integers, as in [1, 4]")
    return [value.value.data for value in attribute]


def check_packet_ids(channel_type: str, packet_ids: Attribute | None) -> None:
    """packet_ids: unique 5-bit routing ids, on packet-switched channels only."""
    if packet_ids is None:
        return
    ids = _integer_array("packet_ids", packet_ids)
    if channel_type != "npu_dma_packet":
        raise VerifyException(
            f'packet_ids on a channel of type {channel_type}: only a channel_type "npu_dma_packet" has them'
        )
    for position, packet_id in enumerate(ids):
        if not 0 <= packet_id <= MAX_PACKET_ID:
            raise VerifyException(f"packet id {packet_id} is not from 0 to {MAX_PACKET_ID} (it has 5 bits)")
        if packet_id in ids[:position]:
            raise VerifyException(f"packet id {packet_id} is given twice: ids must be unique")


def check_refeed_count(count: Attribute | None) -> None:
    """air.refeed_count is an integer from 1 to 2^31 - 1."""
    if count is None:
        return
    if not isinstance(count, IntegerAttr):
        raise VerifyException(f"air.refeed_count is {count}: it must be an integer")
    if not 1 <= count.value.data <= MAX_REFEED_COUNT:
        raise VerifyException(
            f"air.refeed_count is {count.value.data}: it must be from 1 to {MAX_REFEED_COUNT}"
        )


def check_indices_in_space(op: Operation, indices: Sequence[SSAValue]) -> None:
    """Which channel of a bundle a transfer uses is fixed in space, not in time.

    So no index may be the induction variable of a sequential scf.for.
    """
    for axis, index in enumerate(indices):
        if loop_of_induction_variable(index) is not None:
            raise VerifyException(
                f"{op.name} index {axis} is the induction variable of an scf.for: a channel of a bundle is "
                "chosen in space, use a herd index or an scf.parallel, or unroll the loop"
            )


def loop_of_induction_variable(value: SSAValue) -> scf.ForOp | None:
    """The scf.for whose induction variable a value is."""
    if not isinstance(value, BlockArgument) or value.index != 0:
        return None
    around = value.owner.parent_op()
    return around if isinstance(around, scf.ForOp) else None


def check_mmio(op: Operation, memref_type: Attribute, side: str, expected: MemorySpace) -> None:
    """A memory-mapped write reads host memory and fills a core's memory."""
    space = _integer_space(memref_type)
    if space is not None and space != expected:
        raise VerifyException(
            f"{op.name} on an npu_mmio channel has its {side} in {memory_space_name(space)}: it must be in "
            f"{expected.name} (memory space {int(expected)})"
        )


def require_rank(op: Operation, what: str) -> None:
    """Addressing another device's memory makes sense inside air.rank only."""
    if not any(parent.name == "air.rank" for parent in parent_ops(op)):
        raise VerifyException(f"{op.name} with {what} needs an enclosing air.rank: only ranks have peers")


def check_rank_of_side(op: Operation, name: str, rank: Attribute | None, value: SSAValue) -> None:
    """src_rank or dst_rank of a DMA: not negative, inside air.rank, on a symmetric allocation."""
    if not isinstance(rank, IntegerAttr):
        return
    if rank.value.data < 0:
        raise VerifyException(f"{name} is {rank.value.data}: it must be at least 0")
    require_rank(op, name)
    owner = value.owner
    if isinstance(owner, memref.AllocOp) and "air.symmetric" not in owner.attributes:
        raise VerifyException(
            f"{name} names another rank, but the memref.alloc has no air.symmetric: only what every rank "
            "allocates alike can be reached across ranks"
        )


def parent_ops(op: Operation) -> Iterator[Operation]:
    """The operations around `op`, nearest first."""
    parent = op.parent_op()
    while parent is not None:
        yield parent
        parent = parent.parent_op()
