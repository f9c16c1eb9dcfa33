"""Operations about traces, which say what a board shall record: read as they are written, and no more."""

from __future__ import annotations

from typing import Self

from xdsl.dialects.builtin import StringAttr
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.mlir_lexer import MLIRTokenKind

_NAMES = ("trace", "trace.config", "trace.start_config", "trace.host_config")
_OPENING, _CLOSING = ("{", "(", "["), ("}", ")", "]")


class TraceOp(IRDLOperation):
    """An operation about traces; `text` is what follows its name, to the end of its line or block."""

    text = prop_def(StringAttr)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        return cls(properties={"text": StringAttr(_rest_of_operation(parser))})

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.text.data}")


def _rest_of_operation(parser: Parser) -> str:
    """The text up to a line's end that is in no bracket."""
    content, depth, start = parser.lexer.input.content, 0, parser.pos
    end = start
    while parser._current_token.kind is not MLIRTokenKind.EOF:
        token = parser._current_token
        begins_line = "\n" in content[end : token.span.start]
        if depth == 0 and (token.text in _CLOSING or (begins_line and end > start)):
            break
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        end = token.span.end
        parser._consume_token()
    return "\n".join(line.strip() for line in content[start:end].strip().split("\n"))


def _define(name: str) -> type[TraceOp]:
    members = {"name": f"aie.{name}", "__module__": __name__, "__doc__": f"`aie.{name}`."}
    title = name.title().replace(".", "").replace("_", "")
    return irdl_op_definition(type(f"{title}Op", (TraceOp,), members))


TABLE_OPS = [_define(name) for name in _NAMES]
