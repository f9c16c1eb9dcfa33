"""Rules that mlir-air's verifiers leave open but a program that runs must keep.

A compiler's test fragment may use a channel nobody declares or move 256 elements into 1024; on the device
the first does not compile and the second hangs. Raise VerifyException.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import DYNAMIC_INDEX, MemRefType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from air_dialect.channels import ChannelPutOp, ChannelTransferOp
from air_dialect.transfers import DmaMemcpyNdOp
from air_dialect.verifiers import constant_value, constant_values


def check_runnable(op: Operation) -> None:
    """Check one operation against every rule of this module."""
    if isinstance(op, DmaMemcpyNdOp):
        _check_sizes(op, "dst", op.dst_sizes)
        _check_sizes(op, "src", op.src_sizes)
        _check_counts(op)
    if isinstance(op, ChannelTransferOp):
        _check_sizes(op, "src" if isinstance(op, ChannelPutOp) else "dst", op.sizes)
        _check_bundle(op)


def element_count(memref_type: Attribute, sizes: Sequence[SSAValue]) -> int | None:
    """How many elements a side of a transfer moves, None when that is not known at compile time."""
    if sizes:
        extents = constant_values(sizes)
        return None if extents is None else prod(extents)
    if not isinstance(memref_type, MemRefType) or DYNAMIC_INDEX in memref_type.get_shape():
        return None
    return prod(memref_type.get_shape())


def _check_sizes(op: Operation, side: str, sizes: Sequence[SSAValue]) -> None:
    for size in sizes:
        extent = constant_value(size)
        if extent is not None and extent < 1:
            raise VerifyException(f"{op.name} {side} has a size of {extent}: every size must be at least 1")


def _check_counts(op: DmaMemcpyNdOp) -> None:
    if op.pad_before is not None:
        return
    written, read = element_count(op.dst.type, op.dst_sizes), element_count(op.src.type, op.src_sizes)
    if written is not None and read is not None and written != read:
        raise VerifyException(
            f"air.dma_memcpy_nd writes {written} elements to dst but reads {read} from src: the products of "
            "the sizes must be equal"
        )


def _check_bundle(op: ChannelTransferOp) -> None:
    """The channel is declared, and the indices are one per dimension of its bundle, inside it.

    No indices at all mean the bundle as a whole. A get indexes the shape after broadcasting.
    """
    channel = op.channel()
    if channel is None:
        raise VerifyException(
            f"{op.name} uses channel @{op.chan_name}, which is not declared: add "
            f"air.channel @{op.chan_name} [...] to the module"
        )
    is_put = isinstance(op, ChannelPutOp)
    extents = channel.size if is_put else channel.broadcast_shape or channel.size
    if op.indices and len(op.indices) != len(extents):
        raise VerifyException(
            f"{op.name} has {len(op.indices)} indices into @{op.chan_name}, a bundle {extents}: give one per "
            "dimension"
        )
    for axis, (index, extent) in enumerate(zip(op.indices, extents, strict=False)):
        position = constant_value(index)
        if position is not None and not 0 <= position < extent:
            raise VerifyException(
                f"{op.name} index {axis} is {position}: @{op.chan_name} has {extent} there, use 0 to "
                f"{extent - 1}"
            )
