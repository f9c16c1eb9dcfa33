"""DMA programs: the channels of a tile, and their chains of buffer descriptors (BDs)."""

from __future__ import annotations

from typing import ClassVar, Self

from xdsl.dialects.builtin import (
    DenseArrayBase,
    IntegerAttr,
    MemRefType,
    StringAttr,
    UnrankedMemRefType,
    i1,
    i32,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    successor_def,
    traits_def,
    var_operand_def,
    var_region_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, NoTerminator
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.aie.formats import (
    INDEX,
    AieOp,
    integer_array,
    integers,
    parse_integers_and_operands,
    parse_number,
    parse_pairs,
    parse_word,
    print_integers_and_operands,
)
from aerie.air_dialect.assembly import print_parts

DIRECTIONS = ("S2MM", "MM2S")
MAX_DIMENSIONS = 4


class DmaProgramOp(AieOp):
    """The DMA program of a tile."""

    tile = operand_def(INDEX)
    result = result_def(INDEX)
    body = region_def()
    FORMAT: ClassVar[str] = "`(` $tile `)` $body attr-dict"


@irdl_op_definition
class MemOp(DmaProgramOp):
    """`aie.mem(%t) { ... }`: of a core's tile."""

    name = "aie.mem"


@irdl_op_definition
class MemTileDmaOp(DmaProgramOp):
    """`aie.memtile_dma(%t) { ... }`."""

    name = "aie.memtile_dma"


@irdl_op_definition
class ShimDmaOp(DmaProgramOp):
    """`aie.shim_dma(%t) { ... }`."""

    name = "aie.shim_dma"


@irdl_op_definition
class DmaStartOp(IRDLOperation):
    """`%0 = aie.dma_start(S2MM, 0, ^bd, ^next, repeat_count = 4)`: a task of a channel; then goes on."""

    name = "aie.dma_start"
    direction = prop_def(StringAttr)
    channel = prop_def(IntegerAttr)
    repeat_count = opt_prop_def(IntegerAttr)
    result = result_def(i1)
    dest = successor_def()
    chain = successor_def()
    traits = traits_def(IsTerminator())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        properties: dict[str, Attribute] = {"direction": _direction(parser)}
        parser.parse_punctuation(",")
        properties["channel"] = parse_number(parser)
        parser.parse_punctuation(",")
        dest = parser.parse_successor()
        parser.parse_punctuation(",")
        chain = parser.parse_successor()
        if parser.parse_optional_punctuation(",") is not None:
            parser.parse_keyword("repeat_count")
            parser.parse_punctuation("=")
            properties["repeat_count"] = parse_number(parser)
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        return cls(result_types=[i1], properties=properties, attributes=attributes, successors=[dest, chain])

    def print(self, printer: Printer) -> None:
        printer.print_string(f"({self.direction.data}, {self.channel.value.data}, ")
        printer.print_block_name(self.dest)
        printer.print_string(", ")
        printer.print_block_name(self.chain)
        if self.repeat_count is not None:
            printer.print_string(f", repeat_count = {self.repeat_count.value.data}")
        print_parts(printer, ")", self.attributes)


def _direction(parser: Parser) -> StringAttr:
    start = parser.pos
    word = parse_word(parser)
    if word.data not in DIRECTIONS:
        parser.raise_error(f"no direction is called {word.data}: write S2MM or MM2S", start)
    return word


@irdl_op_definition
class NextBdOp(IRDLOperation):
    """`aie.next_bd ^bd`: the descriptor after this one; a block without one ends the chain."""

    name = "aie.next_bd"
    dest = successor_def()
    traits = traits_def(IsTerminator())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        dest = parser.parse_successor()
        return cls(successors=[dest], attributes=parser.parse_optional_attr_dict())

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_block_name(self.dest)
        print_parts(printer, self.attributes)


@irdl_op_definition
class DmaOp(IRDLOperation):
    """`%0 = aie.dma(S2MM, 0) {loop = true} [{ ... }, { ... }]`: a channel whose descriptors run in turn."""

    name = "aie.dma"
    direction = prop_def(StringAttr)
    channel = prop_def(IntegerAttr)
    result = result_def(i1)
    descriptors = var_region_def()
    traits = traits_def(NoTerminator())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        direction = _direction(parser)
        parser.parse_punctuation(",")
        channel = parse_number(parser)
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        regions = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_region)
        attributes |= parser.parse_optional_attr_dict()
        properties = {"direction": direction, "channel": channel}
        return cls(result_types=[i1], properties=properties, attributes=attributes, regions=[regions])

    def print(self, printer: Printer) -> None:
        print_parts(printer, f"({self.direction.data}, {self.channel.value.data})", self.attributes, " [")
        printer.print_list(self.descriptors, printer.print_region)
        printer.print_string("]")

    @property
    def loops(self) -> bool:
        """Whether the descriptors begin again after the last one; so it is unless `loop = false`."""
        loop = self.attributes.get("loop")
        return not isinstance(loop, IntegerAttr) or bool(loop.value.data)


@irdl_op_definition
class DmaBdOp(IRDLOperation):
    """`aie.dma_bd(%b : memref<64xi32> offset = 0 len = 64 sizes = [8, 8] strides = [1, 8] pad [...])`.

    Counts are elements; dimensions run from the outermost to the innermost. The older form
    `(%b : memref<64xi32>, 0, 64, [<size = 8, stride = 1>, ...])` is read too.
    """

    name = "aie.dma_bd"
    buffer = operand_def()
    offset = opt_operand_def(i32)
    length = opt_operand_def(i32)
    sizes = var_operand_def()
    strides = var_operand_def()
    static_offset = opt_prop_def(IntegerAttr)
    static_len = opt_prop_def(IntegerAttr)
    static_sizes = opt_prop_def(DenseArrayBase)
    static_strides = opt_prop_def(DenseArrayBase)
    pad = opt_prop_def(DenseArrayBase)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        buffer = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        operands: list[list[SSAValue]] = [
            [parser.resolve_operand(buffer, parser.parse_type())],
            [],
            [],
            [],
            [],
        ]
        properties: dict[str, Attribute] = {}
        if parser.parse_optional_punctuation(",") is not None:
            _parse_positional(parser, properties)
        else:
            _parse_named(parser, operands, properties)
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        for name in ("len", "offset"):
            number = attributes.pop(name, None)
            if isinstance(number, IntegerAttr):
                properties[f"static_{name}"] = number
        return cls(operands=operands, properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_parts(printer, "(", self.buffer, " : ", self.buffer.type)
        _print_scalar(printer, "offset", self.static_offset, self.offset)
        _print_scalar(printer, "len", self.static_len, self.length)
        for name, static, dynamic in (
            ("sizes", self.static_sizes, self.sizes),
            ("strides", self.static_strides, self.strides),
        ):
            if static is not None:
                printer.print_string(f" {name} = ")
                print_integers_and_operands(printer, integers(static), dynamic)
        if self.pad is not None:
            pads = integers(self.pad)
            pairs = zip(pads[::2], pads[1::2], strict=True)
            printer.print_string(
                " pad ["
                + ", ".join(f"<const_pad_before = {a}, const_pad_after = {b}>" for a, b in pairs)
                + "]"
            )
        print_parts(printer, ")", self.attributes)

    def verify_(self) -> None:
        if not isinstance(self.buffer.type, MemRefType | UnrankedMemRefType):
            raise VerifyException("aie.dma_bd takes a memref")
        sizes, strides, pads = (integers(a) for a in (self.static_sizes, self.static_strides, self.pad))
        if len(sizes) != len(strides):
            raise VerifyException(
                f"aie.dma_bd has {len(sizes)} sizes and {len(strides)} strides: give as many"
            )
        if len(sizes) > MAX_DIMENSIONS:
            raise VerifyException(
                f"aie.dma_bd has {len(sizes)} dimensions: a descriptor has {MAX_DIMENSIONS}"
            )
        if pads and len(pads) != 2 * len(sizes):
            raise VerifyException("aie.dma_bd pads other dimensions than it has: give a pair for each size")


def _parse_named(parser: Parser, operands: list[list[SSAValue]], properties: dict[str, Attribute]) -> None:
    for number, name in ((1, "offset"), (2, "len")):
        if parser.parse_optional_keyword(name) is not None:
            parser.parse_punctuation("=")
            operand = parser.parse_optional_unresolved_operand()
            if operand is not None:
                operands[number] = [parser.resolve_operand(operand, i32)]
            else:
                properties[f"static_{name}"] = parse_number(parser)
    for number, name in ((3, "sizes"), (4, "strides")):
        if parser.parse_optional_keyword(name) is not None:
            parser.parse_punctuation("=")
            numbers, operands[number] = parse_integers_and_operands(parser)
            properties[f"static_{name}"] = integer_array(numbers)
    if parser.parse_optional_keyword("pad") is not None:
        properties["pad"] = _pads(parse_pairs(parser))


def _parse_positional(parser: Parser, properties: dict[str, Attribute]) -> None:
    properties["static_offset"] = parse_number(parser)
    if parser.parse_optional_punctuation(",") is None:
        return
    properties["static_len"] = parse_number(parser)
    if parser.parse_optional_punctuation(",") is None:
        return
    dimensions = parse_pairs(parser) or []
    properties["static_sizes"] = integer_array([pair[0] for pair in dimensions])
    properties["static_strides"] = integer_array([pair[1] for pair in dimensions])
    if parser.parse_optional_punctuation(",") is not None:
        properties["pad"] = _pads(parse_pairs(parser))


def _pads(pairs: list[list[int]] | None) -> DenseArrayBase:
    return integer_array([count for pair in pairs or () for count in pair])


def _print_scalar(printer: Printer, name: str, static: IntegerAttr | None, value: SSAValue | None) -> None:
    if value is not None:
        print_parts(printer, f" {name} = ", value)
    elif static is not None:
        printer.print_string(f" {name} = {static.value.data}")
