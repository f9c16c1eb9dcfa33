"""Locks: how often a buffer is sent per fill, and where a core takes the lock of what it puts.

Nothing in the tools refuses a lock value that is too large: a memtile's lock with `init = 74`, acquired by
74, comes out of air-to-aie (e972f294), and mlir-aie (7e00b579) has no check of it. The register has 6 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from xdsl.dialects import affine, scf
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.effects import accesses
from aerie.air_dialect.ops import ChannelPutOp, ChannelTransferOp, DmaMemcpyNdOp, ExecuteOp, HerdOp
from aerie.air_dialect.refeeds import REFEED_COUNT, Refeed, find_refeeds
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.values import root_value
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.npu2 import REFEED_PASS, TARGET_MODEL, TO_AIE, DeviceModel
from aerie.device.report import Fault, Finding, line_of
from aerie.device.scopes import NO_DMA, CheckedProgram, op_location
from aerie.device.transfers import space_of


def check_refeed_counts(program: CheckedProgram) -> Iterator[Finding]:
    """Buffers that are sent more often per fill than a lock counts, or whose loop aircc takes away."""
    for refeed in find_refeeds(program.module):
        if refeed.count > program.device.max_lock_value:
            message = lock_overflow_message(refeed, program.device)
            yield Fault("refeed", op_location(refeed.attribute_op), message, TARGET_MODEL, _at(refeed))
        if refeed.in_loop and refeed.put is not None and refeed.attribute_op is refeed.put:
            yield from _lost(refeed, refeed.put)


def lock_overflow_message(refeed: Refeed, device: DeviceModel) -> str:
    """What to say of a buffer that is sent more often per fill than a lock counts."""
    limit, wrapped = device.max_lock_value, refeed.count % (device.max_lock_value + 1)
    what = f"{REFEED_COUNT} = {refeed.count}"
    if refeed.in_loop:
        what = f"a loop that puts the same {refeed.count} times, which becomes {what}"
    return (
        f"{what}; a lock counts to {limit}, so {refeed.count} wraps to {wrapped} and the array waits for "
        f"ever; send the buffer at most {limit} times per fill"
    )


def _at(refeed: Refeed) -> Operation:
    return refeed.attribute_op if refeed.put is None else refeed.put


def _lost(refeed: Refeed, put: ChannelPutOp) -> Iterator[Fault]:
    """Loops over puts of L3, or of L2 that is allocated elsewhere: no lock would count their puts."""
    space = space_of(put.memref.type)
    if space == 0:
        message = (
            f"a loop that puts the same part of L3 {refeed.count} times; aircc's first pass makes one put of "
            "it, and the shim sends that once, so who gets the others waits for ever; write one put whose "
            f"outermost dimension has size {refeed.count} and stride 0"
        )
        yield Fault("refeed", op_location(put), message, REFEED_PASS, put, certain=False)
    elif space == 1:
        message = (
            f"a loop that puts the same part of {attribute_text(put.memref.type)} {refeed.count} times, "
            "whose memref.alloc cannot be seen; air-annotate-refeed refuses it, so put the buffer itself"
        )
        yield Fault("refeed", op_location(put), message, REFEED_PASS, put)


# ---- where a core takes the lock of what it puts ----


def check_late_acquires(program: CheckedProgram) -> Iterator[Finding]:
    """Puts of L1 in a block of their own, behind the block in which a loop fills the buffer.

    The core takes the lock where the put's block begins, so from the second round on it fills what a DMA may
    still be reading: upstream lost a row of each later fill so (mlir-air, qwen3_4b_q4nx).
    """
    for put in program.module.walk():
        if isinstance(put, ChannelPutOp) and space_of(put.memref.type) == 2:
            write = next(_written_before(put), None)
            if write is not None and program.channel_type(put.chan_name) not in NO_DMA:
                yield Fault("late-acquire", op_location(put), _late(write), TO_AIE, put, certain=False)


def _late(write: Operation) -> str:
    line = line_of(write)
    where = write.name if line is None else f"line {line} ({write.name})"
    return (
        f"the core takes the buffer's lock where the block of this put begins, after {where} has written the "
        "buffer: from the second round on it may overwrite what the put before still sends; put it in the "
        "same block as what fills it"
    )


def _written_before(put: ChannelPutOp) -> Iterator[Operation]:
    """What writes a put's buffer in a block around the put's, before it, in a loop of the same core."""
    buffer, child = root_value(put.memref), put.parent_op()
    while child is not None and not isinstance(child, HerdOp):
        block, around = child.parent, [child, *parent_ops(child)]
        loops = any(isinstance(op, scf.ForOp | affine.ForOp) for op in _inside_herd(around[1:]))
        if loops and block is not None and not isinstance(child, ExecuteOp):
            for op in block.ops:
                if op is child:
                    break
                yield from (inner for inner in op.walk() if _fills(inner, buffer))
        child = child.parent_op()


def _fills(op: Operation, buffer: SSAValue) -> bool:
    """Whether the core itself writes a buffer; a DMA that does has the buffer's locks."""
    if isinstance(op, ChannelTransferOp | DmaMemcpyNdOp):
        return False
    return any(writes and root_value(value) is buffer for value, writes in accesses(op))


def _inside_herd(operations: list[Operation]) -> Iterator[Operation]:
    return takewhile(lambda op: not isinstance(op, HerdOp), operations)
