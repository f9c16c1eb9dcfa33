"""Conditions on tile ids: whether an operation runs on one core."""

from __future__ import annotations

from xdsl.dialects import affine, scf
from xdsl.ir import Operation
from xdsl.ir.affine import AffineConstraintKind

from aerie.air_dialect.index_constants import NUMBERS, Known, constant_ints
from aerie.air_dialect.index_expressions import iteration_range
from aerie.air_dialect.index_operators import IndexRange
from aerie.air_dialect.ops import HerdOp
from aerie.air_dialect.verifiers import parent_ops


def may_run_on(op: Operation, herd: HerdOp, bindings: Known) -> bool:
    """Whether `op` may run on a core of the herd; False only if a condition on tile ids excludes it."""
    child: Operation = op
    for parent in parent_ops(op):
        if parent is herd:
            return True
        if isinstance(parent, affine.IfOp | scf.IfOp):
            holds = condition_holds(parent, bindings)
            if holds is not None and holds != (child.parent is parent.regions[0].block):
                return False
        child = parent
    return True


def is_dead(op: Operation) -> bool:
    """Whether a loop without trips or a constant condition excludes an operation on every core."""
    child: Operation = op
    for parent in parent_ops(op):
        if isinstance(parent, scf.ForOp | affine.ForOp | scf.ParallelOp | affine.ParallelOp):
            spaces = map(iteration_range, parent.regions[0].block.args)
            if any(space is not None and _is_empty(space) for space in spaces):
                return True
        holds = condition_holds(parent, {}) if isinstance(parent, scf.IfOp) else None
        if holds is not None and holds != (child.parent is parent.regions[0].block):
            return True
        child = parent
    return False


def _is_empty(space: IndexRange) -> bool:
    low, high, step = (NUMBERS.analyze_term(bound) for bound in space[:3])
    return low is not None and high is not None and bool(step) and high <= low


def condition_holds(op: affine.IfOp | scf.IfOp, bindings: Known) -> bool | None:
    """Whether the condition holds on this core; None where it depends on more than the tile ids."""
    operands = constant_ints(op.operands, bindings)
    if operands is None or isinstance(op, scf.IfOp):
        return None if operands is None else bool(operands[0])
    condition = op.condition.data
    dims, symbols = operands[: condition.num_dims], operands[condition.num_dims :]
    return all(
        _satisfied(c.kind, c.lhs.eval(dims, symbols) - c.rhs.eval(dims, symbols))
        for c in condition.constraints
    )


def _satisfied(kind: AffineConstraintKind, difference: int) -> bool:
    if kind is AffineConstraintKind.eq:
        return difference == 0
    return difference >= 0 if kind is AffineConstraintKind.ge else difference <= 0
