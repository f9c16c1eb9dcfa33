"""Where a value comes from: through arguments of a hierarchy, results of `air.execute`, and views."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from aerie.air_dialect.effects import VIEWS
from aerie.air_dialect.execution import ExecuteOp
from aerie.air_dialect.hierarchy import HierarchyOp
from aerie.air_dialect.verifiers import parent_ops


def resolve_alias(value: SSAValue) -> SSAValue | None:
    """The value that this one is another name of: the operand behind an argument of a hierarchy, or what the
    body of an `air.execute` returns for this result. None for any other value."""
    if isinstance(value, BlockArgument):
        return captured_operand(value)
    owner = value.owner
    if isinstance(owner, ExecuteOp) and isinstance(value, OpResult) and value.index > 0:
        end = owner.body.block.last_op
        return None if end is None else end.operands[value.index - 1]
    return None


def captured_operand(value: BlockArgument) -> SSAValue | None:
    """The operand behind an argument of a hierarchy's body: a size or a captured value; None for an id."""
    around = value.owner.parent_op()
    if not isinstance(around, HierarchyOp):
        return None
    sizes = around.sizes
    place = value.index - len(sizes)
    if place < 0:
        return None
    return sizes[place] if place < len(sizes) else around.kernel_operands[place - len(sizes)]


def root_value(value: SSAValue) -> SSAValue:
    """The value where it was defined: behind all other names of it, and for a view, the memref it is a view
    of."""
    while True:
        source = resolve_alias(value)
        if source is None and isinstance(value, OpResult) and value.op.name in VIEWS and value.index == 0:
            source = value.op.operands[0]
        if source is None:
            return value
        value = source


def is_defined_in(op: Operation, value: SSAValue) -> bool:
    """Whether a value is defined in a region of `op`."""
    around = value.owner.parent_op()
    return around is not None and (around is op or op in parent_ops(around))


def walk(op: Operation) -> Iterator[Operation]:
    """An operation and everything in it, each before what is in it.

    As `Operation.walk`, of which a step takes longer the deeper it is. What is in an operation is looked up
    when the walk goes on from it.
    """
    pending = [op]
    while pending:
        current = pending.pop()
        yield current
        if current.regions:
            blocks = [block for region in current.regions for block in region.blocks]
            pending += reversed([inner for block in blocks for inner in block.ops])
