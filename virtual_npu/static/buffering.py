"""Which buffers aircc makes two of, to fill one while the other is worked on."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue

from air_dialect.ops import HerdOp, HierarchyOp, SegmentOp
from virtual_npu.static.patterns import Side
from virtual_npu.static.values import origin, parents


def double_buffered(sides: Iterable[Side]) -> frozenset[SSAValue]:
    """The buffers that mlir-air may double (AIRDependencyScheduleOpt.cpp, labelling for ping-pong).

    On the safe side: every buffer that a DMA fills or empties in a loop of its own herd or segment, unless
    that loop opts out (`air.disable_ping_pong`) or was unrolled for its two buffers before (`unroll`, with
    the buffer outside).
    """
    return frozenset(
        buffer for side in sides if _looped(side.op, buffer := origin(side.memref), _level(side.space))
    )


def _level(space: int) -> type[HierarchyOp]:
    return HerdOp if space == 2 else SegmentOp


def _looped(op: Operation, buffer: SSAValue, level: type[HierarchyOp]) -> bool:
    if not _made_in(buffer, level):
        return False
    loops = _loops(op, level)
    return bool(loops) and not any(_stays_single(loop, buffer) for loop in loops)


def _made_in(value: SSAValue, level: type[HierarchyOp]) -> bool:
    owner = value.owner
    if not isinstance(owner, Operation):
        return False
    around = next((op for op in parents(owner) if isinstance(op, HierarchyOp)), None)
    return isinstance(around, level)


def _loops(op: Operation, level: type[HierarchyOp]) -> list[scf.ForOp]:
    """The loops around an operation, up to the nearest hierarchy of a kind."""
    found = []
    for parent in parents(op):
        if isinstance(parent, level):
            break
        if isinstance(parent, scf.ForOp):
            found.append(parent)
    return found


def _stays_single(loop: scf.ForOp, buffer: SSAValue) -> bool:
    inner = (op for op in loop.walk() if isinstance(op, scf.ForOp))
    opted_out = any("air.disable_ping_pong" in op.attributes for op in inner)
    outside = isinstance(buffer.owner, Operation) and loop not in parents(buffer.owner)
    return opted_out or ("unroll" in loop.attributes and outside)
