"""Attributes of MLIR's linalg dialect that xDSL lacks."""

from __future__ import annotations

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

CASTS = ("cast_signed", "cast_unsigned")


@irdl_attr_definition
class TypeFnAttr(Data[str]):
    """`#linalg.type_fn<cast_signed>`: how a named operation converts its inputs' integers."""

    name = "linalg.type_fn"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> str:
        with parser.in_angle_brackets():
            word = parser.parse_identifier()
        if word not in CASTS:
            parser.raise_error(f"#linalg.type_fn<{word}>: write one of {', '.join(CASTS)}")
        return word

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")
