"""Marks the operations that are emitted outside of the body's own C++, by the body's mode.

- `vnpu.nest`: the outermost of loops that read or write memory, in a tile that suspends at channels
  (compilers keep what a coroutine computes with in memory, so its loops become a function of their own),
  and in programs with checks (two versions of them, codegen/vnpu_ops.py).
- `vnpu.task`: an operation that reads or writes memory itself, in a body whose engines run side by side.
"""

from __future__ import annotations

from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Operation

from aerie.air_dialect.effects import accesses
from aerie.air_dialect.ops import AsyncTokenType
from aerie.air_dialect.values import walk
from aerie.virtual_npu.codegen.dialect import NestOp, ProductOp, TaskOp, wrap
from aerie.virtual_npu.codegen.execution import BodyMode, accesses_memory, visit_operations
from aerie.virtual_npu.options import BuildOptions

_LOOPS = frozenset(["scf.for", "scf.parallel", "scf.forall", "scf.while", "affine.for", "affine.parallel"])
_NOT_INSIDE = frozenset([
    "memref.alloc", "memref.alloca", "memref.dealloc", "memref.reinterpret_cast", "memref.view",
    "memref.reshape", "memref.get_global", "func.call",
])  # fmt: skip
"""What changes buffers, makes views that may lie outside, or takes pointers that know their buffer."""


def mark_nests(module: ModuleOp, options: BuildOptions) -> None:
    """Put `vnpu.nest` around such loops, but not around the original loops of a product."""

    def visit(op: Operation, mode: BodyMode) -> bool:
        is_candidate = mode is BodyMode.PROCESS or (options.checks and mode is BodyMode.STRAIGHT)
        if not is_candidate or isinstance(op.parent_op(), ProductOp) or not is_nest(op):
            return True
        wrap(op, NestOp)
        return False

    visit_operations(module, options, visit)


def is_nest(op: Operation) -> bool:
    """Whether an operation is a loop that accesses memory and waits for nothing."""
    inside = list(walk(op))
    return op.name in _LOOPS and all(map(_may_be_inside, inside)) and any(map(accesses, inside))


def _may_be_inside(op: Operation) -> bool:
    if op.name in _NOT_INSIDE or op.name.startswith(("air.", "aie.")):
        return False
    if isinstance(op, ProductOp) or op.name.startswith("linalg."):
        return True
    values = [*op.operands, *op.results] if op.regions else []
    values += [argument for region in op.regions for block in region.blocks for argument in block.args]
    return not any(isinstance(value.type, MemRefType | AsyncTokenType) for value in values)


def mark_tasks(module: ModuleOp, options: BuildOptions) -> None:
    """Put `vnpu.task` around such operations."""

    def visit(op: Operation, mode: BodyMode) -> bool:
        if mode is BodyMode.SEQUENCER and accesses_memory(op):
            wrap(op, TaskOp)
        return True

    visit_operations(module, options, visit)
