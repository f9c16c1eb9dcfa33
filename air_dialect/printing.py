"""From a module to text that parses again to the same module."""

from __future__ import annotations

from io import StringIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.printer import Printer


def print_module(module: ModuleOp) -> str:
    """The module as text, in mlir-air's assembly; ends with a newline."""
    stream = StringIO()
    Printer(stream=stream).print_op(module)
    return stream.getvalue() + "\n"
