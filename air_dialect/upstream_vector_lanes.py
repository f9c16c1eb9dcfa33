"""Operations of MLIR's vector dialect on lanes that xDSL lacks, in upstream assembly."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from typing_extensions import Self
from xdsl.dialects.builtin import (
    BoolAttr,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    VectorType,
    i1,
    i64,
)
from xdsl.dialects.vector import CombiningKindAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from air_dialect.attributes import attribute_text
from air_dialect.upstream_vector import ADD, element_type, vector_shape

# ------------------------------------------------------------------------------- making vectors


@irdl_op_definition
class StepOp(IRDLOperation):
    """`vector.step : vector<4xindex>`: 0, 1, 2, 3."""

    name = "vector.step"
    result = result_def(VectorType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict `:` type($result)"

    def verify_(self) -> None:
        if len(vector_shape(self.result)) != 1 or element_type(self.result) != IndexType():
            raise VerifyException(
                f"vector.step gives a 1-d vector of indices, not {attribute_text(self.result.type)}"
            )


@irdl_op_definition
class ConstantMaskOp(IRDLOperation):
    """`vector.constant_mask [3, 2] : vector<4x3xi1>`: true below these bounds."""

    name = "vector.constant_mask"
    mask_dim_sizes = prop_def(DenseArrayBase.constr(i64))
    result = result_def(VectorType)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        bounds = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.create(
            result_types=[parser.parse_type()],
            properties={"mask_dim_sizes": DenseArrayBase.from_list(i64, bounds)},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {list(self.mask_dim_sizes.get_values())}")
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        bounds, shape = self.mask_dim_sizes.get_values(), vector_shape(self.result)
        is_inside = all(0 <= bound <= extent for bound, extent in zip(bounds, shape, strict=False))
        if element_type(self.result) != i1 or len(bounds) != max(len(shape), 1) or not is_inside:
            raise VerifyException(
                f"vector.constant_mask {list(bounds)} of {attribute_text(self.result.type)}: write a bound, "
                "from 0 to the extent, per dimension of a vector of i1"
            )


@irdl_op_definition
class SplatOp(IRDLOperation):
    """`vector.splat %x : vector<8xf32>`: the older name of a broadcast of a scalar."""

    name = "vector.splat"
    input = operand_def()
    aggregate = result_def(VectorType)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operand = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = _vector_type(parser)
        value = parser.resolve_operand(operand, type_.element_type)
        return cls.create(operands=[value], result_types=[type_], attributes=attributes)

    def print(self, printer: Printer) -> None:
        _print_typed(printer, self, self.operands, self.aggregate.type)


def _vector_type(parser: Parser) -> VectorType:
    position = parser.pos
    type_ = parser.parse_type()
    if not isinstance(type_, VectorType):
        parser.raise_error(f"a vector type is wanted here, not {attribute_text(type_)}", position)
    return type_


def _print_typed(printer: Printer, op: Operation, values: Sequence[SSAValue], type_: Attribute) -> None:
    """Print ` %a, %b {attributes} : type`."""
    printer.print_string(" ")
    printer.print_list(values, printer.print_operand)
    printer.print_op_attributes(op.attributes)
    printer.print_string(" : ")
    printer.print_attribute(type_)


# -------------------------------------------------------------------------------------- elements


@irdl_op_definition
class ToElementsOp(IRDLOperation):
    """`%e:4 = vector.to_elements %v : vector<4xf32>`: row-major."""

    name = "vector.to_elements"
    source = operand_def(VectorType)
    elements = var_result_def()
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operand = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = _vector_type(parser)
        count = prod(type_.get_shape())
        return cls.create(
            operands=[parser.resolve_operand(operand, type_)],
            result_types=[type_.element_type] * count,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        _print_typed(printer, self, self.operands, self.source.type)

    def verify_(self) -> None:
        if len(self.elements) != prod(vector_shape(self.source)):
            raise VerifyException(
                f"vector.to_elements has {len(self.elements)} results for {attribute_text(self.source.type)}"
            )


@irdl_op_definition
class ExtractElementOp(IRDLOperation):
    """`vector.extractelement %v[%i : i32] : vector<16xf32>`: the older form of vector.extract."""

    name = "vector.extractelement"
    vector = operand_def(VectorType)
    position = opt_operand_def(base(IndexType) | base(IntegerType))
    result = result_def()
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        vector = parser.parse_unresolved_operand()
        position = _parse_position(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = _vector_type(parser)
        return cls.create(
            operands=[parser.resolve_operand(vector, type_), *position],
            result_types=[type_.element_type],
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.vector)
        _print_position(printer, self.position)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.vector.type)


@irdl_op_definition
class InsertElementOp(IRDLOperation):
    """`vector.insertelement %x, %v[%i : i32] : vector<16xf32>`: the older form of vector.insert."""

    name = "vector.insertelement"
    source = operand_def()
    dest = operand_def(VectorType)
    position = opt_operand_def(base(IndexType) | base(IntegerType))
    result = result_def(VectorType)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        source = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        dest = parser.parse_unresolved_operand()
        position = _parse_position(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = _vector_type(parser)
        value = parser.resolve_operand(source, type_.element_type)
        return cls.create(
            operands=[value, parser.resolve_operand(dest, type_), *position],
            result_types=[type_],
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands[:2], printer.print_operand)
        _print_position(printer, self.position)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.dest.type)


def _parse_position(parser: Parser) -> list[SSAValue]:
    """Parse `[%i : i32]` or `[]`."""
    with parser.in_square_brackets():
        operand = parser.parse_optional_unresolved_operand()
        if operand is None:
            return []
        parser.parse_punctuation(":")
        return [parser.resolve_operand(operand, parser.parse_type())]


def _print_position(printer: Printer, position: SSAValue | None) -> None:
    with printer.in_square_brackets():
        if position is not None:
            printer.print_operand(position)
            printer.print_string(" : ")
            printer.print_attribute(position.type)


# ----------------------------------------------------------------------------- lanes of two vectors


@irdl_op_definition
class InterleaveOp(IRDLOperation):
    """`vector.interleave %a, %b : vector<4xi32> -> vector<8xi32>`: a0, b0, a1, b1, ... ."""

    name = "vector.interleave"
    lhs = operand_def(VectorType)
    rhs = operand_def(VectorType)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        parser.parse_punctuation("->")
        return cls.create(
            operands=[parser.resolve_operand(name, type_) for name in names],
            result_types=[parser.parse_type()],
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        _print_typed(printer, self, self.operands, self.lhs.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        *outer, last = vector_shape(self.lhs) or (1,)
        if self.lhs.type != self.rhs.type or vector_shape(self.result) != (*outer, 2 * last):
            raise VerifyException(
                f"vector.interleave of {attribute_text(self.lhs.type)} and {attribute_text(self.rhs.type)} "
                f"gives {[*outer, 2 * last]}, not {attribute_text(self.result.type)}"
            )


@irdl_op_definition
class DeinterleaveOp(IRDLOperation):
    """`%even, %odd = vector.deinterleave %v : vector<8xi8> -> vector<4xi8>`."""

    name = "vector.deinterleave"
    source = operand_def(VectorType)
    even = result_def(VectorType)
    odd = result_def(VectorType)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source = parser.resolve_operand(name, parser.parse_type())
        parser.parse_punctuation("->")
        return cls.create(operands=[source], result_types=[parser.parse_type()] * 2, attributes=attributes)

    def print(self, printer: Printer) -> None:
        _print_typed(printer, self, self.operands, self.source.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.even.type)

    def verify_(self) -> None:
        *outer, last = vector_shape(self.source) or (1,)
        if last % 2 or vector_shape(self.even) != (*outer, last // 2) or self.even.type != self.odd.type:
            raise VerifyException(
                f"vector.deinterleave of {attribute_text(self.source.type)} gives two halves of the last "
                f"dimension, not {attribute_text(self.even.type)}"
            )


@irdl_op_definition
class OuterProductOp(IRDLOperation):
    """`vector.outerproduct %a, %b, %acc {kind = #vector.kind<add>} : vector<4xf32>, vector<8xf32>`.

    With a scalar on the right it is a scaled vector. Without `%acc` the products themselves result.
    """

    name = "vector.outerproduct"
    lhs = operand_def(VectorType)
    rhs = operand_def()
    acc = opt_operand_def(VectorType)
    kind = prop_def(CombiningKindAttr)
    result = result_def(VectorType)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        left = _vector_type(parser)
        parser.parse_punctuation(",")
        right = parser.parse_type()
        columns = right.get_shape() if isinstance(right, VectorType) else ()
        result = VectorType(left.element_type, [*left.get_shape(), *columns])
        types = [left, right, result]
        kind = attributes.pop("kind", ADD)
        return cls.create(
            operands=[parser.resolve_operand(name, type_) for name, type_ in zip(names, types, strict=False)],
            result_types=[result],
            properties={"kind": kind},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes({"kind": self.kind, **self.attributes})
        printer.print_string(" : ")
        printer.print_list([self.lhs.type, self.rhs.type], printer.print_attribute)

    def verify_(self) -> None:
        wanted = (*vector_shape(self.lhs), *vector_shape(self.rhs))
        if vector_shape(self.result) != wanted or element_type(self.lhs) != element_type(self.rhs):
            raise VerifyException(
                f"vector.outerproduct of {attribute_text(self.lhs.type)} and {attribute_text(self.rhs.type)} "
                f"gives {list(wanted)} of one element type, not {attribute_text(self.result.type)}"
            )


@irdl_op_definition
class ScanOp(IRDLOperation):
    """`%all, %last = vector.scan <add>, %v, %init {inclusive = false, reduction_dim = 1 : i64} : A, B`.

    Running totals along a dimension, from `%init`, and the last of them.
    """

    name = "vector.scan"
    source = operand_def(VectorType)
    initial_value = operand_def(VectorType)
    kind = prop_def(CombiningKindAttr)
    reduction_dim = prop_def(IntegerAttr[IntegerType])
    inclusive = prop_def(BoolAttr)
    dest = result_def(VectorType)
    accumulated_value = result_def(VectorType)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        kind = CombiningKindAttr(CombiningKindAttr.parse_parameter(parser))
        parser.parse_punctuation(",")
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        position = parser.pos
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        own: dict[str, Attribute] = {
            key: attributes.pop(key) for key in ("reduction_dim", "inclusive") if key in attributes
        }
        return cls.create(
            operands=parser.resolve_operands(names, types, position),
            result_types=types,
            properties={"kind": kind, **own},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        self.kind.print_parameter(printer)
        printer.print_string(", ")
        printer.print_list(self.operands, printer.print_operand)
        shown: dict[str, Attribute] = {"inclusive": self.inclusive, "reduction_dim": self.reduction_dim}
        printer.print_op_attributes(shown | self.attributes)
        printer.print_string(" : ")
        printer.print_list([self.source.type, self.initial_value.type], printer.print_attribute)

    def verify_(self) -> None:
        shape, dim = list(vector_shape(self.source)), self.reduction_dim.value.data
        kept = tuple(shape[:dim] + shape[dim + 1 :])
        if not 0 <= dim < len(shape) or vector_shape(self.initial_value) != kept:
            raise VerifyException(
                f"vector.scan of {attribute_text(self.source.type)} along dimension {dim} starts from "
                f"{list(kept)}, not {attribute_text(self.initial_value.type)}"
            )


# ---------------------------------------------------------------------------------------- memory

_ACCESS = "$base `[` $offsets `]`"


@irdl_op_definition
class GatherOp(IRDLOperation):
    """`vector.gather %m[%i][%where], %mask, %other : memref, indices, mask, vector into vector`."""

    name = "vector.gather"
    base = operand_def(MemRefType)
    offsets = var_operand_def(IndexType)
    index_vec = operand_def(VectorType)
    mask = operand_def(VectorType)
    pass_thru = operand_def(VectorType)
    result = result_def(VectorType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        _ACCESS + " `[` $index_vec `]` `,` $mask `,` $pass_thru attr-dict `:` type($base) `,` "
        "type($index_vec) `,` type($mask) `,` type($pass_thru) `into` type($result)"
    )


@irdl_op_definition
class ScatterOp(IRDLOperation):
    """`vector.scatter %m[%i][%where], %mask, %v : memref, indices, mask, vector`: later lanes win."""

    name = "vector.scatter"
    base = operand_def(MemRefType)
    offsets = var_operand_def(IndexType)
    index_vec = operand_def(VectorType)
    mask = operand_def(VectorType)
    value_to_store = operand_def(VectorType)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        _ACCESS + " `[` $index_vec `]` `,` $mask `,` $value_to_store attr-dict `:` type($base) `,` "
        "type($index_vec) `,` type($mask) `,` type($value_to_store)"
    )


@irdl_op_definition
class ExpandLoadOp(IRDLOperation):
    """`vector.expandload %m[%i], %mask, %other : memref, mask, vector into vector`: consecutive elements."""

    name = "vector.expandload"
    base = operand_def(MemRefType)
    offsets = var_operand_def(IndexType)
    mask = operand_def(VectorType)
    pass_thru = operand_def(VectorType)
    result = result_def(VectorType)
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        _ACCESS + " `,` $mask `,` $pass_thru attr-dict `:` type($base) `,` type($mask) `,` "
        "type($pass_thru) `into` type($result)"
    )


@irdl_op_definition
class CompressStoreOp(IRDLOperation):
    """`vector.compressstore %m[%i], %mask, %v : memref, mask, vector`: the lanes that are on."""

    name = "vector.compressstore"
    base = operand_def(MemRefType)
    offsets = var_operand_def(IndexType)
    mask = operand_def(VectorType)
    value_to_store = operand_def(VectorType)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        _ACCESS + " `,` $mask `,` $value_to_store attr-dict `:` type($base) `,` type($mask) `,` "
        "type($value_to_store)"
    )


OPERATIONS: tuple[type[Operation], ...] = (
    StepOp,
    ConstantMaskOp,
    SplatOp,
    ToElementsOp,
    ExtractElementOp,
    InsertElementOp,
    InterleaveOp,
    DeinterleaveOp,
    OuterProductOp,
    ScanOp,
    GatherOp,
    ScatterOp,
    ExpandLoadOp,
    CompressStoreOp,
)
