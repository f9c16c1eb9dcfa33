"""Turns `air.rank` into loops over its instances, one after another, as mlir-air's air-rank-to-launch does.

An NPU program that names several ranks runs them all on its one device (ConvertToAIRPass.cpp,
AIRRankToLaunchPass).
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import IndexType, IntegerAttr, ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from air_dialect.ops import AsyncTokenType, RankOp, UniverseAllocOp, WaitAllOp


def serialise_ranks(module: ModuleOp) -> None:
    """Put loops in place of every `air.rank`, innermost first, and drop the universes they were given."""
    for op in reversed([op for op in module.walk() if isinstance(op, RankOp)]):
        _serialise(op)
    for universe in [op for op in module.walk() if isinstance(op, UniverseAllocOp)]:
        Rewriter.erase_op(universe)


def _serialise(op: RankOp) -> None:
    """Wait for what the rank waits for, run its body once per instance, and hand out a token that is done."""
    before = InsertPoint.before(op)
    if op.async_dependencies:
        _insert(op, WaitAllOp.build(operands=[op.async_dependencies], result_types=[None]), before)
    ids: list[SSAValue] = []
    for size in op.sizes:
        ids.append(_open_loop(op, size, before))
        loop = ids[-1].owner
        assert isinstance(loop, Block)
        end = loop.last_op
        assert end is not None
        before = InsertPoint.before(end)
    if op.has_body:
        body = op.body.block
        end = body.last_op
        assert end is not None
        Rewriter.erase_op(end)
        Rewriter.inline_block(body, before, [*ids, *op.sizes, *op.kernel_operands])
    tokens: list[SSAValue] = []
    if op.async_token is not None:
        done = WaitAllOp.build(operands=[[]], result_types=[AsyncTokenType()])
        _insert(op, done, InsertPoint.before(op))
        tokens = [done.results[0]]
    Rewriter.replace_op(op, [], tokens)


def _open_loop(op: Operation, size: SSAValue, before: InsertPoint) -> SSAValue:
    """Insert a loop from 0 to `size`; gives its induction variable."""
    zero, one = (ConstantOp(IntegerAttr(number, IndexType())) for number in (0, 1))
    body = Block([scf.YieldOp()], arg_types=[IndexType()])
    body.args[0].name_hint = "rank"
    for new in (zero, one, scf.ForOp(zero.result, size, one.result, [], Region(body))):
        _insert(op, new, before)
    return body.args[0]


def _insert(origin: Operation, op: Operation, before: InsertPoint) -> None:
    op.location = origin.location
    Rewriter.insert_op(op, before)
