"""Issues segments and herds before the loops of puts and gets that stand in front of them.

A launch often issues all transfers of its channels, in loops, before the segment that takes them. In
program order nothing of these loops can end until all of them are issued, so a run remembers as many
operations as the loops have iterations. What touches no memory of the body that issues it, and waits for no
token, may be issued before them just as well: the transfers meet it in their channels, whichever is first.
In builds with checks alone, where a loop then pauses while others work (Sequencer::pause).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects import scf
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from aerie.air_dialect.ops import (
    AsyncTokenType,
    ChannelTransferOp,
    HerdOp,
    LaunchOp,
    SegmentOp,
    WaitAllOp,
)
from aerie.air_dialect.values import walk

_LOOPS = (scf.ForOp, scf.ParallelOp)
_PURE = ("arith.", "affine.apply", "affine.min", "affine.max", "index.")


def start_before_transfers(module: ModuleOp) -> None:
    """Move segments and herds up, in place, each to the first of the transfers that it may pass."""
    for body in [op for op in walk(module) if isinstance(op, LaunchOp | SegmentOp) and op.has_body]:
        for op in [op for op in body.body.block.ops if isinstance(op, SegmentOp | HerdOp)]:
            if not _waits_or_touches(op):
                _move_up(op)


def _waits_or_touches(op: SegmentOp | HerdOp) -> bool:
    """Whether something of the body around orders an operation: tokens, or memory."""
    types = [value.type for value in (*op.operands, *op.sizes, *op.kernel_operands)]
    return any(isinstance(type_, AsyncTokenType | MemRefType) for type_ in types)


def _move_up(op: SegmentOp | HerdOp) -> None:
    passed = list(_passed(op))
    loops = [before for before in passed if isinstance(before, _LOOPS)]
    if not loops:
        return
    first, block = loops[-1], op.parent
    assert block is not None
    behind = passed[: passed.index(first)]
    numbers = _numbers_of(op, behind)
    if {value for number in (op, *numbers) for value in number.operands}.intersection(
        result for before in (*behind, first) if before not in numbers for result in before.results
    ):
        return
    for needed in reversed(numbers):
        needed.detach()  # type: ignore[no-untyped-call]
        block.insert_op_before(needed, first)
    op.detach()  # type: ignore[no-untyped-call]
    block.insert_op_before(op, first)


def _passed(op: Operation) -> Iterable[Operation]:
    """What stands before an operation and may come after it, the nearest first."""
    before = op.prev_op
    while before is not None and (_is_pure(before) or _only_transfers(before)):
        yield before
        before = before.prev_op


def _numbers_of(op: Operation, behind: Sequence[Operation]) -> list[Operation]:
    """Of the operations behind a place, the numbers that an operation needs, the last one first."""
    needed: list[Operation] = []
    wanted: set[SSAValue] = set(op.operands)
    for before in behind:
        if _is_pure(before) and wanted.intersection(before.results):
            needed.append(before)
            wanted.update(before.operands)
    return needed


def _is_pure(op: Operation) -> bool:
    return op.name.startswith(_PURE) and not op.regions


def _only_transfers(op: Operation) -> bool:
    """Whether an operation is a put or get, or a loop of them."""
    if isinstance(op, ChannelTransferOp):
        return True
    if isinstance(op, WaitAllOp):
        return op.async_token is not None
    return isinstance(op, _LOOPS) and all(map(_all_transfer, _blocks(op)))


def _all_transfer(block: Block) -> bool:
    return all(
        _is_pure(inner) or _only_transfers(inner) or inner.name in ("scf.yield", "scf.reduce")
        for inner in block.ops
    )


def _blocks(op: Operation) -> Iterable[Block]:
    return (block for region in op.regions for block in region.blocks)
