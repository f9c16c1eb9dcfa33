"""`transform.named_sequence`: a schedule for a compiler, kept word for word.

mlir-air's test files carry such schedules beside the programs they transform. They are not part of a
program: no operation of theirs runs on a device. So a schedule is read as text up to its closing brace,
and written back unchanged.
"""

from __future__ import annotations

import re
from typing import Self

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import SymbolOpInterface

_PIECE = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|[{}]')
"""What matters when braces are counted: strings and comments, inside which they do not count, and braces."""


@irdl_op_definition
class NamedSequenceOp(IRDLOperation):
    """`transform.named_sequence @name(...) { ... }` with everything after the name as `text`."""

    name = "transform.named_sequence"
    sym_name = prop_def(StringAttr)
    text = prop_def(StringAttr)
    traits = traits_def(SymbolOpInterface())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        start = parser.pos
        name = parser.parse_symbol_name()
        begin = parser.pos
        source = parser.lexer.input.content
        end = _end_of_body(source, begin)
        if end is None:
            parser.raise_error("this transform.named_sequence has no closing brace", start)
        parser._resume_from(end)
        return cls(properties={"sym_name": name, "text": StringAttr(source[begin:end])})

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_string(self.text.data, indent=0)


def _end_of_body(source: str, position: int) -> int | None:
    """The position after the brace that closes the first body opened outside parentheses."""
    position = _end_of_parameters(source, position)
    depth = 0
    for piece in _PIECE.finditer(source, position):
        if piece[0] in "{}":
            depth += 1 if piece[0] == "{" else -1
            if depth == 0:
                return piece.end()
    return None


def _end_of_parameters(source: str, position: int) -> int:
    """The position after the parameter list, whose attribute dictionaries have braces of their own."""
    depth = 0
    for piece in re.finditer(r"[()]", source[position:]):
        depth += 1 if piece[0] == "(" else -1
        if depth == 0:
            return position + piece.end()
    return position
