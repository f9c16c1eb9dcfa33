"""A compiler in miniature: what air-dependency makes of a synchronous program.

With rewrites_channels.py it serves tests only: every kernel of ours can be had in the compiler's forms, at
any shape. The rewrites work in place and know what our kernels contain: loops, conditions, external calls,
no views of memrefs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.dialects import affine, scf
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import DenseArrayBase, MemRefType, ModuleOp, StringAttr, SymbolRefAttr, i32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator

from aerie.air_dialect import print_module
from aerie.air_dialect.ops import (
    AsyncTokenType,
    ChannelOp,
    ChannelTransferOp,
    DmaMemcpyNdOp,
    ExecuteOp,
    ExecuteTerminatorOp,
    HierarchyOp,
    WaitAllOp,
)

Resource = object
"""What orders operations: a memref, or one end of a channel (operations on it keep their order)."""
CONTROL = (scf.ForOp, scf.ParallelOp, scf.IfOp, affine.IfOp)
READS = ("vector.transfer_read", "vector.load", "memref.load", "air.channel.put")
TOKEN = AsyncTokenType()


def renamed(module: ModuleOp, suffix: str) -> ModuleOp:
    """The module, with `suffix` at the name of every function that has a body and of every channel."""
    for op in module.walk():
        if isinstance(op, ChannelTransferOp):
            op.properties["chan_name"] = SymbolRefAttr(op.chan_name + suffix)
        elif isinstance(op, ChannelOp) or (isinstance(op, FuncOp) and op.body.blocks):
            name = op.properties["sym_name"]
            assert isinstance(name, StringAttr)
            op.properties["sym_name"] = StringAttr(name.data + suffix)
    return module


def together(whole: ModuleOp, *others: ModuleOp) -> str:
    """One program of several; a function that more than one declares is declared once."""
    names = {op.sym_name.data for op in whole.ops if isinstance(op, FuncOp)}
    for op in [op for other in others for op in other.ops]:
        if not (isinstance(op, FuncOp) and op.sym_name.data in names):
            op.detach()
            whole.body.block.add_op(op)
    return print_module(whole)


def make_asynchronous(module: ModuleOp) -> None:
    """Give every operation on memory a token and those it depends on; loops and conditions carry them."""
    for function in module.ops:
        if isinstance(function, FuncOp) and function.body.blocks:
            order_block(function.body.block, Order())


def memrefs(op: Operation) -> Iterator[tuple[SSAValue, bool]]:
    """The memrefs that an operation itself touches, and whether it may write them."""
    made = op.results if op.name == "memref.alloc" else ()
    for value in (*op.operands, *made):
        if isinstance(value.type, MemRefType) and not isinstance(op, (HierarchyOp, *CONTROL)):
            is_source = isinstance(op, DmaMemcpyNdOp) and value is op.src
            yield value, op.name not in READS and not is_source


def resources(op: Operation) -> dict[Resource, bool]:
    """What an operation and all in it touches, named from outside, and whether it may write it."""
    found: dict[Resource, bool] = {}
    outer: dict[SSAValue, SSAValue] = {}
    for inner in op.walk():
        if isinstance(inner, HierarchyOp):
            outer.update(zip(inner.kernel_args, inner.kernel_operands, strict=True))
        for value, writes in memrefs(inner):
            while value in outer:
                value = outer[value]
            found[value] = found.get(value, False) or writes
        if isinstance(inner, ChannelTransferOp) and not isinstance(op, HierarchyOp):
            found[channel_end(inner)] = True
    return found


def channel_end(op: ChannelTransferOp) -> Resource:
    """The channel, which end of it, and the member of the bundle where that is constant."""
    owners = [index.owner for index in op.indices]
    known = [owner.value if isinstance(owner, ConstantOp) else None for owner in owners]
    return op.name, op.chan_name, *known


@dataclass
class Order:
    """The tokens of a body so far: of each resource the last writer and who read it since."""

    writer: dict[Resource, SSAValue] = field(default_factory=dict)
    readers: dict[Resource, list[SSAValue]] = field(default_factory=dict)
    tokens: list[SSAValue] = field(default_factory=list)

    def before(self, touched: dict[Resource, bool]) -> list[SSAValue]:
        """The tokens to wait for before touching these."""
        found = [self.writer[resource] for resource in touched if resource in self.writer]
        for resource, writes in touched.items():
            found += self.readers.get(resource, []) if writes else []
        return list(dict.fromkeys(found))

    def note(self, touched: dict[Resource, bool], token: SSAValue) -> None:
        """The operation of this token touches these."""
        self.tokens.append(token)
        for resource, writes in touched.items():
            if writes:
                self.writer[resource], self.readers[resource] = token, []
            else:
                self.readers.setdefault(resource, []).append(token)


def order_block(block: Block, order: Order) -> None:
    """Rewrite the operations of a block in their order."""
    for op in list(block.ops):
        if isinstance(op, CONTROL):
            if resources(op):
                carry_token(op, order)
        elif isinstance(op, (HierarchyOp, DmaMemcpyNdOp, ChannelTransferOp)):
            give_token(op, order)
        elif resources(op) and not op.has_trait(IsTerminator):
            execute(op, order)


def give_token(op: Operation, order: Order) -> None:
    """The asynchronous form of an operation that has one: dependencies are its first operands."""
    touched = resources(op)
    before = order.before(touched)
    groups = op.properties["operandSegmentSizes"]
    assert isinstance(groups, DenseArrayBase)
    sizes = [len(before), *list(groups.get_values())[1:]]
    new = type(op).create(
        operands=[*before, *op.operands],
        result_types=[TOKEN],
        properties={**op.properties, "operandSegmentSizes": DenseArrayBase.from_list(i32, sizes)},
        attributes=op.attributes,
        regions=[op.detach_region(region) for region in tuple(op.regions)],
    )
    Rewriter.replace_op(op, new, [])
    if isinstance(new, HierarchyOp):
        order_block(new.body.block, Order())
    order.note(touched, new.results[0])


def execute(op: Operation, order: Order) -> None:
    """Put an operation into an air.execute, which hands on its results."""
    touched = resources(op)
    inside = op.clone()
    body = Block([inside, ExecuteTerminatorOp(inside.results)])
    types = [result.type for result in op.results]
    new = ExecuteOp(Region(body), async_dependencies=order.before(touched), result_types=types)
    for old, value in zip(op.results, new.values, strict=True):
        if old in touched:
            touched[value] = touched.pop(old)
    Rewriter.replace_op(op, new, list(new.values))
    order.note(touched, new.async_token)


def carry_token(op: Operation, order: Order) -> None:
    """Let a loop or a condition wait for what its body needs, and give the token of all in it."""
    touched = resources(op)
    ready = WaitAllOp(order.before(touched), is_async=True)
    Rewriter.insert_op(ready, InsertPoint.before(op))
    rewrite = carry_through_loop if isinstance(op, (scf.ForOp, scf.ParallelOp)) else carry_through_condition
    new = rewrite(op, ready.results[0], touched)
    Rewriter.replace_op(op, new, list(new.results[:-1]))
    order.note(touched, new.results[-1])


def ordered_body(block: Block, start: SSAValue, touched: dict[Resource, bool]) -> SSAValue:
    """Rewrite a body in which everything waits for `start`; the token of all of it, before the terminator."""
    inner = Order(writer=dict.fromkeys(touched, start))
    order_block(block, inner)
    assert block.last_op is not None
    end = WaitAllOp([start, *inner.tokens], is_async=True)
    Rewriter.insert_op(end, InsertPoint.before(block.last_op))
    return end.results[0]


def carry_through_loop(op: Operation, ready: SSAValue, touched: dict[Resource, bool]) -> Operation:
    """scf.for hands its token from step to step; scf.parallel joins the tokens of its points."""
    assert isinstance(op, (scf.ForOp, scf.ParallelOp))
    region = op.detach_region(op.body)
    block, last = region.block, region.block.last_op
    assert last is not None
    if isinstance(op, scf.ForOp):
        end = ordered_body(block, block.insert_arg(TOKEN, len(block.args)), touched)
        Rewriter.replace_op(last, scf.YieldOp(*last.operands, end))
        return scf.ForOp(op.lb, op.ub, op.step, [*op.iter_args, ready], region)
    end = ordered_body(block, ready, touched)
    join = Block(arg_types=[TOKEN, TOKEN])
    both = WaitAllOp(join.args, is_async=True)
    join.add_ops([both, scf.ReduceReturnOp(both.results[0])])
    Rewriter.replace_op(last, scf.ReduceOp([end], [Region(join)]))
    return scf.ParallelOp(op.lowerBound, op.upperBound, op.step, region, [ready])


def carry_through_condition(op: Operation, ready: SSAValue, touched: dict[Resource, bool]) -> Operation:
    """Both branches give a token; one that was not written waits for nothing else."""
    finish = scf.YieldOp if isinstance(op, scf.IfOp) else affine.YieldOp.get
    regions = [op.detach_region(region) for region in tuple(op.regions)]
    for region in regions:
        if not region.blocks:
            region.add_block(Block([finish()]))
        last = region.block.last_op
        assert last is not None
        end = ordered_body(region.block, ready, touched)
        Rewriter.replace_op(last, finish(*last.operands, end))
    types = [*(result.type for result in op.results), TOKEN]
    return type(op).create(
        operands=op.operands, result_types=types, properties=op.properties, regions=regions
    )
