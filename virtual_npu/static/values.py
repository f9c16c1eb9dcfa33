"""Reading values back out of AIR: what an index is, and which numbers it can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xdsl.dialects import affine, arith, memref
from xdsl.dialects.builtin import FileLineColLoc, IntegerAttr, MemRefType
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from air_dialect.ops import ExecuteOp, HierarchyOp

Known = Mapping[SSAValue, int]
"""Values that are taken to be a number, such as the ids of one tile."""
NOTHING: Known = {}


def line_of(op: Operation) -> int | None:
    """The line of an operation in its text, None for one made in Python."""
    return op.location.line.data if isinstance(op.location, FileLineColLoc) else None


def parents(op: Operation) -> Iterator[Operation]:
    """The operations around one, innermost first."""
    parent = op.parent_op()
    while parent is not None:
        yield parent
        parent = parent.parent_op()


def extents(op: HierarchyOp) -> tuple[int, ...]:
    """The extents of an iteration space; 1 for one that is not constant."""
    return tuple(1 if (size := constant(value)) is None else size for value in op.sizes)


def origin(value: SSAValue) -> SSAValue:
    """Where a value was made: through `args(...)`, results of `air.execute`, views and casts of memrefs."""
    while (source := _one_step(value)) is not None:
        value = source
    return value


def _one_step(value: SSAValue) -> SSAValue | None:
    owner = value.owner
    if isinstance(owner, Block):
        parent = owner.parent_op()
        return _outside(parent, value) if isinstance(parent, HierarchyOp) else None
    if isinstance(owner, ExecuteOp) and isinstance(value, OpResult) and value.index > 0:
        terminator = owner.regions[0].block.last_op
        return None if terminator is None else terminator.operands[value.index - 1]
    if isinstance(value.type, MemRefType) and not isinstance(owner, memref.AllocOp):
        views = [operand for operand in owner.operands[:1] if isinstance(operand.type, MemRefType)]
        return views[0] if views else None
    return None


def _outside(parent: HierarchyOp, value: SSAValue) -> SSAValue | None:
    """What a block argument of a hierarchy stands for; None for the coordinates."""
    if not isinstance(value, BlockArgument):
        return None
    dims = len(parent.sizes)
    if value.index < dims:
        return None
    return (*parent.sizes, *parent.kernel_operands)[value.index - dims]


def constant(value: SSAValue) -> int | None:
    """The integer that a value is known to be, else None."""
    return evaluate(value, NOTHING)


def evaluate(value: SSAValue, known: Known) -> int | None:
    """The integer that a value is where those of `known` are as given; None where it depends on more."""
    if value in known:
        return known[value]
    value = origin(value)
    if value in known:
        return known[value]
    owner = value.owner
    if isinstance(owner, Block):
        return None
    if isinstance(owner, arith.ConstantOp):
        return owner.value.value.data if isinstance(owner.value, IntegerAttr) else None
    if not isinstance(owner, _Arithmetic):
        return None
    operands = [evaluate(operand, known) for operand in owner.operands]
    numbers = [number for number in operands if number is not None]
    return _result(owner, numbers) if len(numbers) == len(operands) else None


_Arithmetic = (
    affine.ApplyOp
    | arith.AddiOp
    | arith.SubiOp
    | arith.MuliOp
    | arith.DivUIOp
    | arith.DivSIOp
    | arith.RemUIOp
    | arith.RemSIOp
    | arith.IndexCastOp
    | arith.CmpiOp
)


def _result(op: Operation, numbers: Sequence[int]) -> int | None:
    if isinstance(op, affine.ApplyOp):
        dims = op.map.data.num_dims
        try:
            return op.map.data.results[0].eval(numbers[:dims], numbers[dims:])
        except ZeroDivisionError:
            return None
    if isinstance(op, arith.IndexCastOp):
        return numbers[0]
    left, right = numbers
    if isinstance(op, arith.AddiOp):
        return left + right
    if isinstance(op, arith.SubiOp):
        return left - right
    if isinstance(op, arith.MuliOp):
        return left * right
    if isinstance(op, arith.CmpiOp):
        return _compared(op.predicate.value.data, left, right)
    if right == 0:
        return None
    whole = abs(left) // abs(right) * (1 if left * right >= 0 else -1)
    return whole if isinstance(op, arith.DivUIOp | arith.DivSIOp) else left - whole * right


def _compared(predicate: int, left: int, right: int) -> int | None:
    """arith.cmpi; unsigned predicates only of numbers that are not negative."""
    signed = (left == right, left != right, left < right, left <= right, left > right, left >= right)
    if predicate < len(signed):
        return int(signed[predicate])
    return int(signed[predicate - 4]) if min(left, right) >= 0 else None


def leaves(value: SSAValue) -> Iterator[SSAValue]:
    """The values, none of them constants, that an index is computed from."""
    value = origin(value)
    if isinstance(value.owner, Block):
        yield value
    elif constant(value) is None:
        if not value.owner.operands:
            yield value
        for operand in value.owner.operands:
            yield from leaves(operand)
