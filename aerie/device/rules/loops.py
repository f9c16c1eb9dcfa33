"""Loops that aircc changes without a word: bounds that it makes of an index, and buffers that it has a core
receive and send.

Both were found in the gated delta rule of linear attention, with mlir-air e972f294 and mlir-aie 7e00b579.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from xdsl.dialects import affine, scf
from xdsl.ir import BlockArgument, Operation, SSAValue

from aerie.air_dialect.index_constants import ceil_divide, constant_int
from aerie.air_dialect.ops import ChannelTransferOp, DmaMemcpyNdOp, HerdOp
from aerie.air_dialect.values import root_value
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.buffer_copies import trip_count
from aerie.device.npu2 import SCHEDULE_OPT, TO_AIE
from aerie.device.report import Fault, Finding
from aerie.device.scopes import NO_DMA, CheckedProgram, op_location
from aerie.device.transfers import transfer_sides


def check_folded_indices(program: CheckedProgram) -> Iterator[Finding]:
    """Indices that aircc makes the bounds of a loop of, where the loop's steps cannot give them.

    If a loop's variable is used by one affine.apply alone, air-opt-memtile-dma-bds and air-opt-shim-dma-bds
    evaluate it at both bounds and walk from one result to the other in even steps. A quotient or a remainder
    does not grow evenly; of the gated delta rule's tiles in a head, `i mod 4`, they made a loop of no trips.
    """
    for op in program.module.walk():
        loop = _own_loop(op) if isinstance(op, affine.ApplyOp) else None
        if isinstance(op, affine.ApplyOp) and loop is not None and _is_alone(op, loop):
            yield from _folded(op, loop)


def _own_loop(apply: affine.ApplyOp) -> scf.ForOp | None:
    """The loop whose variable an index is made from; None if it is made from several or none."""
    around = {root_value(value).owner for value in apply.mapOperands}
    loops = [block.parent_op() for block in around if not isinstance(block, Operation)]
    found = [loop for loop in loops if isinstance(loop, scf.ForOp)]
    rest = [loop for loop in loops if not isinstance(loop, scf.ForOp | HerdOp)]
    return found[0] if len(found) == 1 and not rest else None


def _is_alone(apply: affine.ApplyOp, loop: scf.ForOp) -> bool:
    """Whether nothing else uses the loop's variable where the index is used.

    air-dma-to-channel takes the far side of each DMA out of a herd, into a loop of its own; there the herd's
    ids are constants. What stays on the core may use the variable alone.
    """
    variable = loop.body.block.args[0]
    users = [(use.operation, _far_transfers(use.operation, variable)) for use in variable.uses]
    if mine := _far_transfers(apply, variable):
        return all(user is apply or not mine & theirs for user, theirs in users)
    return [user for user, theirs in users if not theirs] == [apply] and len(apply.mapOperands) == 1


def _far_transfers(user: Operation, index: SSAValue) -> set[Operation]:
    """The DMAs of a herd of which an index says where their side of L3 or L2 is, itself or by way of an
    affine.apply; empty if it says more."""
    if isinstance(user, affine.ApplyOp):
        each = [_far_transfers(use.operation, user.result) for use in user.result.uses]
        return set().union(*each) if all(each) else set()
    near = any(side.space == 2 and index in side.offsets for side in transfer_sides(user))
    in_herd = any(isinstance(parent, HerdOp) for parent in parent_ops(user))
    return {user} if isinstance(user, DmaMemcpyNdOp) and in_herd and not near else set()


def _folded(apply: affine.ApplyOp, loop: scf.ForOp) -> Iterator[Fault]:
    trips, bounds = trip_count(loop), [constant_int(value) for value in (loop.lb, loop.ub, loop.step)]
    low, high, step = bounds
    if not trips or low is None or high is None or step is None:
        return
    wanted = [_at(apply, loop, low + trip * step) for trip in range(trips)]
    first, last = _at(apply, loop, low), _at(apply, loop, high)
    if None in wanted or first is None or last is None:
        return
    made = _walk(first, last, trips)
    if made != wanted:
        message = (
            f"an index is {_few(wanted)} in the {trips} trips of a loop whose variable nothing else uses "
            f"there; aircc makes bounds of it, from {first} to {last}, and it is {_few(made)}; split the "
            "loop in two, one over the quotient and one over the remainder"
        )
        yield Fault("folded-index", op_location(apply), message, SCHEDULE_OPT, apply)


def _at(apply: affine.ApplyOp, loop: scf.ForOp, number: int) -> int | None:
    """The index where the loop's variable is a number, on the herd's first core."""
    variable = loop.body.block.args[0]
    roots = [root_value(value) for value in apply.mapOperands]
    known: dict[SSAValue, int] = {root: 0 for root in roots if isinstance(root, BlockArgument)}
    return constant_int(apply.result, {**known, variable: number})


def _walk(first: int, last: int, trips: int) -> list[int]:
    """What the loop that aircc makes gives."""
    step = ceil_divide(last - first, trips)
    return list(range(first, last, step)) if step > 0 else []


def _few(numbers: list[int | None] | list[int]) -> str:
    shown = ", ".join(map(str, numbers[:6]))
    return f"{shown}, ..." if len(numbers) > 6 else shown or "never there"


def check_received_and_sent(program: CheckedProgram) -> Iterator[Finding]:
    """Buffers of a core that one loop both fills and sends by DMA.

    air-to-aie gives each direction a pair of locks of its own. So what comes next waits until the core has
    let go of the buffer, and not until all of it is sent.
    """
    for herd in (op for op in program.module.walk() if isinstance(op, HerdOp)):
        filled: dict[SSAValue, list[Operation]] = {}
        sent: dict[SSAValue, list[Operation]] = {}
        for op in herd.walk():
            for buffer, fills in _ends(program, op):
                (filled if fills else sent).setdefault(buffer, []).append(op)
        for buffer, puts in sent.items():
            put = next((put for put in puts if _meet_in_loop(put, filled.get(buffer, []))), None)
            if put is not None:
                message = (
                    "this buffer of L1 is received and sent in one loop, and has a pair of locks for each: "
                    "the next trip's data may come while this one's are still being sent; receive into a "
                    "buffer, copy it on the core and send the copy"
                )
                yield Fault("in-place", op_location(put), message, TO_AIE, put, certain=False)


def _ends(program: CheckedProgram, op: Operation) -> Iterator[tuple[SSAValue, bool]]:
    """The buffers of L1 that a DMA fills or sends, and whether it fills."""
    if isinstance(op, ChannelTransferOp) and program.channel_type(op.chan_name) in NO_DMA:
        return
    for side in transfer_sides(op):
        if side.space == 2:
            yield root_value(side.memref), not side.reads


def _meet_in_loop(put: Operation, fills: list[Operation]) -> bool:
    """Whether a loop of the herd that runs more than once has the put and one of the fills in it."""
    loops = {loop for loop in _loops(put) if trip_count(loop) != 1}
    return any(loops & set(_loops(fill)) for fill in fills)


def _loops(op: Operation) -> Iterator[scf.ForOp]:
    inside = takewhile(lambda parent: not isinstance(parent, HerdOp), parent_ops(op))
    return (parent for parent in inside if isinstance(parent, scf.ForOp))
