"""Checks that the vectors of a core begin where its loads and stores do, where the text does not show it."""

from __future__ import annotations

from xdsl.dialects.builtin import VectorType
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.index_divisors import known_divisor
from aerie.air_dialect.ops import HerdOp
from aerie.air_dialect.values import resolve_alias, root_value
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.npu2 import NPU2
from aerie.device.rules.alignment import VectorAccess, vector_access
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.body import Body
from aerie.virtual_npu.codegen.device_annotations import NO_ADDRESS, alignment_offset
from aerie.virtual_npu.codegen.memory import place_name


def check_alignment(body: Body, op: Operation, pointer: str, strides: str) -> None:
    """Emit a check that a vector access in a herd is aligned, unless the text shows that it is.

    pointer, strides: C++ text of where it begins, and of the strides of its dimensions.
    """
    if not body.checked or not any(isinstance(parent, HerdOp) for parent in parent_ops(op)):
        return
    access = vector_access(op, NPU2)
    if access is None or access.is_shifted:
        return
    buffer = root_value(access.base)
    offset = alignment_offset(buffer)
    if offset == NO_ADDRESS or (offset == 0 and _is_known(access, buffer)):
        return
    shape = ", ".join(map(str, _moved(op).get_shape() or (1,)))
    writes = str(not access.reads).lower()
    body.emit_line(
        f"vnpu::aligned<{shape}>({place_name(body, op, access.base)}, {writes}, {pointer}, {strides});"
    )


def _moved(op: Operation) -> VectorType:
    moved = op.results[0].type if op.results else op.operands[0].type
    assert isinstance(moved, VectorType)
    return moved


def _is_known(access: VectorAccess, buffer: SSAValue) -> bool:
    """Whether the text shows that an access to an aligned buffer is aligned."""
    strides = access.strides
    if strides is None or None in strides or not _is_whole(access.base, buffer) or not _is_dense(access):
        return False
    steps = zip(map(known_divisor, access.indices), strides, strict=True)
    return all(step * (stride or 0) % access.width == 0 for step, stride in steps)


def _is_whole(value: SSAValue, buffer: SSAValue) -> bool:
    """Whether a memref is the buffer under another name, not a view of it."""
    while value is not buffer:
        source = resolve_alias(value)
        if source is None:
            return False
        value = source
    return True


def _is_dense(access: VectorAccess) -> bool:
    """Whether the vector lies in one piece: its dimensions are the memref's last ones."""
    shape = _moved(access.op).get_shape()
    rank = len(access.indices)
    return len(shape) <= rank and types.memref_strides(access.type)[rank - len(shape) :] == types.row_major(
        shape
    )
