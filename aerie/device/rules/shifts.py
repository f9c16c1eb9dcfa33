"""Scalar shifts to the right on a core, which rounds where MLIR rounds down.

mlir-aie makes a scalar `arith.shrsi` of i32 a vector's (broadcast_scalar, UPS, SRS, ext_elem: Test 3 of its
test-scalar-promotion.mlir), and lets a core with an integer SRS round halves up (AIECoreToStandard.cpp, mode
9). What that means for a shift by itself was not measured, so this is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import arith
from xdsl.dialects.builtin import i32
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.index_expressions import literal_constant
from aerie.device.report import Fault, Finding
from aerie.device.rules.lowering import core_operations
from aerie.device.scopes import CheckedProgram, op_location

SOURCE = "mlir-aie test/Conversion/VectorToAIEVec/test-scalar-promotion.mlir"
WIDTH = 32
"""Bits of what is shifted: a shift by more has no meaning."""
_CLAMPS = (arith.MinSIOp, arith.MaxSIOp)


def check_shifts(program: CheckedProgram) -> Iterator[Finding]:
    """Scalar shifts of i32 to the right that may round, each once in a place."""
    places = set[str]()
    for op in core_operations(program.module):
        if isinstance(op, arith.ShRSIOp) and op.result.type == i32 and _may_round(op):
            place = op_location(op)
            if place not in places:
                places.add(place)
                yield Fault("shift", place, _MESSAGE, SOURCE, op, certain=False)


_MESSAGE = (
    "i32: mlir-aie shifts a scalar as a vector, by SRS, which rounds halves up on such a core (7 >> 1 is 4), "
    "where MLIR and the virtual NPU round down (3); clear the bits that go (arith.andi): then both agree"
)


def _may_round(op: arith.ShRSIOp) -> bool:
    """Whether bits may go that are not zero, and the core's rounding is not what is wanted anyway."""
    bits = literal_constant(op.rhs)
    return bits != 0 and not _is_cleared(op.lhs, bits) and not _is_narrowed(op)


def _is_cleared(number: SSAValue, bits: int | None) -> bool:
    """Whether the lowest bits of a number are zero for certain, by an `and` or a shift to the left."""
    owner = number.owner
    if bits is None or not 0 < bits < WIDTH or not isinstance(owner, arith.AndIOp | arith.ShLIOp):
        return False
    second = literal_constant(owner.operands[1])
    if second is None:
        return False
    return second >= bits if isinstance(owner, arith.ShLIOp) else second & ((1 << bits) - 1) == 0


def _is_narrowed(op: Operation) -> bool:
    """Whether a shift is clamped and made an i8 or i16: one SRS, whose rounding programs count on, and
    the virtual NPU has it."""
    for _ in _CLAMPS:
        users = [use.operation for use in op.results[0].uses]
        if len(users) != 1 or not isinstance(users[0], _CLAMPS):
            return False
        op = users[0]
    return any(isinstance(use.operation, arith.TruncIOp) for use in op.results[0].uses)
