"""A compiler in miniature: what air-dma-to-channel makes of a synchronous program."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from aerie.air_dialect.ops import (
    ChannelGetOp,
    ChannelOp,
    ChannelPutOp,
    ChannelTransferOp,
    DmaMemcpyNdOp,
    HerdOp,
    HierarchyOp,
    MemorySpace,
    SegmentOp,
    memory_space,
)


def use_channels(module: ModuleOp, prefix: str) -> None:
    """Make a put and a get of every DMA; the end in the outer memory moves out of its herd or segment.

    The channels are named `prefix` and a number. Ends in L2 stand in the segment, ends in L3 in the launch,
    each in loops of its own before the herd or segment it serves.
    """
    made: list[ChannelOp] = []
    for scope in (HerdOp, SegmentOp):
        for holder in [op for op in module.walk() if isinstance(op, scope)]:
            for dma in [op for op in holder.walk() if isinstance(op, DmaMemcpyNdOp)]:
                split(dma, holder, made, prefix)
            own = MemorySpace.L1 if scope is HerdOp else MemorySpace.L2
            for op in [op for op in holder.walk() if isinstance(op, ChannelTransferOp)]:
                if op.chan_name.startswith(prefix) and memory_space(op.memref.type) < own:
                    Hoist(holder).run(op)
    assert module.body.block.first_op is not None
    Rewriter.insert_op(made, InsertPoint.at_start(module.body.block))


def split(dma: DmaMemcpyNdOp, holder: HierarchyOp, made: list[ChannelOp], prefix: str) -> None:
    """A put and a get in place of a DMA, over a channel with one member for each tile of the holder."""
    sizes = [size.owner for size in holder.sizes]
    channel = ChannelOp(f"{prefix}{len(made)}", [integer(owner) for owner in sizes] or [1])
    made.append(channel)
    zero = [] if holder.ids else [ConstantOp(IntegerAttr(0, IndexType()))]
    indices: Sequence[SSAValue] = holder.ids or (zero[0].result,)
    source = dma.src, dma.src_offsets, dma.src_sizes, dma.src_strides
    target = dma.dst, dma.dst_offsets, dma.dst_sizes, dma.dst_strides
    put = ChannelPutOp(channel.sym_name, indices, *source)
    get = ChannelGetOp(channel.sym_name, indices, *target)
    Rewriter.replace_op(dma, [*zero, put, get], [])


def integer(owner: Operation | Block) -> int:
    """The value of an arith.constant."""
    assert isinstance(owner, ConstantOp)
    assert isinstance(owner.value, IntegerAttr)
    return owner.value.value.data


class Hoist:
    """Moves an operation out of a herd or segment, with the loops around it and all that goes into them."""

    def __init__(self, holder: HierarchyOp) -> None:
        self.holder, self.place = holder, InsertPoint.before(holder)
        inside = *holder.size_args, *holder.kernel_args
        outside = *holder.sizes, *holder.kernel_operands
        self.values: dict[SSAValue, SSAValue] = dict(zip(inside, outside, strict=True))

    def run(self, op: Operation) -> None:
        """Move `op`; over the tiles of a herd it runs in parallel."""
        if self.holder.sizes:
            zeros = [self.constant(0) for _ in self.holder.sizes]
            self.enter_parallel(self.holder.ids, zeros, self.holder.sizes)
        for loop in reversed(self.loops_around(op)):
            self.enter(loop)
        self.copy(op)
        Rewriter.erase_op(op)

    def loops_around(self, op: Operation) -> list[Operation]:
        """From the innermost outwards."""
        found, parent = [], op.parent_op()
        while parent is not self.holder:
            assert parent is not None
            found.append(parent)
            parent = parent.parent_op()
        return found

    def enter(self, loop: Operation) -> None:
        """Open a copy of a loop at the place reached, and go into it."""
        if isinstance(loop, scf.ParallelOp):
            low, high = (
                [self.value(bound) for bound in bounds] for bounds in (loop.lowerBound, loop.upperBound)
            )
            self.enter_parallel(loop.body.block.args, low, high)
            return
        assert isinstance(loop, scf.ForOp), f"{loop.name} around a DMA"
        block = Block([scf.YieldOp()], arg_types=[IndexType()])
        first, end, step = (self.value(bound) for bound in (loop.lb, loop.ub, loop.step))
        self.insert(scf.ForOp(first, end, step, [], block))
        self.go_into(block, loop.body.block.args[:1])

    def enter_parallel(
        self, ids: Sequence[SSAValue], low: Sequence[SSAValue], high: Sequence[SSAValue]
    ) -> None:
        """Open a parallel loop with step 1."""
        block = Block([scf.ReduceOp()], arg_types=[IndexType()] * len(ids))
        self.insert(scf.ParallelOp(low, high, [self.constant(1) for _ in ids], Region(block)))
        self.go_into(block, ids)

    def go_into(self, block: Block, ids: Sequence[SSAValue]) -> None:
        """Go on inside of a loop just made; `ids` are the indices of the one it is a copy of."""
        self.values.update(zip(ids, block.args, strict=True))
        assert block.last_op is not None
        self.place = InsertPoint.before(block.last_op)

    def value(self, value: SSAValue) -> SSAValue:
        """The value outside that stands for one inside, computed again where need be."""
        if value not in self.values:
            assert isinstance(value.owner, Operation), f"{value} is carried by a loop"
            self.values.update(zip(value.owner.results, self.copy(value.owner).results, strict=True))
        return self.values[value]

    def copy(self, op: Operation) -> Operation:
        """A copy of an operation at the place reached."""
        operands = {operand: self.value(operand) for operand in op.operands}
        return self.insert(op.clone(operands))

    def constant(self, number: int) -> SSAValue:
        """An index known here and now."""
        return self.insert(ConstantOp(IntegerAttr(number, IndexType()))).results[0]

    def insert(self, op: Operation) -> Operation:
        """Put an operation at the place reached."""
        Rewriter.insert_op(op, self.place)
        return op
