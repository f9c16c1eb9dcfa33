"""Operations of MLIR's vector dialect that xDSL lacks: the shapes, elements and lanes of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Self

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    IntegerType,
    VectorType,
    i64,
)
from xdsl.ir import Operation, SSAValue
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
from xdsl.traits import (
    Pure,
)
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.assembly import print_parts
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.upstream.formats import Formatted, element_type


def vector_shape(value: SSAValue) -> tuple[int, ...]:
    """The shape of a vector, () for a scalar."""
    return value.type.get_shape() if isinstance(value.type, VectorType) else ()


@irdl_op_definition
class TransposeOp(IRDLOperation):
    """`vector.transpose %v, [1, 0] : vector<2x3xf32> to vector<3x2xf32>`."""

    name = "vector.transpose"
    vector = operand_def(VectorType)
    permutation = prop_def(DenseArrayBase.constr(i64))
    result = result_def(VectorType)
    traits = traits_def(Pure())
    assembly_format = "$vector `,` $permutation attr-dict `:` type($vector) `to` type($result)"

    def __init__(self, vector: SSAValue | Operation, permutation: Sequence[int]) -> None:
        source = SSAValue.get(vector, type=VectorType)
        shape = source.type.get_shape()
        super().__init__(
            operands=[vector],
            properties={"permutation": DenseArrayBase.from_list(i64, permutation)},
            result_types=[VectorType(source.type.element_type, [shape[axis] for axis in permutation])],
        )

    def verify_(self) -> None:
        shape, order = vector_shape(self.vector), self.permutation.get_values()
        if sorted(order) != list(range(len(shape))):
            raise VerifyException(
                f"vector.transpose permutation {list(order)} is no permutation of 0..{len(shape) - 1}"
            )
        expected = tuple(shape[axis] for axis in order)
        if vector_shape(self.result) != expected:
            raise VerifyException(
                f"vector.transpose of {list(shape)} by {list(order)} gives {list(expected)}, "
                f"not {list(vector_shape(self.result))}"
            )


@irdl_op_definition
class ShapeCastOp(IRDLOperation):
    """`vector.shape_cast %v : vector<1x8xf32> to vector<8xf32>`: same elements, another shape."""

    name = "vector.shape_cast"
    source = operand_def(VectorType)
    result = result_def(VectorType)
    traits = traits_def(Pure())
    assembly_format = "$source attr-dict `:` type($source) `to` type($result)"

    def __init__(self, source: SSAValue | Operation, result_type: VectorType) -> None:
        super().__init__(operands=[source], result_types=[result_type])

    def verify_(self) -> None:
        source, result = self.source.type, self.result.type
        assert isinstance(source, VectorType)
        assert isinstance(result, VectorType)
        if source.element_type != result.element_type or prod(source.get_shape()) != prod(result.get_shape()):
            raise VerifyException(
                f"vector.shape_cast from {self.source.type} to {self.result.type} changes the element type "
                "or the number of elements"
            )


@irdl_op_definition
class FromElementsOp(IRDLOperation):
    """`vector.from_elements %a, %b : vector<2xf32>`: row-major."""

    name = "vector.from_elements"
    elements = var_operand_def()
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def __init__(self, elements: Sequence[SSAValue | Operation], result_type: VectorType) -> None:
        super().__init__(operands=[elements], result_types=[result_type])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        elements = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        start = parser.pos
        result_type = parser.parse_type()
        if not isinstance(result_type, VectorType):
            parser.raise_error(f"vector.from_elements gives a vector, not {result_type}", start)
        op = cls([parser.resolve_operand(value, result_type.element_type) for value in elements], result_type)
        op.attributes.update(attributes)
        return op

    def print(self, printer: Printer) -> None:
        print_parts(printer, " ", self.elements, self.attributes, " : ", self.result.type)

    def verify_(self) -> None:
        expected = prod(vector_shape(self.result))
        if len(self.elements) != expected:
            raise VerifyException(
                f"vector.from_elements has {len(self.elements)} elements for {self.result.type}, which "
                f"holds {expected}"
            )


@irdl_op_definition
class ExtractStridedSliceOp(IRDLOperation):
    """`vector.extract_strided_slice %v {offsets = [0], sizes = [4], strides = [1]} : A to B`."""

    name = "vector.extract_strided_slice"
    source = operand_def(VectorType)
    offsets = prop_def(ArrayAttr[IntegerAttr])
    sizes = prop_def(ArrayAttr[IntegerAttr])
    strides = prop_def(ArrayAttr[IntegerAttr])
    result = result_def(VectorType)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = "$source attr-dict `:` type($source) `to` type($result)"


@irdl_op_definition
class InsertStridedSliceOp(Formatted):
    """`vector.insert_strided_slice %s, %v {offsets = [0], strides = [1]} : A into B`."""

    name = "vector.insert_strided_slice"
    source = operand_def(VectorType)
    dest = operand_def(VectorType)
    offsets = prop_def(ArrayAttr[IntegerAttr])
    strides = prop_def(ArrayAttr[IntegerAttr])
    result = result_def(VectorType)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = (
        "$source `,` $dest attr-dict `:` type($source) `into` custom<BothTypes>(type($dest), type($result))"
    )


# ------------------------------------------------------------------------------- making vectors


@irdl_op_definition
class StepOp(IRDLOperation):
    """`vector.step : vector<4xindex>`: 0, 1, 2, 3."""

    name = "vector.step"
    result = result_def(VectorType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict `:` type($result)"

    def verify_(self) -> None:
        if len(vector_shape(self.result)) != 1 or element_type(self.result.type) != IndexType():
            raise VerifyException(
                f"vector.step gives a 1-d vector of indices, not {attribute_text(self.result.type)}"
            )


@irdl_op_definition
class SplatOp(Formatted):
    """`vector.splat %x : vector<8xf32>`: the older name of a broadcast of a scalar."""

    name = "vector.splat"
    input = operand_def()
    aggregate = result_def(VectorType)
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = "$input attr-dict `:` custom<VectorOf>(type($aggregate), type($input))"


# -------------------------------------------------------------------------------------- elements


@irdl_op_definition
class ToElementsOp(Formatted):
    """`%e:4 = vector.to_elements %v : vector<4xf32>`: row-major."""

    name = "vector.to_elements"
    source = operand_def(VectorType)
    elements = var_result_def()
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = "$source attr-dict `:` custom<VectorOf>(type($source), type($elements))"

    def verify_(self) -> None:
        if len(self.elements) != prod(vector_shape(self.source)):
            raise VerifyException(
                f"vector.to_elements has {len(self.elements)} results for {attribute_text(self.source.type)}"
            )


@irdl_op_definition
class ExtractElementOp(Formatted):
    """`vector.extractelement %v[%i : i32] : vector<16xf32>`: the older form of vector.extract."""

    name = "vector.extractelement"
    vector = operand_def(VectorType)
    position = opt_operand_def(base(IndexType) | base(IntegerType))
    result = result_def()
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = (
        "$vector `[` ($position^ `:` type($position))? `]` attr-dict "
        "`:` custom<VectorOf>(type($vector), type($result))"
    )


@irdl_op_definition
class InsertElementOp(Formatted):
    """`vector.insertelement %x, %v[%i : i32] : vector<16xf32>`: the older form of vector.insert."""

    name = "vector.insertelement"
    source = operand_def()
    dest = operand_def(VectorType)
    position = opt_operand_def(base(IndexType) | base(IntegerType))
    result = result_def(VectorType)
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = (
        "$source `,` $dest `[` ($position^ `:` type($position))? `]` attr-dict "
        "`:` custom<VectorOf>(custom<BothTypes>(type($dest), type($result)), type($source))"
    )


# ----------------------------------------------------------------------------- lanes of two vectors


@irdl_op_definition
class InterleaveOp(Formatted):
    """`vector.interleave %a, %b : vector<4xi32> -> vector<8xi32>`: a0, b0, a1, b1, ... ."""

    name = "vector.interleave"
    lhs = operand_def(VectorType)
    rhs = operand_def(VectorType)
    result = result_def(VectorType)
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = (
        "$lhs `,` $rhs attr-dict `:` custom<BothTypes>(type($lhs), type($rhs)) `->` type($result)"
    )

    def verify_(self) -> None:
        *outer, last = vector_shape(self.lhs) or (1,)
        if self.lhs.type != self.rhs.type or vector_shape(self.result) != (*outer, 2 * last):
            raise VerifyException(
                f"vector.interleave of {attribute_text(self.lhs.type)} and {attribute_text(self.rhs.type)} "
                f"gives {[*outer, 2 * last]}, not {attribute_text(self.result.type)}"
            )


@irdl_op_definition
class DeinterleaveOp(Formatted):
    """`%even, %odd = vector.deinterleave %v : vector<8xi8> -> vector<4xi8>`."""

    name = "vector.deinterleave"
    source = operand_def(VectorType)
    even = result_def(VectorType)
    odd = result_def(VectorType)
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = (
        "$source attr-dict `:` type($source) `->` custom<BothTypes>(type($even), type($odd))"
    )

    def verify_(self) -> None:
        *outer, last = vector_shape(self.source) or (1,)
        if last % 2 or vector_shape(self.even) != (*outer, last // 2) or self.even.type != self.odd.type:
            raise VerifyException(
                f"vector.deinterleave of {attribute_text(self.source.type)} gives two halves of the last "
                f"dimension, not {attribute_text(self.even.type)}"
            )
