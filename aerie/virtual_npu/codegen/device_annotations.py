"""What the device's registers and memories make of a program, noted on its operations for checks at run.

The passes rewrite a program before C++ is made of it; the device sees it as it was written. So this comes
first, and leaves attributes that the passes carry along.
"""

from __future__ import annotations

from xdsl.dialects import memref
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.ops import HerdOp
from aerie.air_dialect.refeeds import find_refeeds
from aerie.air_dialect.values import walk
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.l1_placement import misaligned_buffers
from aerie.device.npu2 import NPU2, DeviceModel
from aerie.device.rules.locks import lock_overflow_message
from aerie.device.scopes import CheckedProgram, CheckOptions
from aerie.device.transfers import memref_bytes, space_of

LOCK_ERROR = "vnpu.lock_fault"
"""Of a put: what is wrong with the lock that counts it, as a sentence."""
ALIGNMENT_OFFSET = "vnpu.l1_skew"
"""Of the allocation of an L1 buffer: how many bytes behind a multiple of the widest vector it begins."""
NO_ADDRESS = -1
"""The skew of what has no address in a core's L1, or one that is not known."""


def annotate_for_device(module: ModuleOp, device: DeviceModel = NPU2) -> None:
    """Note on the operations of a parsed module what checks need to know of the device, in place."""
    _annotate_locks(module, device)
    _annotate_buffers(module, device)


def lock_error(op: Operation) -> str | None:
    """What is wrong with the lock that counts a put; None where nothing is known to be."""
    found = op.attributes.get(LOCK_ERROR)
    return found.data if isinstance(found, StringAttr) else None


def _annotate_locks(module: ModuleOp, device: DeviceModel) -> None:
    for found in find_refeeds(module):
        if found.put is not None and found.count > device.max_lock_value:
            found.put.attributes[LOCK_ERROR] = StringAttr(lock_overflow_message(found, device))


def alignment_offset(buffer: SSAValue) -> int:
    """How many bytes behind a multiple of the widest vector a buffer begins in its core; NOWHERE where that
    is not known."""
    owner = buffer.owner
    if not isinstance(owner, memref.AllocOp) or space_of(buffer.type) != 2:
        return NO_ADDRESS
    found = owner.attributes.get(ALIGNMENT_OFFSET)
    return found.value.data if isinstance(found, IntegerAttr) else 0


def _annotate_buffers(module: ModuleOp, device: DeviceModel) -> None:
    """Buffers of odd sizes, and those that come to lie behind them."""
    made = [op for op in walk(module) if isinstance(op, memref.AllocOp) and space_of(op.memref.type) == 2]
    odd = [op for op in made if (memref_bytes(op.memref.type) or 1) % device.vector_bytes]
    if not odd:
        return
    for op in odd:
        # The copies of its tiles lie one behind the other here.
        if not any(isinstance(parent, HerdOp) for parent in parent_ops(op)):
            op.attributes[ALIGNMENT_OFFSET] = _number(NO_ADDRESS)
    for scope in CheckedProgram(module, device, CheckOptions()).scopes:
        for herds in scope.herds.values():
            for buffer, address in misaligned_buffers(scope, herds).items():
                if (
                    isinstance(buffer.owner, memref.AllocOp)
                    and ALIGNMENT_OFFSET not in buffer.owner.attributes
                ):
                    buffer.owner.attributes[ALIGNMENT_OFFSET] = _number(address % device.vector_bytes)


def _number(value: int) -> IntegerAttr:
    return IntegerAttr(value, 64)
