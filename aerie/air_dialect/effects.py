"""Memory effects: one table of which memref operand an operation reads, writes, deallocates or views.

`effects(op)` goes through the memref operands of an operation in their order. Operations of linalg follow a
rule of their own: inputs are read; outputs are written, and read too where the body uses their old elements.
An operation in no table, such as a call, may read and may write.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto

from xdsl.dialects.builtin import MemRefType, UnrankedMemRefType
from xdsl.ir import Operation, SSAValue


class Effect(Flag):
    """What an operation does to a memref operand. NONE where it asks for the shape alone."""

    NONE = 0
    READ = auto()
    WRITE = auto()
    FREE = auto()
    """It is deallocated."""
    VIEW = auto()
    """The result is a view of it: both alias."""
    PASS = auto()
    """It is handed on: to an argument of the body, or as a result of the operation around."""
    MAYBE = auto()
    """Together with READ or WRITE: that may happen, and need not."""


NONE, READ, WRITE, FREE, VIEW, PASS, MAYBE = (
    Effect.NONE, Effect.READ, Effect.WRITE, Effect.FREE, Effect.VIEW, Effect.PASS, Effect.MAYBE,
)  # fmt: skip
UNKNOWN = READ | WRITE | MAYBE

ACCESSES: Mapping[str, tuple[int, Effect]] = {
    "memref.load": (0, READ), "affine.load": (0, READ), "affine.vector_load": (0, READ),
    "vector.load": (0, READ), "vector.transfer_read": (0, READ),
    "memref.store": (1, WRITE), "affine.store": (1, WRITE), "affine.vector_store": (1, WRITE),
    "vector.store": (1, WRITE), "vector.transfer_write": (1, WRITE),
}  # fmt: skip
"""Loads and stores of an element, or of consecutive elements from an index on: the position of the memref
among the operands, which the indices follow, and the effect on it."""

SCATTERED: Mapping[str, tuple[int, Effect]] = {
    "vector.maskedload": (0, READ), "vector.gather": (0, READ), "vector.expandload": (0, READ),
    "vector.maskedstore": (0, WRITE), "vector.scatter": (0, WRITE), "vector.compressstore": (0, WRITE),
    "memref.atomic_rmw": (1, READ | WRITE), "memref.generic_atomic_rmw": (0, READ | WRITE),
}  # fmt: skip
"""The same for masked, gathering and scattering accesses, which touch some elements only, and for atomics."""

VIEWS = frozenset([
    "memref.subview", "memref.collapse_shape", "memref.expand_shape", "memref.cast", "memref.view",
    "memref.memory_space_cast", "memref.reinterpret_cast", "memref.assume_alignment", "memref.transpose",
    "memref.reshape", "memref.extract_strided_metadata",
])  # fmt: skip
"""Operations whose first result is a view of their first operand."""

ALLOCATIONS = frozenset(["memref.alloc", "memref.alloca"])
"""Operations whose result is a new buffer."""

OPERANDS: Mapping[str, tuple[Effect, ...]] = {
    **{name: (effect,) for name, (_, effect) in (*ACCESSES.items(), *SCATTERED.items())},
    **dict.fromkeys(VIEWS, (VIEW,)),
    "memref.reshape": (VIEW, READ),
    "memref.copy": (READ, WRITE),
    "memref.dealloc": (FREE,),
    **dict.fromkeys(("memref.dim", "memref.rank", "memref.prefetch"), (NONE,)),
    "memref.extract_aligned_pointer_as_index": (NONE,),
    "air.dma_memcpy_nd": (WRITE, READ),
    "air.channel.put": (READ,),
    "air.channel.get": (WRITE,),
    "arith.select": (UNKNOWN, UNKNOWN),
}  # fmt: skip
"""By operation, the effect on each memref operand, in their order."""

FORWARDING = (
    "scf.", "affine.for", "affine.if", "affine.parallel", "affine.yield", "func.return", "air.launch",
    "air.segment", "air.herd", "air.rank", "air.execute", "memref.alloca_scope", "memref.alloc",
    "memref.get_global", "vnpu.",
)  # fmt: skip
"""Prefixes of operations that access nothing themselves: the operations in their regions do. `vnpu.` are the
virtual NPU's own, which it wraps around operations that it has recognised."""


def memory_effects(op: Operation) -> list[tuple[int, Effect]]:
    """What an operation does to each of its memref operands: (position, effect), in their order."""
    positions = [position for position, value in enumerate(op.operands) if is_memref(value)]
    if not positions:
        return []
    if op.name in OPERANDS:
        return list(zip(positions, OPERANDS[op.name], strict=False))
    if op.name.startswith("linalg."):
        return [(position, _of_linalg(op, position, position == positions[-1])) for position in positions]
    return [(position, PASS if op.name.startswith(FORWARDING) else UNKNOWN) for position in positions]


def accesses(op: Operation) -> list[tuple[SSAValue, bool]]:
    """(memref, whether it is written) for every memref operand that an operation itself accesses, or may
    access."""
    touched = [(op.operands[position], effect) for position, effect in memory_effects(op)]
    return [(value, WRITE in effect) for value, effect in touched if effect & (READ | WRITE)]


def only_reads(op: Operation, value: SSAValue) -> bool:
    """Whether an operation takes a memref as an operand and reads it for certain, and nothing else."""
    effects_of_value = [effect for position, effect in memory_effects(op) if op.operands[position] is value]
    return bool(effects_of_value) and all(effect is READ for effect in effects_of_value)


def is_memref(value: SSAValue) -> bool:
    """Whether a value is a memref, of any rank or of an unknown one."""
    return isinstance(value.type, MemRefType | UnrankedMemRefType)


def _of_linalg(op: Operation, position: int, is_last: bool) -> Effect:
    """Outputs are those that the operation says it has, or else its last operand."""
    outputs = getattr(op, "outputs", None)
    if outputs is None:
        return WRITE if is_last else READ
    first = len(op.operands) - len(outputs)
    if position < first:
        return READ
    return READ | WRITE if _uses_before(op, position) else WRITE


def _uses_before(op: Operation, position: int) -> bool:
    """Whether the body of a linalg operation uses the element that an output held before."""
    blocks = [block for region in op.regions for block in region.blocks]
    if len(blocks) != 1 or len(blocks[0].args) != len(op.operands):
        return op.name not in ("linalg.copy", "linalg.transpose", "linalg.broadcast", "linalg.fill")
    return bool(blocks[0].args[position].uses)
