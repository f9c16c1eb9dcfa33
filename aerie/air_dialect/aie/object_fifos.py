"""Object FIFOs: buffers, locks and DMAs between tiles, under one name."""

from __future__ import annotations

from typing import Self

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    TensorType,
    i32,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.aie.attributes import BdPadLayoutArrayAttr, ObjectFifoSubviewType, ObjectFifoType
from aerie.air_dialect.aie.formats import (
    INDEX,
    integer_array,
    integers,
    parse_index_operand,
    parse_number,
    parse_pairs,
    parse_word,
    text,
)
from aerie.air_dialect.assembly import print_parts

PORTS = ("Produce", "Consume")


@irdl_op_definition
class ObjectFifoOp(IRDLOperation):
    """`aie.objectfifo @of(%a dimensionsToStream [...], {%b, ...}, 2 : i32) : !aie.objectfifo<memref<...>>`.

    depths: one number for all tiles, or the producer's and then each consumer's. Dimensions are pairs of size
    and stride, outermost first.
    """

    name = "aie.objectfifo"
    sym_name = prop_def(SymbolNameConstraint())
    producer = operand_def(INDEX)
    consumers = var_operand_def(INDEX)
    depths = prop_def(DenseArrayBase)
    to_stream = opt_prop_def(DenseArrayBase)
    from_stream = opt_prop_def(ArrayAttr[DenseArrayBase])
    fifo_type = prop_def(ObjectFifoType)
    initial_values = opt_prop_def(ArrayAttr[Attribute])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        properties: dict[str, Attribute] = {"sym_name": parser.parse_symbol_name()}
        parser.parse_punctuation("(")
        producer = parse_index_operand(parser)
        if parser.parse_optional_keyword("dimensionsToStream") is not None:
            properties["to_stream"] = _dimensions(parser)
        parser.parse_punctuation(",")
        consumers: list[SSAValue] = []
        from_stream: list[DenseArrayBase] = []

        def parse_consumer() -> None:
            consumers.append(parse_index_operand(parser))
            has_dimensions = parser.parse_optional_keyword("dimensionsFromStream") is not None
            from_stream.append(_dimensions(parser) if has_dimensions else integer_array([]))

        parser.parse_comma_separated_list(parser.Delimiter.BRACES, parse_consumer)
        if any(integers(dimensions) for dimensions in from_stream):
            properties["from_stream"] = ArrayAttr(from_stream)
        parser.parse_punctuation(",")
        properties["depths"] = _parse_depths(parser)
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        if not isinstance(type_, ObjectFifoType):
            parser.raise_error("aie.objectfifo has a type !aie.objectfifo<memref<...>>")
        properties["fifo_type"] = type_
        if parser.parse_optional_punctuation("=") is not None:
            properties["initial_values"] = _parse_values(parser, type_)
        return cls(operands=[producer, consumers], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        print_parts(printer, "(", self.producer)
        if self.to_stream is not None:
            printer.print_string(f" dimensionsToStream {_dimension_text(self.to_stream)}")
        printer.print_string(", {")
        for number, consumer in enumerate(self.consumers):
            print_parts(printer, ", " if number else "", consumer)
            if self.from_stream is not None and integers(self.from_stream.data[number]):
                printer.print_string(
                    f" dimensionsFromStream {_dimension_text(self.from_stream.data[number])}"
                )
        depths = integers(self.depths)
        shown = f"{depths[0]} : i32" if len(depths) == 1 else "[" + ", ".join(map(str, depths)) + "]"
        print_parts(printer, "}, " + shown + ")", self.attributes, " : ", self.fifo_type)
        if self.initial_values is not None:
            print_parts(printer, " = [", list(self.initial_values.data), "]")

    def verify_(self) -> None:
        depths, ends = integers(self.depths), 1 + len(self.consumers)
        if len(depths) not in (1, ends):
            raise VerifyException(
                f"aie.objectfifo @{self.sym_name.data} has {ends} tiles and {len(depths)} depths: give one, "
                "or one for each"
            )
        if any(depth < 0 for depth in depths):
            raise VerifyException(f"aie.objectfifo @{self.sym_name.data} has a depth below 0")


def _dimensions(parser: Parser) -> DenseArrayBase:
    return integer_array([number for pair in parse_pairs(parser) or () for number in pair])


def _dimension_text(dimensions: DenseArrayBase) -> str:
    numbers = integers(dimensions)
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return "[" + ", ".join(f"<size = {size}, stride = {stride}>" for size, stride in pairs) + "]"


def _parse_depths(parser: Parser) -> DenseArrayBase:
    found = parser.parse_optional_comma_separated_list(
        parser.Delimiter.SQUARE, lambda: parse_number(parser).value.data
    )
    return integer_array(found if found is not None else [parse_number(parser).value.data])


def _parse_values(parser: Parser, type_: ObjectFifoType) -> ArrayAttr[Attribute]:
    buffer = type_.buffer
    tensor = TensorType(buffer.element_type, buffer.get_shape())  # type: ignore[attr-defined]

    def parse_one() -> Attribute:
        if parser.parse_optional_keyword("dense") is None:
            return parser.parse_attribute()
        value = parser.parse_dense_int_or_fp_elements_attr(tensor)
        if parser.parse_optional_punctuation(":") is not None:
            parser.parse_type()
        return value

    return ArrayAttr(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parse_one))


@irdl_op_definition
class ObjectFifoLinkOp(IRDLOperation):
    """`aie.objectfifo.link [@a] -> [@b, @c]([] [0, 16])`: what comes by a goes on by b and c.

    Several sources are a join, several destinations a distribution; the offsets, in elements, say which part
    of the whole object each one has.
    """

    name = "aie.objectfifo.link"
    sources = prop_def(ArrayAttr[SymbolRefAttr])
    dests = prop_def(ArrayAttr[SymbolRefAttr])
    source_offsets = prop_def(DenseArrayBase)
    dest_offsets = prop_def(DenseArrayBase)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        properties: dict[str, Attribute] = {"sources": _parse_symbols(parser)}
        parser.parse_punctuation("->")
        properties["dests"] = _parse_symbols(parser)
        parser.parse_punctuation("(")
        properties["source_offsets"] = _parse_offsets(parser)
        properties["dest_offsets"] = _parse_offsets(parser)
        parser.parse_punctuation(")")
        return cls(properties=properties, attributes=parser.parse_optional_attr_dict())

    def print(self, printer: Printer) -> None:
        offsets = [
            "[" + ", ".join(map(str, integers(a))) + "]" for a in (self.source_offsets, self.dest_offsets)
        ]
        print_parts(printer, " [", list(self.sources.data), "] -> [", list(self.dests.data), "]")
        print_parts(printer, f"({offsets[0]} {offsets[1]})", self.attributes)


def _parse_symbols(parser: Parser) -> ArrayAttr[SymbolRefAttr]:
    return ArrayAttr(
        parser.parse_comma_separated_list(
            parser.Delimiter.SQUARE, lambda: SymbolRefAttr(parser.parse_symbol_name())
        )
    )


def _parse_offsets(parser: Parser) -> DenseArrayBase:
    return integer_array(
        parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_number(parser).value.data)
    )


@irdl_op_definition
class ObjectFifoAllocateOp(IRDLOperation):
    """`aie.objectfifo.allocate @of (%t)`: the buffers lie in the memory of this tile."""

    name = "aie.objectfifo.allocate"
    fifo = prop_def(SymbolRefAttr)
    tile = operand_def(INDEX)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        fifo = SymbolRefAttr(parser.parse_symbol_name())
        parser.parse_punctuation("(")
        tile = parse_index_operand(parser)
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        return cls(operands=[tile], properties={"fifo": fifo}, attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_parts(printer, " ", self.fifo, "(", self.tile, ")", self.attributes)


class _UseOp(IRDLOperation):
    """An acquire or a release."""

    def print_use(self, printer: Printer) -> None:
        """`@of(Consume, 1)`."""
        fifo, port, size = (self.properties[name] for name in ("fifo", "port", "size"))
        print_parts(printer, " ", fifo, f"({text(port)}, {text(size)})", self.attributes)


def _parse_use(parser: Parser) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
    attributes = parser.parse_optional_attr_dict()
    properties: dict[str, Attribute] = {"fifo": SymbolRefAttr(parser.parse_symbol_name())}
    parser.parse_punctuation("(")
    start = parser.pos
    properties["port"] = port = parse_word(parser)
    if port.data not in PORTS:
        parser.raise_error(f"an object FIFO has no port {port.data}: write Produce or Consume", start)
    parser.parse_punctuation(",")
    properties["size"] = parse_number(parser)
    parser.parse_punctuation(")")
    return properties, attributes | parser.parse_optional_attr_dict()


@irdl_op_definition
class ObjectFifoAcquireOp(_UseOp):
    """`%s = aie.objectfifo.acquire @of(Consume, 1) : !aie.objectfifosubview<memref<...>>`: holds as many."""

    name = "aie.objectfifo.acquire"
    fifo = prop_def(SymbolRefAttr)
    port = prop_def(StringAttr)
    size = prop_def(IntegerAttr)
    subview = result_def(ObjectFifoSubviewType)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        properties, attributes = _parse_use(parser)
        parser.parse_punctuation(":")
        return cls(result_types=[parser.parse_type()], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        self.print_use(printer)
        print_parts(printer, " : ", self.subview.type)


@irdl_op_definition
class ObjectFifoReleaseOp(_UseOp):
    """`aie.objectfifo.release @of(Consume, 1)`."""

    name = "aie.objectfifo.release"
    fifo = prop_def(SymbolRefAttr)
    port = prop_def(StringAttr)
    size = prop_def(IntegerAttr)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        properties, attributes = _parse_use(parser)
        return cls(properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        self.print_use(printer)


@irdl_op_definition
class ObjectFifoSubviewAccessOp(IRDLOperation):
    """`%b = aie.objectfifo.subview.access %s[0] : !aie.objectfifosubview<...> -> memref<...>`."""

    name = "aie.objectfifo.subview.access"
    subview = operand_def(ObjectFifoSubviewType)
    index = prop_def(IntegerAttr)
    output = result_def()

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        subview = parser.parse_unresolved_operand()
        parser.parse_punctuation("[")
        index = IntegerAttr(parser.parse_integer(allow_boolean=False), i32)
        parser.parse_punctuation("]")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        value = parser.resolve_operand(subview, parser.parse_type())
        parser.parse_punctuation("->")
        return cls(
            operands=[value],
            result_types=[parser.parse_type()],
            properties={"index": index},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        print_parts(printer, " ", self.subview, f"[{self.index.value.data}]", self.attributes)
        print_parts(printer, " : ", self.subview.type, " -> ", self.output.type)


def symbol_of(reference: SymbolRefAttr) -> str:
    """The name that a flat reference has."""
    return reference.root_reference.data


def padding_of(op: ObjectFifoOp) -> list[tuple[int, int]]:
    """The zeros before and after each dimension, [] for none."""
    found = op.attributes.get("padDimensions")
    if not isinstance(found, BdPadLayoutArrayAttr):
        return []
    return [(before, after) for before, after in found.data]
