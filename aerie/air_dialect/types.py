"""The token type and the memory spaces of the AIR dialect; types and attributes as MLIR writes them."""

from __future__ import annotations

import enum
from io import StringIO

from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    MemRefType,
    NoneAttr,
    UnrankedMemRefType,
    i64,
)
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.printer import Printer


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


def attribute_text(attribute: Attribute) -> str:
    """A type or attribute as `print_module` writes it, for messages."""
    stream = StringIO()
    AttributePrinter(stream=stream).print_attribute(attribute)
    return stream.getvalue()


class AttributePrinter(Printer):
    """xDSL's printer, closer to MLIR's: `memref<64xbf16, 2>` and `[1, 4]` without `: i64`."""

    def print_attribute(self, attribute: Attribute) -> None:
        if isinstance(attribute, MemRefType) and _is_i64(attribute.memory_space):
            self._print_memref(attribute)
        elif isinstance(attribute, ArrayAttr) and attribute and all(_is_i64(value) for value in attribute):
            with self.in_square_brackets():
                self.print_list(attribute.data, self._print_i64)
        elif isinstance(attribute, DenseIntOrFPElementsAttr) and _is_zeros_of_two_signs(attribute):
            self.print_string(f'dense<"0x{attribute.data.data.hex().upper()}"> : ')
            self.print_attribute(attribute.type)
        else:
            super().print_attribute(attribute)

    def _print_memref(self, memref_type: MemRefType) -> None:
        self.print_string("memref<")
        if memref_type.get_num_dims():
            self.print_dimension_list(memref_type.get_shape())
            self.print_string("x")
        self.print_attribute(memref_type.element_type)
        if not isinstance(memref_type.layout, NoneAttr):
            self.print_string(", ")
            self.print_attribute(memref_type.layout)
        self.print_string(", ")
        self._print_i64(memref_type.memory_space)
        self.print_string(">")

    def _print_i64(self, attribute: Attribute) -> None:
        assert isinstance(attribute, IntegerAttr)
        self.print_string(str(attribute.value.data))


def _is_zeros_of_two_signs(attribute: DenseIntOrFPElementsAttr) -> bool:
    """Whether xDSL would print a mixture of 0.0 and -0.0, which compare equal, as a single value."""
    if not isinstance(attribute.get_element_type(), AnyFloat) or not len(attribute):
        return False
    size = attribute.get_element_type().compile_time_size
    data = attribute.data.data
    return attribute.is_splat() and data != data[:size] * len(attribute)


def _is_i64(attribute: Attribute) -> bool:
    return isinstance(attribute, IntegerAttr) and attribute.type == i64
