"""Operations of MLIR's vector dialect that xDSL lacks, in upstream assembly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar

from typing_extensions import Self
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    DenseArrayBase,
    IntegerAttr,
    StringAttr,
    VectorType,
    i64,
)
from xdsl.dialects.vector import CombiningKindAttr, CombiningKindFlag
from xdsl.ir import Attribute, Data, Operation, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

ITERATORS = ("parallel", "reduction")
ADD = CombiningKindAttr(CombiningKindFlag.ADD)


def vector_shape(value: SSAValue) -> tuple[int, ...]:
    """The shape of a vector, () for a scalar."""
    return value.type.get_shape() if isinstance(value.type, VectorType) else ()


def element_type(value: SSAValue) -> Attribute:
    """The element type of a vector, the type itself for a scalar."""
    return value.type.element_type if isinstance(value.type, VectorType) else value.type


@irdl_attr_definition
class IteratorTypeAttr(Data[str]):
    """`#vector.iterator_type<parallel>`: how the generic form of `vector.contract` names an iterator."""

    name = "vector.iterator_type"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> str:
        with parser.in_angle_brackets():
            word = parser.parse_identifier()
        if word not in ITERATORS:
            parser.raise_error(f"#vector.iterator_type<{word}>: write one of {', '.join(ITERATORS)}")
        return word

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")

    def as_string(self) -> StringAttr:
        """The iterator type as the custom form names it."""
        return StringAttr(self.data)


@irdl_op_definition
class ContractOp(IRDLOperation):
    """`vector.contract {indexing_maps, iterator_types, kind} %a, %b, %acc : A, B into C`.

    A sum of products over the reduction iterators, added to `acc`. `iterator_types` holds "parallel"
    and "reduction"; each indexing map (a projected permutation) says which iterators a side's
    dimensions follow.
    """

    name = "vector.contract"
    lhs = operand_def(VectorType)
    rhs = operand_def(VectorType)
    acc = operand_def()
    result = result_def()
    indexing_maps = prop_def(ArrayAttr[AffineMapAttr])
    iterator_types = prop_def(ArrayAttr[StringAttr])
    kind = opt_prop_def(CombiningKindAttr)
    traits = traits_def(Pure())

    def __init__(
        self,
        lhs: SSAValue | Operation,
        rhs: SSAValue | Operation,
        acc: SSAValue | Operation,
        indexing_maps: Sequence[AffineMap],
        iterator_types: Sequence[str],
        kind: CombiningKindAttr = ADD,
    ) -> None:
        super().__init__(
            operands=[lhs, rhs, acc],
            result_types=[SSAValue.get(acc).type],
            properties={
                "indexing_maps": ArrayAttr(AffineMapAttr(affine_map) for affine_map in indexing_maps),
                "iterator_types": ArrayAttr(StringAttr(kind_) for kind_ in iterator_types),
                "kind": kind,
            },
        )

    @classmethod
    def create(cls, *, properties: Mapping[str, Attribute] = MappingProxyType({}), **others: Any) -> Self:
        """Build from parts; iterator types of the generic form, `#vector.iterator_type`, become strings."""
        iterators = properties.get("iterator_types")
        if isinstance(iterators, ArrayAttr):
            words = [it.as_string() if isinstance(it, IteratorTypeAttr) else it for it in iterators]
            properties = {**properties, "iterator_types": ArrayAttr(words)}
        return super().create(properties=properties, **others)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        start = parser.pos
        attributes = parser.parse_optional_attr_dict()
        operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        trailing = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        position = parser.pos
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        parser.parse_keyword("into")
        types.append(parser.parse_type())
        own = {"indexing_maps", "iterator_types", "kind"}
        missing = sorted({"indexing_maps", "iterator_types"} - attributes.keys())
        if missing:
            parser.raise_error(
                f"vector.contract lacks {' and '.join(missing)} in its attribute dictionary", start
            )
        return cls.create(
            operands=parser.resolve_operands(operands, types, position),
            result_types=[types[-1]],
            properties={"kind": ADD, **{key: attributes[key] for key in own & attributes.keys()}},
            attributes={**{key: attributes[key] for key in attributes.keys() - own}, **trailing},
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        kind = self.kind or ADD
        printer.print_attr_dict(
            {"indexing_maps": self.indexing_maps, "iterator_types": self.iterator_types, "kind": kind}
        )
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_list([self.lhs.type, self.rhs.type], printer.print_attribute)
        printer.print_string(" into ")
        printer.print_attribute(self.acc.type)

    def verify_(self) -> None:
        maps = [attribute.data for attribute in self.indexing_maps]
        if len(maps) != 3:
            raise VerifyException(f"vector.contract needs 3 indexing maps (lhs, rhs, acc), got {len(maps)}")
        extents: dict[int, int] = {}
        for side, affine_map, value in zip(("lhs", "rhs", "acc"), maps, self.operands, strict=True):
            shape = vector_shape(value)
            if affine_map.num_dims != len(self.iterator_types) or len(affine_map.results) != len(shape):
                raise VerifyException(
                    f"vector.contract {side} has shape {list(shape)}, {len(self.iterator_types)} iterators "
                    f"and map {affine_map}: write one dimension per iterator, one result per vector dimension"
                )
            for expr, extent in zip(affine_map.results, shape, strict=True):
                if not isinstance(expr, AffineDimExpr):
                    raise VerifyException(
                        f"vector.contract {side} map {affine_map} is no projected permutation"
                    )
                if extents.setdefault(expr.position, extent) != extent:
                    raise VerifyException(
                        f"vector.contract {side} gives iterator d{expr.position} extent {extent}, another "
                        f"side {extents[expr.position]}: they must agree"
                    )


@irdl_op_definition
class TransposeOp(IRDLOperation):
    """`vector.transpose %v, [1, 0] : vector<2x3xf32> to vector<3x2xf32>`."""

    name = "vector.transpose"
    vector = operand_def(VectorType)
    permutation = prop_def(DenseArrayBase.constr(i64))
    result = result_def(VectorType)
    irdl_options = (ParsePropInAttrDict(),)
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
        if element_type(self.source) != element_type(self.result) or prod(vector_shape(self.source)) != prod(
            vector_shape(self.result)
        ):
            raise VerifyException(
                f"vector.shape_cast from {self.source.type} to {self.result.type} changes the element type "
                "or the number of elements"
            )


@irdl_op_definition
class MultiDimReductionOp(IRDLOperation):
    """`vector.multi_reduction <add>, %v, %acc [1] : vector<4x8xf32> to vector<4xf32>`."""

    name = "vector.multi_reduction"
    ACC: ClassVar = VarConstraint("ACC", AnyAttr())

    source = operand_def(VectorType)
    acc = operand_def(ACC)
    kind = prop_def(CombiningKindAttr)
    reduction_dims = prop_def(DenseArrayBase.constr(i64))
    dest = result_def(ACC)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = (
        "$kind `,` $source `,` $acc attr-dict $reduction_dims `:` type($source) `to` type($dest)"
    )

    def __init__(
        self,
        source: SSAValue | Operation,
        acc: SSAValue | Operation,
        reduction_dims: Sequence[int],
        kind: CombiningKindAttr = ADD,
    ) -> None:
        super().__init__(
            operands=[source, acc],
            properties={"kind": kind, "reduction_dims": DenseArrayBase.from_list(i64, reduction_dims)},
            result_types=[SSAValue.get(acc).type],
        )

    def verify_(self) -> None:
        shape, dims = vector_shape(self.source), self.reduction_dims.get_values()
        kept = tuple(extent for axis, extent in enumerate(shape) if axis not in dims)
        if vector_shape(self.dest) != kept:
            raise VerifyException(
                f"vector.multi_reduction of {list(shape)} over {list(dims)} gives {list(kept)}, "
                f"not {list(vector_shape(self.dest))}"
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
        printer.print_string(" ")
        printer.print_list(self.elements, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    def verify_(self) -> None:
        wanted = prod(vector_shape(self.result))
        if len(self.elements) != wanted:
            raise VerifyException(
                f"vector.from_elements has {len(self.elements)} elements for {self.result.type}, which "
                f"holds {wanted}"
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
class InsertStridedSliceOp(IRDLOperation):
    """`vector.insert_strided_slice %s, %v {offsets = [0], strides = [1]} : A into B`."""

    name = "vector.insert_strided_slice"
    source = operand_def(VectorType)
    dest = operand_def(VectorType)
    offsets = prop_def(ArrayAttr[IntegerAttr])
    strides = prop_def(ArrayAttr[IntegerAttr])
    result = result_def(VectorType)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())

    def __init__(
        self,
        source: SSAValue | Operation,
        dest: SSAValue | Operation,
        offsets: Sequence[int],
        strides: Sequence[int],
    ) -> None:
        super().__init__(
            operands=[source, dest],
            properties={
                "offsets": ArrayAttr(IntegerAttr(value, i64) for value in offsets),
                "strides": ArrayAttr(IntegerAttr(value, i64) for value in strides),
            },
            result_types=[SSAValue.get(dest).type],
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        source = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        dest = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        source_type = parser.parse_type()
        parser.parse_keyword("into")
        dest_type = parser.parse_type()
        own = ("offsets", "strides")
        return cls.create(
            operands=[
                parser.resolve_operand(source, source_type),
                parser.resolve_operand(dest, dest_type),
            ],
            result_types=[dest_type],
            properties={key: attributes[key] for key in own if key in attributes},
            attributes={key: value for key, value in attributes.items() if key not in own},
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes({**self.properties, **self.attributes})
        printer.print_string(" : ")
        printer.print_attribute(self.source.type)
        printer.print_string(" into ")
        printer.print_attribute(self.dest.type)


OPERATIONS: tuple[type[Operation], ...] = (
    ContractOp,
    TransposeOp,
    ShapeCastOp,
    MultiDimReductionOp,
    FromElementsOp,
    ExtractStridedSliceOp,
    InsertStridedSliceOp,
)
