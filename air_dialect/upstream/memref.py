"""Assembly of MLIR's memref operations that xDSL knows only in the generic form, and two it lacks.

The classes with the assembly are subclasses of xDSL's own, so `isinstance(op, memref.CopyOp)` holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from typing_extensions import Self
from xdsl.dialects import memref
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    BoolAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    IndexType,
    IntegerAttr,
    MemRefType,
    StringAttr,
    TensorType,
    UnitAttr,
    UnrankedMemRefType,
    i32,
    i64,
)
from xdsl.dialects.utils import parse_dynamic_index_list_without_types
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    base,
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
from xdsl.traits import HasParent, IsTerminator, MemoryReadEffect, MemoryWriteEffect, NoMemoryEffect
from xdsl.utils.exceptions import VerifyException

from air_dialect.attributes import attribute_text
from air_dialect.upstream.assembly import (
    ATOMIC_KINDS,
    Conversion,
    optional_result_types,
    print_conversion,
    print_result_types,
)


class CopyOp(memref.CopyOp):
    """`memref.copy %source, %destination : type to type`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        source = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        destination = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source_value = parser.resolve_operand(source, parser.parse_type())
        parser.parse_keyword("to")
        op = cls(source_value, parser.resolve_operand(destination, parser.parse_type()))
        op.attributes.update(attributes)
        return op

    def print(self, printer: Printer) -> None:
        print_conversion(printer, self, self.destination.type)

    def verify_(self) -> None:
        source, destination = self.operands[0].type, self.operands[1].type
        if not isinstance(source, MemRefType) or not isinstance(destination, MemRefType):
            return
        if source.element_type != destination.element_type or not _may_agree(source, destination):
            raise VerifyException(
                f"memref.copy from {attribute_text(source)} to {attribute_text(destination)}: shape and "
                "element type must be equal"
            )


def _may_agree(one: MemRefType, other: MemRefType) -> bool:
    """Whether two shapes are equal wherever both are known at compile time."""
    pairs = zip(one.get_shape(), other.get_shape(), strict=False)
    return one.get_num_dims() == other.get_num_dims() and all(
        left == right or DYNAMIC_INDEX in (left, right) for left, right in pairs
    )


class CastOp(Conversion, memref.CastOp):
    """`memref.cast %v : type to type`."""


class MemorySpaceCastOp(Conversion, memref.MemorySpaceCastOp):
    """`memref.memory_space_cast %v : type to type`."""


class GlobalOp(memref.GlobalOp):
    """`memref.global "private" constant @name : memref<2xf32> = dense<[1.0, 2.0]> {alignment = 64 : i64}`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        visibility = parser.parse_optional_str_literal()
        constant = parser.parse_optional_keyword("constant") is not None
        name = parser.parse_symbol_name()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        properties: dict[str, Attribute] = {
            "sym_name": name,
            "type": type_,
        }
        if visibility is not None:
            properties["sym_visibility"] = StringAttr(visibility)
        if parser.parse_optional_punctuation("=") is not None:
            properties["initial_value"] = _parse_initial_value(parser, type_)
        attributes = parser.parse_optional_attr_dict()
        if constant:
            properties["constant"] = UnitAttr()
        if "alignment" in attributes:
            properties["alignment"] = attributes.pop("alignment")
        return cls.create(properties=properties, attributes=attributes)

    @classmethod
    def create(cls, *, properties: Mapping[str, Attribute] = MappingProxyType({}), **others: Any) -> Self:
        """Build from parts; MLIR's generic form leaves the visibility "public" out."""
        return super().create(properties={"sym_visibility": StringAttr("public"), **properties}, **others)

    def print(self, printer: Printer) -> None:
        if self.sym_visibility.data != "public":
            printer.print_string(" ")
            printer.print_string_literal(self.sym_visibility.data)
        if self.constant is not None:
            printer.print_string(" constant")
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_string(" : ")
        printer.print_attribute(self.type)
        initial = self.properties.get("initial_value")
        if isinstance(initial, DenseIntOrFPElementsAttr):
            printer.print_string(" = ")
            initial.print_without_type(printer)
        elif initial is not None:
            printer.print_string(" = uninitialized")
        alignment = {} if self.alignment is None else {"alignment": self.alignment}
        printer.print_op_attributes({**alignment, **self.attributes})

    def verify_(self) -> None:
        if "initial_value" in self.properties:  # without one it declares a global defined elsewhere
            super().verify_()


def _parse_initial_value(parser: Parser, type_: Attribute) -> Attribute:
    if parser.parse_optional_keyword("uninitialized") is not None:
        return UnitAttr()
    parser.parse_keyword("dense")
    if not isinstance(type_, MemRefType):
        parser.raise_error(f"memref.global declares a memref, not {attribute_text(type_)}")
    return parser.parse_dense_int_or_fp_elements_attr(TensorType(type_.element_type, type_.shape))


@irdl_op_definition
class TransposeOp(IRDLOperation):
    """`memref.transpose %v (d0, d1) -> (d1, d0) : type to type`: a view with permuted dimensions."""

    name = "memref.transpose"
    source = operand_def(MemRefType)
    permutation = prop_def(AffineMapAttr)
    result = result_def(MemRefType)
    traits = traits_def(NoMemoryEffect())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operand = parser.parse_unresolved_operand()
        permutation = AffineMapAttr(parser.parse_affine_map())
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source = parser.resolve_operand(operand, parser.parse_type())
        parser.parse_keyword("to")
        return cls.create(
            operands=[source],
            result_types=[parser.parse_type()],
            properties={"permutation": permutation},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.source)
        printer.print_string(f" {self.permutation.data}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.source.type)
        printer.print_string(" to ")
        printer.print_attribute(self.result.type)


@irdl_op_definition
class ReshapeOp(IRDLOperation):
    """`memref.reshape %v(%shape) : (type, memref<2xindex>) -> type`."""

    name = "memref.reshape"
    source = operand_def(base(MemRefType) | base(UnrankedMemRefType))
    shape = operand_def(MemRefType)
    result = result_def(base(MemRefType) | base(UnrankedMemRefType))
    traits = traits_def(NoMemoryEffect())
    assembly_format = "$source `(` $shape `)` attr-dict `:` functional-type(operands, results)"


class ReinterpretCastOp(memref.ReinterpretCastOp):
    """`memref.reinterpret_cast %v to offset: [0], sizes: [4, %n], strides: [%n, 1] : type to type`.

    The source may be unranked, which xDSL's does not allow.
    """

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operand = parser.parse_unresolved_operand()
        parser.parse_keyword("to")
        dynamic: list[Sequence[SSAValue]] = []
        static: dict[str, Attribute] = {}
        for separator, word in (("", "offset"), (",", "sizes"), (",", "strides")):
            if separator:
                parser.parse_punctuation(",")
            parser.parse_keyword(word)
            parser.parse_punctuation(":")
            operands, integers = parse_dynamic_index_list_without_types(parser, DYNAMIC_INDEX)
            dynamic.append([parser.resolve_operand(value, IndexType()) for value in operands])
            name = "static_offsets" if word == "offset" else f"static_{word}"
            static[name] = DenseArrayBase.from_list(i64, integers)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source = parser.resolve_operand(operand, parser.parse_type())
        parser.parse_keyword("to")
        return cls.create(
            operands=[source, *(value for values in dynamic for value in values)],
            result_types=[parser.parse_type()],
            properties={
                **static,
                "operandSegmentSizes": DenseArrayBase.from_list(i32, [1, *map(len, dynamic)]),
            },
            attributes=attributes,
        )

    def verify_(self) -> None:
        if isinstance(self.source.type, MemRefType):
            super().verify_()  # type: ignore[no-untyped-call]


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
    CopyOp,
    CastOp,
    ReinterpretCastOp,
    MemorySpaceCastOp,
    GlobalOp,
    TransposeOp,
    ReshapeOp,
    AtomicRMWOp,
    AtomicYieldOp,
    GenericAtomicRMWOp,
    PrefetchOp,
    AllocaScopeOp,
    AllocaScopeReturnOp,
    ExtractPointerOp,
    RankOp,
)
