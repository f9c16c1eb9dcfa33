"""Elides copies into L2: buffers of a segment that only pass blocks on point to the blocks in L3.

A memtile takes a tile from L3 and sends it on, in the order that the cores want. On a CPU the tile may as
well be read where it was when it is sent on, once, into that order. Where nobody can tell the difference:

- a put in a launch tells its receiver where its block lies, as long as nothing in the launch writes there
  (`vnpu.lend`). What the launch does write are its operands; whether these overlap with what is read, which
  is so where a caller passes one buffer twice, is asked at run time. Nothing else runs beside a launch in a
  function that goes straight on, and no other launch there uses its channels;
- an L2 buffer that gets from channels fill, all of it each time, and puts alone read, takes note of that
  place (`vnpu.borrowed`, and `vnpu.borrow` around its transfers). Its own memory takes all that is no whole
  block.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, OpResult, SSAValue

from aerie.air_dialect.effects import accesses
from aerie.air_dialect.ops import ChannelTransferOp, LaunchOp, MemorySpace, SegmentOp, memory_space
from aerie.air_dialect.values import is_defined_in, root_value, walk
from aerie.virtual_npu.codegen.dialect import BorrowedOp, BorrowOp, LendOp, wrap
from aerie.virtual_npu.codegen.execution import BodyMode, visit_operations
from aerie.virtual_npu.codegen.passes.elide_l1_copies import fills_buffer, is_dense, users_of
from aerie.virtual_npu.options import BuildOptions


def elide_l2_copies(module: ModuleOp, options: BuildOptions) -> None:
    """Rewrite such puts and buffers in place."""
    lent: list[tuple[Operation, list[SSAValue]]] = []
    relays: list[Operation] = []

    def visit(op: Operation, mode: BodyMode) -> bool:
        if isinstance(op, LaunchOp) and mode is BodyMode.STRAIGHT:
            lent.extend(_lent_by(op))
        elif op.name == "memref.alloc" and mode is BodyMode.SEQUENCER and _only_relays(op):
            relays.append(op)
        return True

    visit_operations(module, options, visit)
    if not lent or not relays:
        return
    for put, written in lent:
        wrap(put, LendOp, [written])
    for alloc in relays:
        for user in users_of(alloc.results[0]):
            if isinstance(user, ChannelTransferOp):
                wrap(user, BorrowOp)
        wrap(alloc, BorrowedOp)


def _lent_by(launch: LaunchOp) -> list[tuple[Operation, list[SSAValue]]]:
    """The puts of a launch that read what nothing in it writes; and what it does write from outside."""
    origins = [root_value(value) for value in launch.kernel_operands]
    written: dict[SSAValue, SSAValue] = {}
    for inner in walk(launch):
        for value, is_written in accesses(inner):
            made = root_value(value)
            if not is_written or (_is_allocated(made) and is_defined_in(launch, made)):
                continue
            if made not in origins:
                return []
            written[made] = launch.kernel_args[origins.index(made)]
    puts = (op for op in walk(launch) if op.name == "air.channel.put" and _launch_of(op) is launch)
    return [(put, list(written.values())) for put in puts if _is_lent(put, origins, written)]


def _is_lent(put: Operation, origins: list[SSAValue], written: dict[SSAValue, SSAValue]) -> bool:
    assert isinstance(put, ChannelTransferOp)
    made = root_value(put.memref)
    return made in origins and made not in written and not _is_padded(put)


def _launch_of(op: Operation) -> Operation | None:
    """The launch that an operation stands in, if it is in no segment or herd of it."""
    around = op.parent_op()
    while around is not None and not around.name.startswith("air."):
        around = around.parent_op()
    return around


def _only_relays(alloc: Operation) -> bool:
    """Whether a buffer of a segment in L2 gets whole blocks from channels, and nothing but puts reads it."""
    buffer = alloc.results[0]
    if not isinstance(alloc.parent_op(), SegmentOp) or memory_space(buffer.type) != MemorySpace.L2:
        return False
    users = [user for user in users_of(buffer) if user.name != "memref.dealloc"]
    return is_dense(buffer) and {user.name for user in users} == _TRANSFERS and all(map(_relays, users))


_TRANSFERS = {"air.channel.get", "air.channel.put"}


def _relays(transfer: Operation) -> bool:
    assert isinstance(transfer, ChannelTransferOp)
    return fills_buffer(transfer) if transfer.name == "air.channel.get" else not _is_padded(transfer)


def _is_padded(transfer: ChannelTransferOp) -> bool:
    return "pad_before" in transfer.properties or "pad_before" in transfer.attributes


def _is_allocated(value: SSAValue) -> bool:
    return isinstance(value, OpResult) and value.op.name == "memref.alloc"
