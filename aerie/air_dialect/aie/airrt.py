"""`airrt`, what the compiler makes of the host's side of AIR: read and printed, for texts between two passes.

Source: AIRRtOps.td of mlir-air. None of it runs here.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from typing import ClassVar, Self, TypeVar

from xdsl.dialects.builtin import DenseArrayBase, MemRefType, StringAttr, UnrankedMemRefType, i32, i64
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AttrSizedOperandSegments,
    BaseAttr,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_result_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, SingleBlockImplicitTerminator, ensure_terminator
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.aie.formats import (
    AieOp,
    integer_array,
    integers,
    parse_integers_and_operands,
    print_integers_and_operands,
)
from aerie.air_dialect.assembly import print_parts

_T = TypeVar("_T")

DIMENSIONS = 4
"""Of each list of a transfer."""


@irdl_attr_definition
class EventType(ParametrizedAttribute, TypeAttribute):
    """`!airrt.event`: completes when the operation that made it does."""

    name = "airrt.event"


EVENT = EventType()


class _TerminatorOp(AieOp, ABC):
    FORMAT: ClassVar = "attr-dict"
    traits = traits_def(IsTerminator())


@irdl_op_definition
class ModuleMetadataTerminatorOp(_TerminatorOp):
    name = "airrt.module_metadata_terminator"


@irdl_op_definition
class SegmentMetadataTerminatorOp(_TerminatorOp):
    name = "airrt.segment_metadata_terminator"


@irdl_op_definition
class HerdMetadataTerminatorOp(_TerminatorOp):
    name = "airrt.herd_metadata_terminator"


class _MetadataOp(IRDLOperation, ABC):
    """`NAME [attributes {...}] { ... }`."""

    body = region_def("single_block")

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        attributes = parser.parse_optional_attr_dict_with_keyword()
        op = cls(regions=[parser.parse_region()], attributes=attributes.data if attributes else {})
        for trait in op.get_traits_of_type(SingleBlockImplicitTerminator):
            ensure_terminator(op, trait)
        return op

    def print(self, printer: Printer) -> None:
        if self.attributes:
            print_parts(printer, " attributes", self.attributes)
        printer.print_string(" ")
        printer.print_region(self.body, print_block_terminators=False, print_empty_block=False)


@irdl_op_definition
class ModuleMetadataOp(_MetadataOp):
    """The segments of a module."""

    name = "airrt.module_metadata"
    traits = traits_def(SingleBlockImplicitTerminator(ModuleMetadataTerminatorOp))


@irdl_op_definition
class SegmentMetadataOp(_MetadataOp):
    """The herds of a segment."""

    name = "airrt.segment_metadata"
    traits = traits_def(SingleBlockImplicitTerminator(SegmentMetadataTerminatorOp))


@irdl_op_definition
class HerdMetadataOp(AieOp):
    """A herd: its name, size and place are attributes."""

    name = "airrt.herd_metadata"
    FORMAT: ClassVar = "attr-dict"


@irdl_op_definition
class HerdLoadOp(IRDLOperation):
    """`airrt.herd_load "herd" (%n) : (i32) -> i64`: start a herd, with its run-time parameters."""

    name = "airrt.herd_load"
    sym_name = prop_def(StringAttr)
    rtp = var_operand_def()
    handle = result_def(i64)
    event = opt_result_def(EventType)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = StringAttr(parser.parse_str_literal())
        names = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_function_type()
        operands = parser.resolve_operands(names, type_.inputs.data, parser.pos)
        results = type_.outputs.data
        return cls.build(
            operands=[operands], result_types=[results[0], results[1:]], properties={"sym_name": name},
            attributes=attributes,
        )  # fmt: skip

    def print(self, printer: Printer) -> None:
        print_parts(printer, " ", self.sym_name, " (", self.rtp, ")", self.attributes, " : ")
        printer.print_function_type([value.type for value in self.rtp], self.result_types)


@irdl_op_definition
class SegmentLoadOp(IRDLOperation):
    """`airrt.segment_load "segment" : i64`: configure the array for a segment."""

    name = "airrt.segment_load"
    sym_name = prop_def(StringAttr)
    handle = result_def(i64)
    event = opt_result_def(EventType)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name, attributes = StringAttr(parser.parse_str_literal()), parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        return cls.build(
            result_types=[types[0], types[1:]], properties={"sym_name": name}, attributes=attributes
        )

    def print(self, printer: Printer) -> None:
        print_parts(printer, " ", self.sym_name, self.attributes, " : ", self.result_types)


def _parse_event(parser: Parser) -> list[Attribute]:
    """Parse an optional `: !airrt.event`."""
    return [parser.parse_type()] if parser.parse_optional_punctuation(":") is not None else []


def _print_event(printer: Printer, op: IRDLOperation) -> None:
    if op.results:
        print_parts(printer, " : ", op.results[0].type)


@irdl_op_definition
class DmaMemcpyNdOp(IRDLOperation):
    """`airrt.dma_memcpy_nd(%id, %x, %y, %memref[0, 0, 0, %i], [1, 1, 1, 64], [0, 0, 0, 1]) : (i32, i64, i64,
    memref<64xi32>) : !airrt.event`: the host's half of a transfer, outermost dimension first."""

    name = "airrt.dma_memcpy_nd"
    id = operand_def(i32)
    x = operand_def(i64)
    y = operand_def(i64)
    memref = operand_def(MemRefType.constr() | BaseAttr(UnrankedMemRefType))
    offsets = var_operand_def(i64)
    lengths = var_operand_def(i64)
    strides = var_operand_def(i64)
    static_offsets = prop_def(DenseArrayBase)
    static_lengths = prop_def(DenseArrayBase)
    static_strides = prop_def(DenseArrayBase)
    event = opt_result_def(EventType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        fixed = [parser.parse_unresolved_operand()]
        for _ in range(3):
            parser.parse_punctuation(",")
            fixed.append(parser.parse_unresolved_operand())
        lists = [parse_integers_and_operands(parser)]
        for _ in range(2):
            parser.parse_punctuation(",")
            lists.append(parse_integers_and_operands(parser))
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        names = ("static_offsets", "static_lengths", "static_strides")
        return cls.build(
            operands=[*parser.resolve_operands(fixed, types, parser.pos), *(values for _, values in lists)],
            result_types=[_parse_event(parser)],
            properties={
                name: integer_array(numbers) for name, (numbers, _) in zip(names, lists, strict=True)
            },
            attributes=attributes,
        )

    def verify_(self) -> None:
        for name, numbers in (
            ("offsets", self.static_offsets),
            ("lengths", self.static_lengths),
            ("strides", self.static_strides),
        ):
            if len(integers(numbers)) != DIMENSIONS:
                raise VerifyException(
                    f"airrt.dma_memcpy_nd has {len(integers(numbers))} {name}: give {DIMENSIONS}"
                )

    def print(self, printer: Printer) -> None:
        fixed: Sequence[SSAValue] = self.operands[:4]
        print_parts(printer, "(", fixed)
        for lead, numbers, values in (
            ("", self.static_offsets, self.offsets),
            (", ", self.static_lengths, self.lengths),
            (", ", self.static_strides, self.strides),
        ):
            printer.print_string(lead)
            print_integers_and_operands(printer, integers(numbers), values)
        print_parts(printer, ")", self.attributes, " : (", [value.type for value in fixed], ")")
        _print_event(printer, self)


@irdl_op_definition
class MemcpyNdOp(IRDLOperation):
    """`airrt.memcpy_nd(%dst, %src, [%o, ...], [%l, ...], [%s, ...]) : (memref<64xi32, 1>, memref<64xi32>,
    [i64, ...], [i64, ...], [i64, ...])`: a transfer of the host, in four dimensions, outermost first."""

    name = "airrt.memcpy_nd"
    memrefs = var_operand_def(MemRefType.constr() | BaseAttr(UnrankedMemRefType))
    pattern = var_operand_def(i64)
    event = opt_result_def(EventType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_punctuation("(")
        names = _parse_grouped(parser, parser.parse_unresolved_operand)
        parser.parse_punctuation(")")
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        parser.parse_punctuation("(")
        types = _parse_grouped(parser, parser.parse_type)
        parser.parse_punctuation(")")
        operands = parser.resolve_operands(names, types, parser.pos)
        return cls.build(
            operands=[operands[:2], operands[2:]],
            result_types=[_parse_event(parser)],
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        print_parts(printer, "(", self.memrefs)
        groups = [self.pattern[at : at + DIMENSIONS] for at in range(0, len(self.pattern), DIMENSIONS)]
        for group in groups:
            print_parts(printer, ", [", group, "]")
        print_parts(printer, ")", self.attributes, " : (", [value.type for value in self.memrefs])
        for group in groups:
            print_parts(printer, ", [", [value.type for value in group], "]")
        printer.print_string(")")
        _print_event(printer, self)


def _parse_grouped(parser: Parser, parse_one: Callable[[], _T]) -> list[_T]:
    """Parse two of a kind, and three lists of DIMENSIONS of them: `%a, %b, [%c, ...], [...], [...]`."""
    found = [parse_one()]
    parser.parse_punctuation(",")
    found.append(parse_one())
    for _ in range(3):
        parser.parse_punctuation(",")
        start = parser.pos
        group = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parse_one)
        if len(group) != DIMENSIONS:
            parser.raise_error(f"airrt.memcpy_nd has a list of {len(group)}: give {DIMENSIONS}", start)
        found.extend(group)
    return found


@irdl_op_definition
class AllocOp(AieOp):
    """`airrt.alloc : memref<64xi32, 1>`."""

    name = "airrt.alloc"
    result = result_def(MemRefType)
    FORMAT: ClassVar = "attr-dict `:` type($result)"


@irdl_op_definition
class DeallocOp(AieOp):
    """`airrt.dealloc %m : memref<64xi32, 1>`."""

    name = "airrt.dealloc"
    memref = operand_def(MemRefType)
    FORMAT: ClassVar = "attr-dict $memref `:` type($memref)"


@irdl_op_definition
class WaitAllOp(IRDLOperation):
    """`airrt.wait_all %e, %f : !airrt.event`: wait for events; the result is one for all of them."""

    name = "airrt.wait_all"
    events = var_operand_def(EventType)
    event = opt_result_def(EventType)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names = parser.parse_optional_undelimited_comma_separated_list(
            parser.parse_optional_unresolved_operand, parser.parse_unresolved_operand
        )
        attributes = parser.parse_optional_attr_dict()
        events = [parser.resolve_operand(name, EVENT) for name in names or ()]
        return cls.build(operands=[events], result_types=[_parse_event(parser)], attributes=attributes)

    def print(self, printer: Printer) -> None:
        if self.events:
            print_parts(printer, " ", self.events)
        print_parts(printer, self.attributes)
        _print_event(printer, self)
