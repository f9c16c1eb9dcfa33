"""Shifts that a core rounds: `shrsi`, a clamp to the result's range, and `trunci`, which it does as one.

For an i32 that is shifted right, clamped and made an i8 or i16, mlir-aie emits one instruction, SRS
(`LowerScalarShiftClampTruncToSRS` of VectorToAIEVecConversions.cpp), and lets the core round halves up for it
(rounding mode 9, AIECoreToStandard.cpp). MLIR's own meaning rounds down; mlir-air's scalar_shift_saturate
expects the core's. (A core that multiplies bf16 matrices too rounds halves to even. Here it does not.)
"""

from __future__ import annotations

from typing import NamedTuple

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.aie.array import CoreOp
from aerie.air_dialect.index_expressions import literal_constant
from aerie.air_dialect.ops import HerdOp
from aerie.air_dialect.verifiers import parent_ops


class RoundedShift(NamedTuple):
    """A shift of a number by some bits, then a clamp."""

    number: SSAValue
    bits: SSAValue
    low: int
    high: int


def rounded_shift(op: Operation) -> RoundedShift | None:
    """What a `trunci` is the end of; None where it stands in no core, or cuts off something else."""
    source, target = op.operands[0], op.results[0].type
    if (
        not isinstance(target, IntegerType)
        or target.width.data not in (8, 16)
        or source.type != IntegerType(32)
    ):
        return None
    bounds = dict[type[Operation], int | None]()
    for kinds in ((arith.MinSIOp, arith.MaxSIOp), (arith.MinSIOp, arith.MaxSIOp)):
        if not isinstance(source.owner, kinds):
            return None
        bounds[type(source.owner)] = literal_constant(source.owner.operands[1])
        source = source.owner.operands[0]
    low, high = bounds.get(arith.MaxSIOp), bounds.get(arith.MinSIOp)
    if low is None or high is None or not _is_range(low, high, target.width.data):
        return None
    if not isinstance(source.owner, arith.ShRSIOp):
        return None
    if not any(isinstance(parent, HerdOp | CoreOp) for parent in parent_ops(op)):
        return None
    number, bits = source.owner.operands
    return RoundedShift(number, bits, low, high)


def _is_range(low: int, high: int, width: int) -> bool:
    """Whether two bounds are those of an integer of some bits, with or without a sign."""
    half = 1 << (width - 1)
    return (low, high) in ((-half, half - 1), (0, 2 * half - 1))
