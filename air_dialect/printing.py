"""From a module to text that parses again to the same module."""

from __future__ import annotations

from io import StringIO

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, MemRefType, ModuleOp, NoneAttr, i64
from xdsl.ir import Attribute, Operation
from xdsl.printer import Printer

from air_dialect.upstream import ADDED


def print_module(module: ModuleOp) -> str:
    """The module as text, in mlir-air's assembly; ends with a newline."""
    stream = StringIO()
    AirPrinter(stream=stream).print_op(module)
    return stream.getvalue() + "\n"


class AirPrinter(Printer):
    """xDSL's printer, closer to MLIR's: `memref<64xbf16, 2>` and `[1, 4]` without `: i64`.

    Operations of an upstream dialect print with this package's assembly, whoever built them.
    """

    def print_attribute(self, attribute: Attribute) -> None:
        if isinstance(attribute, MemRefType) and _is_i64(attribute.memory_space):
            self._print_memref(attribute)
        elif isinstance(attribute, ArrayAttr) and attribute and all(_is_i64(value) for value in attribute):
            with self.in_square_brackets():
                self.print_list(attribute.data, self._print_i64)
        else:
            super().print_attribute(attribute)

    def print_op(self, op: Operation) -> None:
        assembly = ADDED.get(op.name)
        if assembly is None or isinstance(op, assembly) or assembly.print is Operation.print:
            super().print_op(op)
            return
        if op.results:
            self.print_list(op.results, self.print_ssa_value)
            self.print_string(" = ")
        self.print_string(op.name)
        assembly.print(op, self)  # the same definition, so the same accessors

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


def _is_i64(attribute: Attribute) -> bool:
    return isinstance(attribute, IntegerAttr) and attribute.type == i64
