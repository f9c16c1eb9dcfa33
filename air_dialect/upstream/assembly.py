"""Pieces of assembly that operations of several upstream dialects share."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence

from typing_extensions import Self
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer

ATOMIC_KINDS = (
    "addf", "addi", "assign", "maximumf", "maxs", "maxu", "minimumf", "mins", "minu", "mulf", "muli", "ori",
    "andi", "maxnumf", "minnumf", "xori",
)  # fmt: skip
"""What memref.atomic_rmw and affine.parallel combine by, in MLIR's order (AtomicRMWKindAttr)."""


class Conversion(IRDLOperation, ABC):
    """The assembly `%v {attributes} : from to to` of an operation with one operand and one result."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operand = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source = parser.resolve_operand(operand, parser.parse_type())
        parser.parse_keyword("to")
        return cls.create(operands=[source], result_types=[parser.parse_type()], attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_conversion(printer, self, self.results[0].type)


def print_conversion(printer: Printer, op: Operation, target: Attribute) -> None:
    """Print ` %v {attributes} : from to to`."""
    printer.print_string(" ")
    printer.print_list(op.operands, printer.print_operand)
    printer.print_op_attributes(op.attributes)
    printer.print_string(" : ")
    printer.print_attribute(op.operands[0].type)
    printer.print_string(" to ")
    printer.print_attribute(target)


def index_operands(parser: Parser) -> list[SSAValue]:
    """Parse `(%a, %b)`."""
    unresolved = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
    return [parser.resolve_operand(operand, IndexType()) for operand in unresolved]


def index_arguments(parser: Parser) -> list[Parser.Argument]:
    """Parse `(%i, %j)` as block arguments of type index."""
    arguments = parser.parse_comma_separated_list(
        parser.Delimiter.PAREN, lambda: parser.parse_argument(expect_type=False)
    )
    return [argument.resolve(IndexType()) for argument in arguments]


def optional_result_types(parser: Parser) -> list[Attribute]:
    """Parse an optional `-> type` or `-> (type, ...)`."""
    if parser.parse_optional_punctuation("->") is None:
        return []
    types = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    if types is None:
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    return [*types]


def print_result_types(printer: Printer, op: Operation) -> None:
    """Print ` -> (type, ...)`, nothing for an operation without results."""
    if op.results:
        printer.print_string(" -> (")
        printer.print_list(op.result_types, printer.print_attribute)
        printer.print_string(")")


def print_parens(printer: Printer, values: Sequence[SSAValue]) -> None:
    """Print `(%a, %b)`."""
    with printer.in_parens():
        printer.print_list(values, printer.print_operand)


def parse_carried(parser: Parser, keyword: str) -> tuple[list[Parser.Argument], list[SSAValue]]:
    """Parse an optional `keyword(%inner = %outer, ...) -> (type, ...)`: block arguments and operands."""
    if parser.parse_optional_keyword(keyword) is None:
        return [], []
    pairs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_binding(parser))
    position = parser.pos
    types = optional_result_types(parser)
    values = parser.resolve_operands([operand for _, operand in pairs], types, position)
    arguments = [argument.resolve(type_) for (argument, _), type_ in zip(pairs, types, strict=True)]
    return arguments, list(values)


def _parse_binding(parser: Parser) -> tuple[Parser.UnresolvedArgument, UnresolvedOperand]:
    argument = parser.parse_argument(expect_type=False)
    parser.parse_punctuation("=")
    return argument, parser.parse_unresolved_operand()
