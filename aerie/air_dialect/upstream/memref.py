"""memref operations that xDSL lacks or knows only in the generic form.

The classes named like xDSL's are subclasses of them, so `isinstance(op, memref.CopyOp)` holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from xdsl.dialects import memref
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    BoolAttr,
    DenseIntOrFPElementsAttr,
    IndexType,
    IntegerAttr,
    MemRefType,
    StringAttr,
    TensorType,
    UnitAttr,
    UnrankedMemRefType,
    i32,
)
from xdsl.ir import Attribute
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

from aerie.air_dialect.assembly import optional_result_types, parse_reference, print_parts, print_result_types
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.upstream.formats import ATOMIC_KINDS, Formatted

# ------------------------------------------------------------------------------------ whole buffers


class CopyOp(Formatted, memref.CopyOp):
    """`memref.copy %source, %destination : type to type`."""

    FORMAT = "$source `,` $destination attr-dict `:` type($source) `to` type($destination)"

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


class CastOp(Formatted, memref.CastOp):
    """`memref.cast %v : type to type`."""

    FORMAT = "$source attr-dict `:` type($source) `to` type($dest)"


class MemorySpaceCastOp(Formatted, memref.MemorySpaceCastOp):
    """`memref.memory_space_cast %v : type to type`."""

    FORMAT = "$source attr-dict `:` type($source) `to` type($dest)"


class ReinterpretCastOp(Formatted, memref.ReinterpretCastOp):
    """`memref.reinterpret_cast %v to offset: [0], sizes: [4, %n], strides: [%n, 1] : type to type`.

    The source may be unranked, which xDSL's does not allow.
    """

    FORMAT = memref.ReinterpretCastOp.assembly_format

    def verify_(self) -> None:
        if isinstance(self.source.type, MemRefType):
            super().verify_()  # type: ignore[no-untyped-call]


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
        print_parts(printer, " ", self.source, f" {self.permutation.data}", self.attributes)
        print_parts(printer, " : ", self.source.type, " to ", self.result.type)


@irdl_op_definition
class ReshapeOp(IRDLOperation):
    """`memref.reshape %v(%shape) : (type, memref<2xindex>) -> type`."""

    name = "memref.reshape"
    source = operand_def(base(MemRefType) | base(UnrankedMemRefType))
    shape = operand_def(MemRefType)
    result = result_def(base(MemRefType) | base(UnrankedMemRefType))
    traits = traits_def(NoMemoryEffect())
    assembly_format = "$source `(` $shape `)` attr-dict `:` functional-type(operands, results)"


class ExtractPointerOp(Formatted, memref.ExtractAlignedPointerAsIndexOp):
    """`memref.extract_aligned_pointer_as_index %m : memref<8xf32> -> index`."""

    FORMAT = "$source attr-dict `:` type($source) `->` type($aligned_pointer)"


class RankOp(Formatted, memref.RankOp):
    """`memref.rank %m : memref<8xf32>`."""

    FORMAT = "$source attr-dict `:` type($source)"


class GlobalOp(memref.GlobalOp):
    """`memref.global "private" constant @name : memref<2xf32> = dense<[1.0, 2.0]> {alignment = 64 : i64}`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        visibility = parser.parse_optional_str_literal()
        constant = parser.parse_optional_keyword("constant") is not None
        name = parser.parse_symbol_name()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        properties: dict[str, Attribute] = {"sym_name": name, "type": type_}
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
        print_parts(printer, " constant " if self.constant is not None else " ")
        printer.print_symbol_name(self.sym_name.data)
        print_parts(printer, " : ", self.type)
        initial = self.properties.get("initial_value")
        if isinstance(initial, DenseIntOrFPElementsAttr):
            printer.print_string(" = ")
            initial.print_without_type(printer)
        elif initial is not None:
            printer.print_string(" = uninitialized")
        alignment = {} if self.alignment is None else {"alignment": self.alignment}
        print_parts(printer, {**alignment, **self.attributes})

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


# ------------------------------------------------------------------------------------ elements


class AtomicRMWOp(Formatted, memref.AtomicRMWOp):
    """`%old = memref.atomic_rmw addi %v, %m[%i] : (i32, memref<8xi32>) -> i32`."""

    FORMAT = (
        "custom<Keyword>($kind) $value `,` $memref `[` $indices `]` attr-dict "
        "`:` custom<Signature>(type($value), type($memref), type($result))"
    )

    @property
    def kind_name(self) -> str:
        """The kind as the assembly names it."""
        return ATOMIC_KINDS[self.kind.value.data]

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
        buffer, indices = parse_reference(parser)
        parser.parse_punctuation(":")
        start = parser.pos
        type_ = parser.parse_type()
        if not isinstance(type_, MemRefType):
            parser.raise_error(f"expected a memref here, not {attribute_text(type_)}", start)
        body = parser.parse_region()
        return cls.create(
            operands=[parser.resolve_operand(buffer, type_), *indices],
            result_types=[type_.element_type],
            regions=[body],
            attributes=parser.parse_optional_attr_dict(),
        )

    def print(self, printer: Printer) -> None:
        print_parts(printer, " ", self.memref, "[", self.indices, "] : ", self.memref.type, " ")
        printer.print_region(self.body)
        print_parts(printer, self.attributes)


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
        buffer, indices = parse_reference(parser)
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
            operands=[parser.resolve_operand(buffer, parser.parse_type()), *indices],
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
        hint = f"], {access}, locality<{self.locality.value.data}>, {cache}"
        print_parts(
            printer, " ", self.memref, "[", self.indices, hint, self.attributes, " : ", self.memref.type
        )


# ------------------------------------------------------------------------------------ scopes


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
        print_parts(printer, self.attributes)


class AllocaScopeReturnOp(Formatted, memref.AllocaScopeReturnOp):
    """`memref.alloca_scope.return %v : f32`."""

    FORMAT = "attr-dict ($ops^ `:` type($ops))?"
