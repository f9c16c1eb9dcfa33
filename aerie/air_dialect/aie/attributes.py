"""Attributes and types of the aie dialects."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute, Data, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer


class FieldsAttr(Data[tuple[tuple[str, int], ...]]):
    """An attribute of named integers: `<pkt_type = 0, pkt_id = 3>`."""

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[tuple[str, int], ...]:
        def parse_one() -> tuple[str, int]:
            name = parser.parse_identifier()
            parser.parse_punctuation("=")
            return name, parser.parse_integer(allow_boolean=False)

        return tuple(parser.parse_comma_separated_list(parser.Delimiter.ANGLE, parse_one))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string("<" + ", ".join(f"{name} = {number}" for name, number in self.data) + ">")

    def field(self, name: str, default: int = 0) -> int:
        """The integer of a name."""
        return dict(self.data).get(name, default)


@irdl_attr_definition
class PacketInfoAttr(FieldsAttr):
    """`#aie.packet_info<pkt_type = 0, pkt_id = 3>`: what the header of a packet says."""

    name = "aie.packet_info"


@irdl_attr_definition
class BdIterationAttr(FieldsAttr):
    """`#aie.bd_iteration<size = 4, stride = 64, current = 0>`: how a descriptor moves on with each use."""

    name = "aie.bd_iteration"


@irdl_attr_definition
class BdPadLayoutAttr(FieldsAttr):
    """`#aie.bd_pad_layout<const_pad_before = 1, const_pad_after = 1>`."""

    name = "aie.bd_pad_layout"


@irdl_attr_definition
class BdDimLayoutAttr(FieldsAttr):
    """`#aie.bd_dim_layout<size = 16, stride = 1>`."""

    name = "aie.bd_dim_layout"


@irdl_attr_definition
class BdPadLayoutArrayAttr(Data[tuple[tuple[int, int], ...]]):
    """`#aie<bd_pad_layout_array[<const_pad_before = 2, const_pad_after = 1>]>`."""

    name = "aie.bd_pad_layout_array"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[tuple[int, int], ...]:
        def parse_pair() -> tuple[int, int]:
            first, second = FieldsAttr.parse_parameter(parser)
            return first[1], second[1]

        return tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parse_pair))

    def print_parameter(self, printer: Printer) -> None:
        pairs = (f"<const_pad_before = {a}, const_pad_after = {b}>" for a, b in self.data)
        printer.print_string("[" + ", ".join(pairs) + "]")


def _parse_buffer_type(parser: AttrParser) -> Sequence[Attribute]:
    with parser.in_angle_brackets():
        start = parser.pos
        type_ = parser.parse_type()
        if not isinstance(type_, MemRefType):
            parser.raise_error("an object FIFO holds memrefs", start)
    return [type_]


@irdl_attr_definition
class ObjectFifoType(ParametrizedAttribute, TypeAttribute):
    """`!aie.objectfifo<memref<16xi32>>`: a FIFO of such buffers."""

    name = "aie.objectfifo"
    buffer: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        return _parse_buffer_type(parser)


@irdl_attr_definition
class ObjectFifoSubviewType(ParametrizedAttribute, TypeAttribute):
    """`!aie.objectfifosubview<memref<16xi32>>`: the buffers that a core holds."""

    name = "aie.objectfifosubview"
    buffer: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        return _parse_buffer_type(parser)
