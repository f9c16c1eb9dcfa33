"""Elides copies into L1: buffers of a tile point to the data of transfers instead of copying it.

A tile streams weights through an L1 buffer: a DMA fills it, the core reads it, over and over. On a CPU the
copy costs as much as the reading. Where nobody can tell the difference, the DMA only moves the buffer's
pointer to its source:

- the DMA is blocking, fills all of the buffer, and the source lies in memory as the buffer does;
- every other use of the buffer deallocates it, or reads it in the block of the DMA, after it. A kernel in C++
  reads what its source takes as a pointer to const (virtual_npu.external);
- from the DMA to the last such read, nothing is written but L1 allocations: none of these can be the source,
  which is no L1 buffer.

The bounds of the source are checked at run time, as they are for a copy.

A channel that feeds a row of tiles copies every block as often as there are tiles, and again for those that
are not ready for it. Where a tile only reads what it gets, a pointer to one copy does as well: the buffer is
filled by nothing but channels, all of it each time, and every other use of it reads or deallocates it. Nobody
writes to a block that is on its way, and it stays for as long as somebody has it. The channel still copies
into the buffer where what a get takes is not one block; so the buffer is there too.

The allocation becomes `vnpu.borrowed`, the transfers that fill it `vnpu.borrow`, and its deallocation is
removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.rewriter import Rewriter

from aerie.air_dialect.effects import only_reads
from aerie.air_dialect.ops import ChannelTransferOp, DmaMemcpyNdOp, HerdOp, MemorySpace, memory_space
from aerie.air_dialect.values import root_value, walk
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.dialect import BorrowedOp, BorrowOp, ProductOp, wrap
from aerie.virtual_npu.codegen.execution import BodyMode, visit_operations
from aerie.virtual_npu.codegen.passes.dma_views import refine_strides, walk_extents, writes_whole
from aerie.virtual_npu.codegen.passes.external_promises import ExternalPromises
from aerie.virtual_npu.options import BuildOptions


def elide_l1_copies(module: ModuleOp, options: BuildOptions, kernel_dirs: Sequence[Path]) -> None:
    """Rewrite such buffers in place; `kernel_dirs` are where the sources of kernels in C++ are looked up."""
    kernels, allocations = ExternalPromises(module, kernel_dirs), []

    def visit(op: Operation, mode: BodyMode) -> bool:
        if op.name == "memref.alloc" and _is_l1_of_a_tile(op.results[0]):
            borrows = _borrows_source if mode is BodyMode.STRAIGHT else _borrows_blocks
            if borrows(kernels, op.results[0]):
                allocations.append(op)
        return True

    visit_operations(module, options, visit)
    for op in allocations:
        _rewrite(op)


def _rewrite(alloc: Operation) -> None:
    users = users_of(alloc.results[0])
    for user in users:
        if user.name == "memref.dealloc":
            Rewriter.erase_op(user)
        elif _fills(user, alloc.results[0]):
            wrap(user, BorrowOp)
    wrap(alloc, BorrowedOp)


def _fills(user: Operation, buffer: SSAValue) -> bool:
    """Whether an operation brings what the buffer points to; a DMA that takes from it only reads."""
    return user.name == "air.channel.get" or (isinstance(user, DmaMemcpyNdOp) and user.dst is buffer)


def users_of(buffer: SSAValue) -> list[Operation]:
    """The operations that use a buffer; what stands around loops (`vnpu.product`) does so through them."""
    return [use.operation for use in buffer.uses if not isinstance(use.operation, ProductOp)]


def _is_l1_of_a_tile(buffer: SSAValue) -> bool:
    """Whether a herd allocates it, in L1 and outside of loops."""
    return (
        _is_l1(buffer)
        and isinstance(buffer.owner, Operation)
        and isinstance(buffer.owner.parent_op(), HerdOp)
    )


def _is_l1(value: SSAValue) -> bool:
    return isinstance(value.type, MemRefType) and memory_space(value.type) == MemorySpace.L1


# ---- DMAs ----


def _borrows_source(kernels: ExternalPromises, buffer: SSAValue) -> bool:
    """Whether a buffer may point to the source of the one DMA that fills it."""
    users = users_of(buffer)
    fills = [user for user in users if isinstance(user, DmaMemcpyNdOp)]
    if len(fills) != 1:
        return False
    (fill,) = fills
    readers = [user for user in users if user is not fill and user.name != "memref.dealloc"]
    return fill.dst is buffer and _is_same_layout(fill) and _only_read(kernels, fill, buffer, readers)


def _is_same_layout(fill: DmaMemcpyNdOp) -> bool:
    """Whether a DMA copies a dense run into all of its destination."""
    if fill.async_token is not None or fill.async_dependencies or fill.pad_before or fill.pad_after:
        return False
    assert isinstance(fill.dst.type, MemRefType)
    assert isinstance(fill.src.type, MemRefType)
    shape, source = fill.dst.type.get_shape(), walk_extents(fill.src.type, fill.src_sizes, fill.src_strides)
    if fill.src.type.element_type != fill.dst.type.element_type:
        return False
    if source is None or _is_l1(fill.src) or not writes_whole(fill):
        return False
    steps, dense = refine_strides(shape, *source), types.row_major(shape)
    return steps is not None and all(
        extent == 1 or step == wanted for extent, step, wanted in zip(shape, steps, dense, strict=True)
    )


def _only_read(
    kernels: ExternalPromises, fill: Operation, buffer: SSAValue, readers: list[Operation]
) -> bool:
    """Whether all users read, after the DMA in its block, with no write in between but to L1 allocations."""
    block = fill.parent
    after = [_in_block(fill, reader) for reader in readers]
    if block is None or not after or any(op is None or not fill.is_before_in_block(op) for op in after):
        return False
    between: list[Operation] = []
    rest = [op for op in after if op is not None]
    for op in block.ops:
        if fill.is_before_in_block(op) and any(op is end or op.is_before_in_block(end) for end in rest):
            between.append(op)
    written = [value for op in between for inner in walk(op) for value in kernels.written_by(inner)]
    return all(value is not buffer and _is_l1(value) and _is_allocated(value) for value in written)


def _in_block(fill: Operation, op: Operation) -> Operation | None:
    """The operation of the DMA's block that another one stands in."""
    around: Operation | None = op
    while around is not None and around.parent is not fill.parent:
        around = around.parent_op()
    return around


def _is_allocated(value: SSAValue) -> bool:
    made = root_value(value)
    return isinstance(made, OpResult) and made.op.name == "memref.alloc"


# ---- channels ----


def _borrows_blocks(kernels: ExternalPromises, buffer: SSAValue) -> bool:
    """Whether a buffer may point to the blocks that it gets from channels."""
    if not is_dense(buffer):
        return False
    users = users_of(buffer)
    gets = [user for user in users if user.name == "air.channel.get"]
    if not gets or not all(isinstance(get, ChannelTransferOp) and fills_buffer(get) for get in gets):
        return False
    others = [user for user in users if user not in gets and user.name != "memref.dealloc"]
    return all(_only_reads(kernels, user, buffer) for user in others)


def is_dense(buffer: SSAValue) -> bool:
    assert isinstance(buffer.type, MemRefType)
    return types.memref_strides(buffer.type) == types.row_major(buffer.type.get_shape())


def fills_buffer(get: ChannelTransferOp) -> bool:
    """Whether a get writes all of its buffer, as it lies."""
    return not get.offsets and not get.sizes and not get.strides


def _only_reads(kernels: ExternalPromises, user: Operation, buffer: SSAValue) -> bool:
    """A call says so by its signature."""
    if isinstance(user, func.CallOp):
        return all(value is not buffer for value in kernels.written_by(user))
    return only_reads(user, buffer)
