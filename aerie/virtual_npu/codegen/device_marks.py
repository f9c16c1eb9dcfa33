"""What the device's registers and memories make of a program, noted on its operations for checks at run.

The passes rewrite a program before C++ is made of it; the device sees it as it was written. So this comes
first, and leaves attributes that the passes carry along.
"""

from __future__ import annotations

from xdsl.dialects import memref
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.ops import HerdOp
from aerie.air_dialect.refeeds import refeeds
from aerie.air_dialect.verifiers import enclosing
from aerie.device.l1 import misplaced
from aerie.device.npu2 import NPU2, Device
from aerie.device.rules.locks import beyond_the_lock
from aerie.device.scopes import Options, Program
from aerie.device.transfers import memref_bytes, space_of

LOCK_FAULT = "vnpu.lock_fault"
"""Of a put: what is wrong with the lock that counts it, as a sentence."""
SKEW = "vnpu.l1_skew"
"""Of the allocation of an L1 buffer: how many bytes behind a multiple of the widest vector it begins."""
NOWHERE = -1
"""The skew of what has no address in a core's L1, or one that is not known."""


def mark_for_device(module: ModuleOp, device: Device = NPU2) -> None:
    """Note on the operations of a parsed module what checks need to know of the device, in place."""
    _mark_locks(module, device)
    _mark_buffers(module, device)


def lock_fault(op: Operation) -> str | None:
    """What is wrong with the lock that counts a put; None where nothing is known to be."""
    found = op.attributes.get(LOCK_FAULT)
    return found.data if isinstance(found, StringAttr) else None


def _mark_locks(module: ModuleOp, device: Device) -> None:
    for found in refeeds(module):
        if found.put is not None and found.count > device.max_lock_value:
            found.put.attributes[LOCK_FAULT] = StringAttr(beyond_the_lock(found, device))


def skew_of(buffer: SSAValue) -> int:
    """How many bytes behind a multiple of the widest vector a buffer begins in its core; NOWHERE where that
    is not known."""
    owner = buffer.owner
    if not isinstance(owner, memref.AllocOp) or space_of(buffer.type) != 2:
        return NOWHERE
    found = owner.attributes.get(SKEW)
    return found.value.data if isinstance(found, IntegerAttr) else 0


def _mark_buffers(module: ModuleOp, device: Device) -> None:
    """Buffers of odd sizes, and those that come to lie behind them."""
    made = [op for op in module.walk() if isinstance(op, memref.AllocOp) and space_of(op.memref.type) == 2]
    odd = [op for op in made if (memref_bytes(op.memref.type) or 1) % device.vector_bytes]
    if not odd:
        return
    for op in odd:
        # The copies of its tiles lie one behind the other here.
        if not any(isinstance(parent, HerdOp) for parent in enclosing(op)):
            op.attributes[SKEW] = _number(NOWHERE)
    for scope in Program(module, device, Options()).scopes:
        for herds in scope.herds.values():
            for buffer, address in misplaced(scope, herds).items():
                if isinstance(buffer.owner, memref.AllocOp) and SKEW not in buffer.owner.attributes:
                    buffer.owner.attributes[SKEW] = _number(address % device.vector_bytes)


def _number(value: int) -> IntegerAttr:
    return IntegerAttr(value, 64)
