"""memref operations beyond loads and stores that xDSL lacks or knows only in the generic form."""

from __future__ import annotations

from typing_extensions import Self
from xdsl.dialects import memref
from xdsl.dialects.builtin import BoolAttr, IndexType, IntegerAttr, MemRefType, i32, i64
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator, MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from air_dialect.attributes import attribute_text
from air_dialect.upstream_assembly import ATOMIC_KINDS, optional_result_types, print_result_types


def _print_element(printer: Printer, buffer: SSAValue, indices: list[SSAValue]) -> None:
    """Print `%m[%i, %j]`."""
    printer.print_operand(buffer)
    with printer.in_square_brackets():
        printer.print_list(indices, printer.print_operand)


class AtomicRMWOp(memref.AtomicRMWOp):
    """`%old = memref.atomic_rmw addi %v, %m[%i] : (i32, memref<8xi32>) -> i32`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        start = parser.pos
        kind = parser.parse_identifier()
        if kind not in ATOMIC_KINDS:
            parser.raise_error(
                f"memref.atomic_rmw knows no {kind}: write one of {', '.join(ATOMIC_KINDS)}", start
            )
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        buffer = parser.parse_unresolved_operand()
        indices = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        position = parser.pos
        types = parser.parse_function_type()
        sides = parser.resolve_operands([value, buffer], types.inputs.data, position)
        return cls.create(
            operands=[*sides, *(parser.resolve_operand(index, IndexType()) for index in indices)],
            result_types=types.outputs.data,
            properties={"kind": IntegerAttr(ATOMIC_KINDS.index(kind), i64)},
            attributes=attributes,
        )

    @property
    def kind_name(self) -> str:
        """The kind as the assembly names it."""
        return ATOMIC_KINDS[self.kind.value.data]

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {ATOMIC_KINDS[self.kind.value.data]} ")
        printer.print_operand(self.value)
        printer.print_string(", ")
        _print_element(printer, self.memref, list(self.indices))
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : (")
        printer.print_list([self.value.type, self.memref.type], printer.print_attribute)
        printer.print_string(") -> ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        if not 0 <= self.kind.value.data < len(ATOMIC_KINDS):
            raise VerifyException(f"memref.atomic_rmw has kind {self.kind.value.data}: write 0 to 15")


@irdl_op_definition
class AtomicYieldOp(IRDLOperation):
    """`memref.atomic_yield %new : f32`: what a generic_atomic_rmw stores."""

    name = "memref.atomic_yield"
    result = operand_def()
    traits = lazy_traits_def(lambda: (HasParent(GenericAtomicRMWOp), IsTerminator()))
    assembly_format = "$result attr-dict `:` type($result)"


@irdl_op_definition
class GenericAtomicRMWOp(IRDLOperation):
    """`%new = memref.generic_atomic_rmw %m[%i] : memref<8xf32> { ^bb0(%old: f32): ... }`."""

    name = "memref.generic_atomic_rmw"
    memref = operand_def(MemRefType)
    indices = var_operand_def(IndexType)
    result = result_def()
    body = region_def("single_block")
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        buffer = parser.parse_unresolved_operand()
        indices = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_unresolved_operand)
        parser.parse_punctuation(":")
        start = parser.pos
        type_ = parser.parse_type()
        if not isinstance(type_, MemRefType):
            parser.raise_error(f"a memref is wanted here, not {attribute_text(type_)}", start)
        body = parser.parse_region()
        return cls.create(
            operands=[
                parser.resolve_operand(buffer, type_),
                *(parser.resolve_operand(index, IndexType()) for index in indices),
            ],
            result_types=[type_.element_type],
            regions=[body],
            attributes=parser.parse_optional_attr_dict(),
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        _print_element(printer, self.memref, list(self.indices))
        printer.print_string(" : ")
        printer.print_attribute(self.memref.type)
        printer.print_string(" ")
        printer.print_region(self.body)
        printer.print_op_attributes(self.attributes)


@irdl_op_definition
class PrefetchOp(IRDLOperation):
    """`memref.prefetch %m[%i], read, locality<3>, data : memref<8xf32>`: a hint without an effect."""

    name = "memref.prefetch"
    memref = operand_def(MemRefType)
    indices = var_operand_def(IndexType)
    is_write = prop_def(BoolAttr, prop_name="isWrite")
    locality = prop_def(IntegerAttr, prop_name="localityHint")
    is_data = prop_def(BoolAttr, prop_name="isDataCache")

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        buffer = parser.parse_unresolved_operand()
        indices = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_unresolved_operand)
        parser.parse_punctuation(",")
        access = parser.parse_identifier()
        parser.parse_punctuation(",")
        parser.parse_keyword("locality")
        with parser.in_angle_brackets():
            locality = parser.parse_integer()
        parser.parse_punctuation(",")
        cache = parser.parse_identifier()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.create(
            operands=[
                parser.resolve_operand(buffer, parser.parse_type()),
                *(parser.resolve_operand(index, IndexType()) for index in indices),
            ],
            properties={
                "isWrite": BoolAttr.from_bool(access == "write"),
                "localityHint": IntegerAttr(locality, i32),
                "isDataCache": BoolAttr.from_bool(cache == "data"),
            },
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        access = "write" if self.is_write.value.data else "read"
        cache = "data" if self.is_data.value.data else "instr"
        printer.print_string(" ")
        _print_element(printer, self.memref, list(self.indices))
        printer.print_string(f", {access}, locality<{self.locality.value.data}>, {cache}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.memref.type)


class AllocaScopeOp(memref.AllocaScopeOp):
    """`%r = memref.alloca_scope -> (f32) { ... memref.alloca_scope.return %v : f32 }`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        types = optional_result_types(parser)
        scope = parser.parse_region(())
        attributes = parser.parse_optional_attr_dict()
        last = scope.blocks[-1]
        if not isinstance(last.last_op, memref.AllocaScopeReturnOp):
            last.add_op(memref.AllocaScopeReturnOp(operands=[[]]))
        return cls.create(result_types=types, regions=[scope], attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_result_types(printer, self)
        printer.print_string(" ")
        printer.print_region(self.scope, print_empty_block=False, print_block_terminators=bool(self.results))
        printer.print_op_attributes(self.attributes)


class AllocaScopeReturnOp(memref.AllocaScopeReturnOp):
    """`memref.alloca_scope.return %v : f32`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        attributes = parser.parse_optional_attr_dict()
        names = parser.parse_optional_undelimited_comma_separated_list(
            parser.parse_optional_unresolved_operand, parser.parse_unresolved_operand
        )
        if not names:
            return cls.create(attributes=attributes)
        parser.parse_punctuation(":")
        position = parser.pos
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        return cls.create(operands=parser.resolve_operands(names, types, position), attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes)
        if self.operands:
            printer.print_string(" ")
            printer.print_list(self.operands, printer.print_operand)
            printer.print_string(" : ")
            printer.print_list([value.type for value in self.operands], printer.print_attribute)


class ExtractPointerOp(memref.ExtractAlignedPointerAsIndexOp):
    """`memref.extract_aligned_pointer_as_index %m : memref<8xf32> -> index`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source = parser.resolve_operand(name, parser.parse_type())
        parser.parse_punctuation("->")
        return cls.create(operands=[source], result_types=[parser.parse_type()], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.operands[0].type)
        printer.print_string(" -> ")
        printer.print_attribute(self.results[0].type)


class RankOp(memref.RankOp):
    """`memref.rank %m : memref<8xf32>`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source = parser.resolve_operand(name, parser.parse_type())
        return cls.create(operands=[source], result_types=[IndexType()], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.operands[0].type)


OPERATIONS: tuple[type[Operation], ...] = (
    AtomicRMWOp,
    AtomicYieldOp,
    GenericAtomicRMWOp,
    PrefetchOp,
    AllocaScopeOp,
    AllocaScopeReturnOp,
    ExtractPointerOp,
    RankOp,
)
