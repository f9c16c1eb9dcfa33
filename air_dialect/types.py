"""Types of the AIR dialect, and the memory hierarchy its memrefs live in."""

from __future__ import annotations

import enum

from xdsl.dialects.builtin import IntegerAttr, MemRefType, NoneAttr, UnrankedMemRefType
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition

from air_dialect.attributes import attribute_text


@irdl_attr_definition
class AsyncTokenType(ParametrizedAttribute, TypeAttribute):
    """`!air.async.token`: completes when the asynchronous operation that made it completes."""

    name = "air.async.token"


class MemorySpace(enum.IntEnum):
    """Where a memref lives; a larger number is nearer to the core (mlir-air, AIROpBase.td)."""

    L3 = 0
    """Host memory (DDR)."""
    L2 = 1
    """The memory tiles (memtiles) shared by a column of cores."""
    L1 = 2
    """One core's own data memory."""


def memory_space(memref_type: Attribute) -> int:
    """The memory space of a memref as a number: L3 = 0 (also when it names none), L2 = 1, L1 = 2.

    Raises ValueError when `memref_type` is no memref, or its space is not an integer.
    """
    if not isinstance(memref_type, MemRefType | UnrankedMemRefType):
        raise ValueError(f"{attribute_text(memref_type)} is not a memref: only a memref has a memory space")
    space: Attribute = memref_type.memory_space
    if isinstance(space, NoneAttr):
        return int(MemorySpace.L3)
    if isinstance(space, IntegerAttr):
        return int(space.value.data)
    raise ValueError(
        f"memory space {space} of {attribute_text(memref_type)} is not an integer: write none (L3), "
        "1 (L2) or 2 (L1)"
    )


def memory_space_name(space: int) -> str:
    """`L1`, `L2` or `L3` for the three levels, the bare number for anything else."""
    return MemorySpace(space).name if space in set(MemorySpace) else str(space)
