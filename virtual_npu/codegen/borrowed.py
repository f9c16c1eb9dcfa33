"""L1 buffers of a tile that are not copied into, but borrow what a DMA would bring from where it lies.

A tile streams weights through an L1 buffer: a DMA fills it, the core reads it, over and over. On a CPU the
copy costs as much as the reading. Where nobody can tell the difference, the DMA only moves the buffer's
pointer to its source:

- the DMA is blocking, fills all of the buffer, and the source lies in memory as the buffer does;
- every other use of the buffer gives it back, or reads it in the block of the DMA, after it. A kernel in C++
  reads what its source takes as a pointer to const (virtual_npu.external);
- from the DMA to the last such read, nothing is written but L1 allocations: none of these can be the source,
  which is no L1 buffer.

The bounds of the source are checked at run time, as they are for a copy.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, OpResult, SSAValue

from air_dialect.effects import accesses
from air_dialect.ops import DmaMemcpyNdOp, HerdOp, MemorySpace, memory_space
from virtual_npu.codegen import types
from virtual_npu.codegen.body import Body
from virtual_npu.codegen.execution import Mode
from virtual_npu.codegen.functions import unwritten_parameters
from virtual_npu.codegen.memory import origin
from virtual_npu.codegen.windows import covers, refined, walked


def is_borrowed(body: Body, buffer: SSAValue) -> bool:
    """Whether a buffer that a herd allocates borrows its contents."""
    if not body.unit.options.is_fast or body.mode is not Mode.STRAIGHT or not is_l1_of_a_tile(buffer):
        return False
    fills = [use.operation for use in buffer.uses if use.operation.name == "air.dma_memcpy_nd"]
    if len(fills) != 1:
        return False
    (fill,) = fills
    assert isinstance(fill, DmaMemcpyNdOp)
    users = [use.operation for use in buffer.uses if use.operation not in (fill,)]
    readers = [user for user in users if user.name != "memref.dealloc"]
    return fill.dst is buffer and _is_same_layout(fill) and _only_read(body, fill, buffer, readers)


def is_l1_of_a_tile(buffer: SSAValue) -> bool:
    """Whether a herd allocates it, in L1 and outside of loops."""
    if not isinstance(buffer, OpResult) or buffer.op.name != "memref.alloc" or not _is_l1(buffer):
        return False
    return isinstance(buffer.op.parent_op(), HerdOp)


def _is_l1(value: SSAValue) -> bool:
    return isinstance(value.type, MemRefType) and memory_space(value.type) == MemorySpace.L1


def _is_same_layout(fill: DmaMemcpyNdOp) -> bool:
    """Whether a DMA copies a dense run into all of its destination."""
    if fill.async_token is not None or fill.async_dependencies or fill.pad_before or fill.pad_after:
        return False
    assert isinstance(fill.dst.type, MemRefType)
    assert isinstance(fill.src.type, MemRefType)
    shape, source = fill.dst.type.get_shape(), walked(fill.src.type, fill.src_sizes, fill.src_strides)
    if fill.src.type.element_type != fill.dst.type.element_type:
        return False
    if source is None or _is_l1(fill.src) or not covers(fill):
        return False
    steps, dense = refined(shape, *source), types.row_major(shape)
    return steps is not None and all(
        extent == 1 or step == wanted for extent, step, wanted in zip(shape, steps, dense, strict=True)
    )


def _only_read(body: Body, fill: Operation, buffer: SSAValue, readers: list[Operation]) -> bool:
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
    written = [value for op in between for inner in op.walk() for value in written_by(body, inner)]
    return all(value is not buffer and _is_l1(value) and _is_allocated(value) for value in written)


def _in_block(fill: Operation, op: Operation) -> Operation | None:
    """The operation of the DMA's block that another one stands in."""
    around: Operation | None = op
    while around is not None and around.parent is not fill.parent:
        around = around.parent_op()
    return around


def _is_allocated(value: SSAValue) -> bool:
    made = origin(value)
    return isinstance(made, OpResult) and made.op.name == "memref.alloc"


def written_by(body: Body, op: Operation) -> Iterator[SSAValue]:
    """The memrefs that an operation writes, or of which it makes views, through which others might."""
    constant = unwritten_parameters(body.unit, op) if isinstance(op, func.CallOp) else frozenset()
    for value, is_written in accesses(op):
        positions = [i for i, operand in enumerate(op.operands) if operand is value]
        if is_written and not all(i in constant for i in positions):
            yield value
    if any(isinstance(result.type, MemRefType) for result in op.results):
        yield from (operand for operand in op.operands if isinstance(operand.type, MemRefType))
