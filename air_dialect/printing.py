"""From a module to text that parses again to the same module."""

from __future__ import annotations

import re
from io import StringIO
from typing import cast

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import IRDLOperation

from air_dialect.attributes import AttributePrinter
from air_dialect.upstream.dialects import ADDED
from air_dialect.upstream.formats import Formatted, program

_NUMBERING = re.compile(r"(_\d+)+$")


def print_module(module: ModuleOp) -> str:
    """The module as text, in mlir-air's assembly; ends with a newline."""
    stream = StringIO()
    AirPrinter(stream=stream).print_op(module)
    return stream.getvalue() + "\n"


class AirPrinter(AttributePrinter):
    """Prints operations of an upstream dialect with this package's assembly, whoever built them."""

    def print_ssa_value(self, value: SSAValue) -> str:
        """Print a value's name: its hint, numbered where values in view share it.

        xDSL takes one `_<number>` off a hint that it read; here all are taken off, for `x_1_1` leaves
        `x_1`, which is also what the second value of hint `x` is called.
        """
        base = _NUMBERING.sub("", value.name_hint or "")
        if value in self._ssa_values or not base:
            return super().print_ssa_value(value)
        count = self.ssa_names.get(base, 0)
        self.ssa_names[base] = count + 1
        self._ssa_values[value] = f"{base}_{count}" if count else base
        return super().print_ssa_value(value)

    def print_op(self, op: Operation) -> None:
        assembly = ADDED.get(op.name)
        if assembly is None or isinstance(op, assembly) or assembly.print is Operation.print:
            super().print_op(op)
            return
        if op.results:
            self.print_list(op.results, self.print_ssa_value)
            self.print_string(" = ")
        self.print_string(op.name)
        if issubclass(assembly, Formatted):
            program(assembly).print(self, cast(IRDLOperation, op))
        else:
            assembly.print(op, self)  # the same definition, so the same accessors
