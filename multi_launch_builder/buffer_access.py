"""How a kernel uses its buffer arguments: which it reads, which it writes, and in which order.

One table has the effects of operations (air_dialect.effects). An operation that it lacks (a call into an
object file, say) may read and may write: it counts as a use, and never causes a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue, Use
from xdsl.traits import SymbolTable

from aerie.air_dialect.effects import MAYBE, NONE, PASS, READ, UNKNOWN, VIEW, WRITE, Effect, memory_effects
from aerie.air_dialect.ops import ExecuteOp, HierarchyOp
from aerie.multi_launch_builder.submodule import SubModule


@dataclass(frozen=True)
class BufferAccess:
    """What a launch does to one buffer. `may_`: what it can do; the others: what it always does.

    reads_before_write: the first access, in the order of the text, is a read.
    """

    may_read: bool
    may_write: bool
    must_write: bool
    reads_before_write: bool


def argument_accesses(sub: SubModule) -> dict[str, BufferAccess]:
    """How every argument of the kernel is accessed, by name. order: the position in the text."""
    order = {id(op): position for position, op in enumerate(sub.function.walk())}
    return {
        name: _summary(argument, order)
        for name, argument in zip(sub.argument_names, sub.arguments, strict=True)
    }


def _summary(argument: SSAValue, order: dict[int, int]) -> BufferAccess:
    accesses = [(order.get(id(use.operation), len(order)), effect) for use, effect in _accesses(argument)]
    first = min((position for position, _ in accesses), default=None)
    certain = [(position, effect) for position, effect in accesses if MAYBE not in effect]
    return BufferAccess(
        may_read=any(READ in effect for _, effect in accesses),
        may_write=any(WRITE in effect for _, effect in accesses),
        must_write=any(WRITE in effect for _, effect in certain),
        reads_before_write=any(READ in effect for position, effect in certain if position == first),
    )


def _accesses(value: SSAValue) -> Iterator[tuple[Use, Effect]]:
    """Every access to `value` and to views of it, through hierarchy operations, loops and calls."""
    seen: set[SSAValue] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in current.uses:
            names = _other_names(use)
            pending += names
            effect = NONE if names else _effect(use)
            if effect & (READ | WRITE):
                yield use, effect


def _other_names(use: Use) -> list[SSAValue]:
    """The names of a used value inside or after the operation, if that only forwards it."""
    op = use.operation
    value, around = op.operands[use.index], op.parent_op()
    if isinstance(op, HierarchyOp):
        pairs = zip(op.kernel_operands, op.kernel_args, strict=True)
        return [argument for operand, argument in pairs if operand is value]
    if (use.index, VIEW) in memory_effects(op):
        return [op.results[0]]
    if isinstance(op, CallOp):
        return _callee_arguments(op, use.index)
    if isinstance(op, scf.ForOp) and use.index >= 3:
        return [op.body.block.args[use.index - 2], op.results[use.index - 3]]
    if op.name == "scf.yield" and isinstance(around, scf.ForOp):
        return [around.body.block.args[use.index + 1], around.results[use.index]]
    if op.name == "air.execute_terminator" and isinstance(around, ExecuteOp):
        return [around.values[use.index]]
    return [around.results[use.index]] if op.name == "scf.yield" and isinstance(around, scf.IfOp) else []


def _callee_arguments(call: CallOp, index: int) -> list[SSAValue]:
    callee = SymbolTable.lookup_symbol(call, call.callee)
    if isinstance(callee, FuncOp) and not callee.is_declaration:
        return [callee.args[index]]
    return []


def _effect(use: Use) -> Effect:
    """The effect of an operation on the value; anything, if the value is passed on out of sight."""
    op = use.operation
    effect = dict(memory_effects(op)).get(
        use.index, READ | MAYBE
    )  # what is no memref, such as a number, is only read
    return UNKNOWN if effect is PASS and op.name != "func.return" else effect
