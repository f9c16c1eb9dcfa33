"""L1 buffers that are allocated outside of the herd that uses them.

The compiler moves such buffers into the cores, one for each (mlir-air, AIRToAIEPass.cpp: "Local L1"), unless
cores share data through them. So every tile gets a copy of its own where no access depends on the tile's
coordinates; where one does, the buffer is laid out for all tiles (or neighbours share it), and there is one.
"""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import IndexType, MemRefType
from xdsl.ir import Operation, SSAValue

from air_dialect.ops import (
    ChannelTransferOp,
    DmaMemcpyNdOp,
    ExecuteOp,
    ExecuteTerminatorOp,
    HerdOp,
    MemorySpace,
    memory_space,
)
from air_dialect.readings import number
from virtual_npu.codegen.dialect import Rewritten


def tile_copies(buffer: SSAValue) -> int:
    """How many copies of a buffer that is allocated outside of herds its tiles need; 1 where they share."""
    if not isinstance(buffer.type, MemRefType) or memory_space(buffer.type) != MemorySpace.L1:
        return 1
    herds = _users(buffer)
    grids = {tuple(number(size) for size in herd.sizes) for herd, _ in herds}
    if len(grids) != 1 or len({herd.sym_name or id(herd) for herd, _ in herds}) != 1:
        return 1
    (grid,) = grids
    sizes = [size for size in grid if size is not None]
    if len(sizes) != len(grid) or any(_depends_on_tile(herd, argument) for herd, argument in herds):
        return 1
    return prod(sizes)


def _users(buffer: SSAValue) -> list[tuple[HerdOp, SSAValue]]:
    """The herds that capture a buffer, each with its name inside; none where other operations use it too."""
    found: list[tuple[HerdOp, SSAValue]] = []
    pending = [buffer]
    while pending:
        value = pending.pop()
        for use in value.uses:
            user = use.operation
            if isinstance(user, HerdOp):
                found += [
                    (user, argument)
                    for argument, operand in zip(user.kernel_args, user.kernel_operands, strict=True)
                    if operand is value
                ]
            elif isinstance(user, ExecuteTerminatorOp):
                around = user.parent_op()
                assert isinstance(around, ExecuteOp)
                pending.append(around.values[use.index])
            elif user.name != "memref.dealloc":
                return []
    return found


def _depends_on_tile(herd: HerdOp, buffer: SSAValue) -> bool:
    """Whether an access to the buffer, or to a view of it, has an index made from the coordinates."""
    made: set[SSAValue] = set(herd.ids)
    views: set[SSAValue] = {buffer}
    for op in herd.body.block.walk():
        if any(index in made for view in views for index in _indices(op, view)):
            return True
        if any(operand in views for operand in op.operands):
            views.update(result for result in op.results if isinstance(result.type, MemRefType))
        elif any(operand in made for operand in op.operands):
            made.update(op.results)
            for block in (block for region in op.regions for block in region.blocks):
                made.update(block.args)
    return False


def _indices(op: Operation, view: SSAValue) -> list[SSAValue]:
    """The operands that say where in a view an operation reads or writes."""
    if op.name == "func.call" or isinstance(op, Rewritten) or not any(o is view for o in op.operands):
        return []
    if isinstance(op, ChannelTransferOp):
        return [*op.offsets, *op.sizes, *op.strides]
    if isinstance(op, DmaMemcpyNdOp):
        dst = [*op.dst_offsets, *op.dst_sizes, *op.dst_strides] if op.dst is view else []
        return [*dst, *op.src_offsets, *op.src_sizes, *op.src_strides] if op.src is view else dst
    return [operand for operand in op.operands if isinstance(operand.type, IndexType)]
