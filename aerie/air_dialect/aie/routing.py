"""Flows between ports, and what the router makes of them: the connections and rules of switches."""

from __future__ import annotations

from typing import ClassVar, Self

from xdsl.dialects.builtin import IntegerAttr, StringAttr, SymbolNameConstraint, i32
from xdsl.ir import Attribute
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import NoTerminator

from aerie.air_dialect.aie.attributes import PacketInfoAttr
from aerie.air_dialect.aie.formats import INDEX, AieOp, parse_index_operand, parse_number, parse_word
from aerie.air_dialect.assembly import print_parts


@irdl_op_definition
class FlowOp(AieOp):
    """`aie.flow(%a, DMA : 0, %b, DMA : 1)`: a circuit; several of one source are a broadcast."""

    name = "aie.flow"
    source = operand_def(INDEX)
    source_bundle = prop_def(StringAttr)
    source_channel = prop_def(IntegerAttr)
    dest = operand_def(INDEX)
    dest_bundle = prop_def(StringAttr)
    dest_channel = prop_def(IntegerAttr)
    FORMAT: ClassVar[str] = (
        "`(` $source `,` custom<Port>($source_bundle, $source_channel) `,` "
        "$dest `,` custom<Port>($dest_bundle, $dest_channel) `)` attr-dict"
    )


@irdl_op_definition
class PacketFlowOp(AieOp):
    """`aie.packet_flow(3) { packet_source, packet_dest... }`: a stream of packets with this id."""

    name = "aie.packet_flow"
    packet_id = prop_def(IntegerAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    FORMAT: ClassVar[str] = "`(` custom<Number>($packet_id) `)` $body attr-dict"


class PacketEndOp(AieOp):
    """An end of a packet flow."""

    tile = operand_def(INDEX)
    bundle = prop_def(StringAttr)
    channel = prop_def(IntegerAttr)
    FORMAT: ClassVar[str] = "`<` $tile `,` custom<Port>($bundle, $channel) `>` attr-dict"


@irdl_op_definition
class PacketSourceOp(PacketEndOp):
    """`aie.packet_source<%t, DMA : 0>`."""

    name = "aie.packet_source"


@irdl_op_definition
class PacketDestOp(PacketEndOp):
    """`aie.packet_dest<%t, DMA : 0>`."""

    name = "aie.packet_dest"


class SwitchOp(AieOp):
    """A switch of a tile."""

    tile = operand_def(INDEX)
    result = result_def(INDEX)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    FORMAT: ClassVar[str] = "`(` $tile `)` $body attr-dict"


@irdl_op_definition
class SwitchboxOp(SwitchOp):
    """`aie.switchbox(%t) { connect, amsel, masterset, packet_rules }`."""

    name = "aie.switchbox"


@irdl_op_definition
class ShimMuxOp(SwitchOp):
    """`aie.shim_mux(%t) { connect }`: between the shim's DMA and its switch."""

    name = "aie.shim_mux"


@irdl_op_definition
class ConnectOp(AieOp):
    """`aie.connect<South : 3, North : 1>`: a circuit through a switch."""

    name = "aie.connect"
    source_bundle = prop_def(StringAttr)
    source_channel = prop_def(IntegerAttr)
    dest_bundle = prop_def(StringAttr)
    dest_channel = prop_def(IntegerAttr)
    FORMAT: ClassVar[str] = (
        "`<` custom<Port>($source_bundle, $source_channel) `,` custom<Port>($dest_bundle, $dest_channel) "
        "`>` attr-dict"
    )


@irdl_op_definition
class AmselOp(AieOp):
    """`%0 = aie.amsel<1> (0)`: an arbiter, and one of its four choices of ports."""

    name = "aie.amsel"
    arbiter = prop_def(IntegerAttr)
    msel = prop_def(IntegerAttr)
    result = result_def(INDEX)
    FORMAT: ClassVar[str] = "`<` custom<Number>($arbiter) `>` `(` custom<Number>($msel) `)` attr-dict"


@irdl_op_definition
class MastersetOp(IRDLOperation):
    """`%1 = aie.masterset(DMA : 0, %0, ...)`: a port that listens to these choices of its arbiter."""

    name = "aie.masterset"
    dest_bundle = prop_def(StringAttr)
    dest_channel = prop_def(IntegerAttr)
    amsels = var_operand_def(INDEX)
    result = result_def(INDEX)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        properties: dict[str, Attribute] = {"dest_bundle": parse_word(parser)}
        parser.parse_punctuation(":")
        properties["dest_channel"] = IntegerAttr(parser.parse_integer(allow_boolean=False), i32)
        amsels = []
        while parser.parse_optional_punctuation(",") is not None:
            amsels.append(parse_index_operand(parser))
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        return cls(operands=[amsels], result_types=[INDEX], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(f"({self.dest_bundle.data} : {self.dest_channel.value.data}")
        for amsel in self.amsels:
            print_parts(printer, ", ", amsel)
        print_parts(printer, ")", self.attributes)


@irdl_op_definition
class PacketRulesOp(AieOp):
    """`aie.packet_rules(South : 1) { rule... }`: where the packets of a port go; the first match holds."""

    name = "aie.packet_rules"
    source_bundle = prop_def(StringAttr)
    source_channel = prop_def(IntegerAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    FORMAT: ClassVar[str] = "`(` custom<Port>($source_bundle, $source_channel) `)` $body attr-dict"


@irdl_op_definition
class RuleOp(AieOp):
    """`aie.rule(31, 1, %0)`: packets whose id, under the mask, is this value go to that choice."""

    name = "aie.rule"
    mask = prop_def(IntegerAttr)
    value = prop_def(IntegerAttr)
    amsel = operand_def(INDEX)
    FORMAT: ClassVar[str] = "`(` custom<Number>($mask) `,` custom<Number>($value) `,` $amsel `)` attr-dict"


@irdl_op_definition
class WireOp(AieOp):
    """`aie.wire(%a : North, %b : South)`: a remark of the router on which ports lie together."""

    name = "aie.wire"
    source = operand_def(INDEX)
    source_bundle = prop_def(StringAttr)
    dest = operand_def(INDEX)
    dest_bundle = prop_def(StringAttr)
    FORMAT: ClassVar[str] = (
        "`(` $source `:` custom<Word>($source_bundle) `,` $dest `:` custom<Word>($dest_bundle) `)` attr-dict"
    )


@irdl_op_definition
class ShimDmaAllocationOp(IRDLOperation):
    """`aie.shim_dma_allocation @in(%t, MM2S, 0, <pkt_id = 1>)`: the name of a channel of a shim."""

    name = "aie.shim_dma_allocation"
    sym_name = prop_def(SymbolNameConstraint())
    tile = operand_def(INDEX)
    direction = prop_def(StringAttr)
    channel = prop_def(IntegerAttr)
    packet = opt_prop_def(PacketInfoAttr)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        properties: dict[str, Attribute] = {"sym_name": parser.parse_symbol_name()}
        parser.parse_punctuation("(")
        tile = parse_index_operand(parser)
        parser.parse_punctuation(",")
        properties["direction"] = parse_word(parser)
        parser.parse_punctuation(",")
        properties["channel"] = parse_number(parser)
        if parser.parse_optional_punctuation(",") is not None:
            properties["packet"] = PacketInfoAttr(PacketInfoAttr.parse_parameter(parser))
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        return cls(operands=[tile], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        print_parts(printer, "(", self.tile, f", {self.direction.data}, {self.channel.value.data}")
        if self.packet is not None:
            printer.print_string(", ")
            self.packet.print_parameter(printer)
        print_parts(printer, ")", self.attributes)
