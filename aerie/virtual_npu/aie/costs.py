"""How long a core computes, roughly: which of two events of a design comes first may hang on it.

Scalar code, one operation after the other: a load takes five cycles, a branch three (AIE2, as xdna-emu has
them). No bit of a result follows from these numbers.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Block, Operation

from aerie.air_dialect.index_constants import constant_int

KERNEL = 1000
"""Of a function of C++, which nothing is known of."""
_UNKNOWN_TRIPS = 16
BRANCH = 3
"""To go round a loop."""
_LOAD = 5
_FREE = ("arith.constant", "scf.yield", "memref.cast", "memref.subview", "memref.collapse_shape")


def cycles(op: Operation) -> int:
    """Of one operation, with the loops inside of it."""
    if op.name in _FREE:
        return 0
    inside = sum(_block_cycles(block) for region in op.regions for block in region.blocks)
    if op.regions:
        return (inside + BRANCH) * _trips(op)
    return _LOAD if op.name in ("memref.load", "vector.load", "vector.transfer_read") else 1


def _block_cycles(block: Block) -> int:
    return sum(map(cycles, block.ops))


def _trips(op: Operation) -> int:
    if isinstance(op, scf.IfOp):
        return 1
    if not isinstance(op, scf.ForOp):
        return _UNKNOWN_TRIPS
    low, high, step = (constant_int(value) for value in (op.lb, op.ub, op.step))
    if low is None or high is None or not step:
        return _UNKNOWN_TRIPS
    return max(-(-(high - low) // step), 0)
