"""What the assembly of the aie dialects needs besides xDSL's formats: keywords, integers, ports."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Self, cast

from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IndexType, IntegerAttr, StringAttr, i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator

from aerie.air_dialect.upstream.formats import Formatted, add_directive

INDEX = IndexType()


class AieOp(Formatted, ABC):
    """An operation of the aie dialects that a FORMAT describes; `{ }` may stand for a region."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        op = super().parse(parser)
        fill_regions(op)
        return op

    def integer(self, name: str, default: int | None = None) -> int:
        """The value of an integer property or attribute. KeyError where it is absent without a default."""
        return integer_of(self, name, default)


def fill_regions(op: Operation) -> None:
    """Give regions of one block that were written as `{ }` their block."""
    for region in op.regions:
        if not region.blocks and op.has_trait(NoTerminator):
            region.add_block(Block())


def integer_of(op: Operation, name: str, default: int | None = None) -> int:
    """The value of an integer property or attribute of an operation."""
    found = op.properties.get(name, op.attributes.get(name))
    if not isinstance(found, IntegerAttr):
        if default is None:
            raise KeyError(f"{op.name} has no integer {name}")
        return default
    return int(found.value.data)


def string_of(op: Operation, name: str, default: str = "") -> str:
    """The value of a string property or attribute of an operation."""
    found = op.properties.get(name, op.attributes.get(name))
    return found.data if isinstance(found, StringAttr) else default


def parse_word(parser: Parser) -> StringAttr:
    """Parse a keyword, which some printers put between quotes."""
    quoted = parser.parse_optional_str_literal()
    return StringAttr(parser.parse_identifier() if quoted is None else quoted)


def parse_integers_and_operands(parser: Parser) -> tuple[list[int], list[SSAValue]]:
    """Parse `[4, %n, 1]`: the integers, DYNAMIC_INDEX where an operand stands, and the operands, i64."""
    integers: list[int] = []
    operands: list[SSAValue] = []

    def parse_one() -> None:
        operand = parser.parse_optional_unresolved_operand()
        integers.append(DYNAMIC_INDEX if operand else parser.parse_integer(allow_boolean=False))
        operands.extend([parser.resolve_operand(operand, i64)] if operand else [])

    parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parse_one)
    return integers, operands


def print_integers_and_operands(
    printer: Printer, integers: Sequence[int], operands: Sequence[SSAValue]
) -> None:
    """Print such a list."""
    remaining = iter(operands)

    def print_one(integer: int) -> None:
        if integer == DYNAMIC_INDEX:
            printer.print_operand(next(remaining))
        else:
            printer.print_string(str(integer))

    printer.print_string("[")
    printer.print_list(integers, print_one)
    printer.print_string("]")


def integers(attribute: Attribute | None) -> list[int]:
    """The integers of a dense array; [] where it is absent."""
    return [int(n) for n in attribute.get_values()] if isinstance(attribute, DenseArrayBase) else []


def integer_array(numbers: Sequence[int]) -> DenseArrayBase:
    """Integers as a dense array of i64."""
    return DenseArrayBase.from_list(i64, numbers)


def parse_number(parser: Parser) -> IntegerAttr:
    """Parse an integer, with or without its type, which is i32 here."""
    number = parser.parse_integer(allow_boolean=False)
    if parser.parse_optional_punctuation(":") is not None:
        parser.parse_type()
    return IntegerAttr(number, i32)


def text(attribute: Attribute | None) -> str:
    """A keyword or integer as it is written."""
    if isinstance(attribute, IntegerAttr):
        return str(attribute.value.data)
    return cast(StringAttr, attribute).data


@add_directive
@irdl_custom_directive
class Word(CustomDirective):
    """`custom<Word>($attribute)`: a keyword, kept as a string."""

    attribute: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.attribute.set(state, parse_word(parser))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        printer.print_string(text(self.attribute.get(op)))


@add_directive
@irdl_custom_directive
class Number(CustomDirective):
    """`custom<Number>($attribute)`: an integer, kept as an i32."""

    attribute: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.attribute.set(state, parse_number(parser))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        printer.print_string(text(self.attribute.get(op)))


@add_directive
@irdl_custom_directive
class Port(CustomDirective):
    """`custom<Port>($bundle, $channel)`: `DMA : 0`."""

    bundle: AttributeVariable
    channel: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.bundle.set(state, parse_word(parser))
        parser.parse_punctuation(":")
        self.channel.set(state, IntegerAttr(parser.parse_integer(allow_boolean=False), i32))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        printer.print_string(f"{text(self.bundle.get(op))} : {text(self.channel.get(op))}")


def parse_index_operand(parser: Parser) -> SSAValue:
    """Parse an operand of type index, such as a tile or a lock."""
    return parser.resolve_operand(parser.parse_unresolved_operand(), INDEX)


def parse_fields(parser: Parser) -> dict[str, int]:
    """Parse `<size = 4, stride = 1>`, or `<4, 1>`, whose fields are then called 0, 1, ..."""
    fields: dict[str, int] = {}

    def parse_one() -> None:
        name = parser.parse_optional_identifier()
        if name is not None:
            parser.parse_punctuation("=")
        fields[name or str(len(fields))] = parser.parse_integer(allow_boolean=False)

    parser.parse_comma_separated_list(parser.Delimiter.ANGLE, parse_one)
    return fields


def parse_pairs(parser: Parser) -> list[list[int]] | None:
    """Parse an optional `[<size = 4, stride = 1>, ...]`."""
    found = parser.parse_optional_comma_separated_list(
        parser.Delimiter.SQUARE, lambda: list(parse_fields(parser).values())
    )
    return found
