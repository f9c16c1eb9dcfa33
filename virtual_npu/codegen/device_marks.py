"""What the device's registers and memories make of a program, noted on its operations for checks at run.

The passes rewrite a program before C++ is made of it; the device sees it as it was written. So this comes
first, and leaves attributes that the passes carry along.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

from aerie.air_dialect.refeeds import refeeds
from aerie.virtual_npu.static.device import NPU2, Device
from aerie.virtual_npu.static.rules.locks import beyond_the_lock

LOCK_FAULT = "vnpu.lock_fault"
"""Of a put: what is wrong with the lock that counts it, as a sentence."""


def mark_for_device(module: ModuleOp, device: Device = NPU2) -> None:
    """Note on the operations of a parsed module what checks need to know of the device, in place."""
    _mark_locks(module, device)


def lock_fault(op: Operation) -> str | None:
    """What is wrong with the lock that counts a put; None where nothing is known to be."""
    found = op.attributes.get(LOCK_FAULT)
    return found.data if isinstance(found, StringAttr) else None


def _mark_locks(module: ModuleOp, device: Device) -> None:
    for found in refeeds(module):
        if found.put is not None and found.count > device.max_lock_value:
            found.put.attributes[LOCK_FAULT] = StringAttr(beyond_the_lock(found, device))
