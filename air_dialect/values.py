"""Where a value comes from: what it is called outside of a hierarchy, in an `air.execute`, before views."""

from __future__ import annotations

from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from aerie.air_dialect.effects import VIEWS
from aerie.air_dialect.execution import ExecuteOp
from aerie.air_dialect.hierarchy import HierarchyOp
from aerie.air_dialect.verifiers import enclosing


def passed(value: SSAValue) -> SSAValue | None:
    """The value that this one is under another name: inside a hierarchy, or after an `air.execute`."""
    if isinstance(value, BlockArgument):
        return captured(value)
    owner = value.owner
    if isinstance(owner, ExecuteOp) and isinstance(value, OpResult) and value.index > 0:
        end = owner.body.block.last_op
        return None if end is None else end.operands[value.index - 1]
    return None


def captured(value: BlockArgument) -> SSAValue | None:
    """What a size or an argument in the body of a hierarchy is outside of it."""
    around = value.owner.parent_op()
    if not isinstance(around, HierarchyOp) or value.index < len(around.sizes):
        return None
    return (*around.sizes, *around.kernel_operands)[value.index - len(around.sizes)]


def origin(value: SSAValue) -> SSAValue:
    """Where a value was made: what it is called there, and of a view the memref that it looks at."""
    while True:
        source = passed(value)
        if source is None and isinstance(value, OpResult) and value.op.name in VIEWS and value.index == 0:
            source = value.op.operands[0]
        if source is None:
            return value
        value = source


def is_inside(op: Operation, value: SSAValue) -> bool:
    """Whether a value is defined in a region of `op`."""
    around = value.owner.parent_op()
    return around is not None and (around is op or op in enclosing(around))
