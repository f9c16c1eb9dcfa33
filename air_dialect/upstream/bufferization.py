"""Conversions between tensors and memrefs of any memory space or layout.

xDSL's demand a plain memref in L3. The classes are subclasses of xDSL's, so
`isinstance(op, bufferization.ToTensorOp)` holds.
"""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import Self
from xdsl.dialects import bufferization
from xdsl.dialects.builtin import MemRefType, TensorType, UnitAttr
from xdsl.ir import Attribute, Operation
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from air_dialect.attributes import attribute_text


def _parse_flags(parser: Parser, *flags: str) -> dict[str, Attribute]:
    """Parse the optional keywords, in this order, as unit properties."""
    return {flag: UnitAttr() for flag in flags if parser.parse_optional_keyword(flag) is not None}


def _print_flags(printer: Printer, properties: Mapping[str, Attribute], *flags: str) -> None:
    printer.print_string("".join(f" {flag}" for flag in flags if flag in properties))


def _check_same_data(op: Operation, one: Attribute, other: Attribute) -> None:
    """A tensor and a memref, where ranked, have the same shape and element type."""
    if not isinstance(one, TensorType | MemRefType) or not isinstance(other, TensorType | MemRefType):
        return
    if one.element_type != other.element_type or one.get_shape() != other.get_shape():
        raise VerifyException(
            f"{op.name} from {attribute_text(one)} to {attribute_text(other)}: shape and element "
            "type must be equal"
        )


class ToTensorOp(bufferization.ToTensorOp):
    """`bufferization.to_tensor %m restrict writable : memref<8xf32, 2> to tensor<8xf32>`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operand = parser.parse_unresolved_operand()
        flags = _parse_flags(parser, "restrict", "writable")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        memref = parser.resolve_operand(operand, parser.parse_type())
        parser.parse_keyword("to")
        return cls.create(
            operands=[memref], result_types=[parser.parse_type()], properties=flags, attributes=attributes
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.memref)
        _print_flags(printer, self.properties, "restrict", "writable")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.memref.type)
        printer.print_string(" to ")
        printer.print_attribute(self.tensor.type)

    def verify_(self) -> None:
        _check_same_data(self, self.memref.type, self.tensor.type)


class ToBufferOp(bufferization.ToBufferOp):
    """`bufferization.to_buffer %t read_only : tensor<8xf32> to memref<8xf32, strided<[?]>>`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operand = parser.parse_unresolved_operand()
        flags = _parse_flags(parser, "read_only")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        tensor = parser.resolve_operand(operand, parser.parse_type())
        parser.parse_keyword("to")
        return cls.create(
            operands=[tensor], result_types=[parser.parse_type()], properties=flags, attributes=attributes
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.tensor)
        _print_flags(printer, self.properties, "read_only")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.tensor.type)
        printer.print_string(" to ")
        printer.print_attribute(self.memref.type)

    def verify_(self) -> None:
        _check_same_data(self, self.tensor.type, self.memref.type)


class MaterializeInDestinationOp(bufferization.MaterializeInDestinationOp):
    """`bufferization.materialize_in_destination %t in writable %m : (tensor<8xf32>, memref<8xf32>) -> ()`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        source = parser.parse_unresolved_operand()
        parser.parse_keyword("in")
        flags = _parse_flags(parser, "restrict", "writable")
        operands = [source, parser.parse_unresolved_operand()]
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        position = parser.pos
        types = parser.parse_function_type()
        return cls.create(
            operands=parser.resolve_operands(operands, types.inputs.data, position),
            result_types=types.outputs.data,
            properties=flags,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.source)
        printer.print_string(" in")
        _print_flags(printer, self.properties, "restrict", "writable")
        printer.print_string(" ")
        printer.print_operand(self.dest)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_operation_type(self)

    def verify_(self) -> None:
        _check_same_data(self, self.source.type, self.dest.type)


OPERATIONS: tuple[type[Operation], ...] = (ToTensorOp, ToBufferOp, MaterializeInDestinationOp)
