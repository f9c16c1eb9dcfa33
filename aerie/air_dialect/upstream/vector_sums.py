"""Operations of MLIR's vector dialect that xDSL lacks: products and sums of vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    IntegerAttr,
    IntegerType,
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
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.assembly import print_parts, split_properties
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.upstream.formats import Formatted, element_type, parse_vector_type
from aerie.air_dialect.upstream.vector import vector_shape

ITERATORS = ("parallel", "reduction")

ADD = CombiningKindAttr(CombiningKindFlag.ADD)


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
        own, others = split_properties(cls, attributes)
        missing = sorted({"indexing_maps", "iterator_types"} - own.keys())
        if missing:
            parser.raise_error(
                f"vector.contract lacks {' and '.join(missing)} in its attribute dictionary", start
            )
        return cls.create(
            operands=parser.resolve_operands(operands, types, position),
            result_types=[types[-1]],
            properties={"kind": ADD, **own},
            attributes={**others, **trailing},
        )

    def print(self, printer: Printer) -> None:
        own = {
            "indexing_maps": self.indexing_maps,
            "iterator_types": self.iterator_types,
            "kind": self.kind or ADD,
        }
        printer.print_string(" ")
        printer.print_attr_dict(own)
        print_parts(printer, " ", self.operands, self.attributes, " : ")
        print_parts(printer, [self.lhs.type, self.rhs.type], " into ", self.acc.type)

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
class MultiDimReductionOp(IRDLOperation):
    """`vector.multi_reduction <add>, %v, %acc [1] : vector<4x8xf32> to vector<4xf32>`."""

    name = "vector.multi_reduction"
    ACC: ClassVar = VarConstraint("ACC", AnyAttr())

    source = operand_def(VectorType)
    acc = operand_def(ACC)
    kind = prop_def(CombiningKindAttr)
    reduction_dims = prop_def(DenseArrayBase.constr(i64))
    dest = result_def(ACC)
    traits = traits_def(Pure())
    assembly_format = (
        "$kind `,` $source `,` $acc attr-dict $reduction_dims `:` type($source) `to` type($dest)"
    )

    def verify_(self) -> None:
        shape, dims = vector_shape(self.source), self.reduction_dims.get_values()
        remaining = tuple(extent for axis, extent in enumerate(shape) if axis not in dims)
        if vector_shape(self.dest) != remaining:
            raise VerifyException(
                f"vector.multi_reduction of {list(shape)} over {list(dims)} gives {list(remaining)}, "
                f"not {list(vector_shape(self.dest))}"
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
        left = parse_vector_type(parser)
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
        print_parts(printer, " ", self.operands, {"kind": self.kind, **self.attributes})
        print_parts(printer, " : ", [self.lhs.type, self.rhs.type])

    def verify_(self) -> None:
        expected = (*vector_shape(self.lhs), *vector_shape(self.rhs))
        if vector_shape(self.result) != expected or element_type(self.lhs.type) != element_type(
            self.rhs.type
        ):
            raise VerifyException(
                f"vector.outerproduct of {attribute_text(self.lhs.type)} and {attribute_text(self.rhs.type)} "
                f"gives {list(expected)} of one element type, not {attribute_text(self.result.type)}"
            )


@irdl_op_definition
class ScanOp(Formatted):
    """`%all, %last = vector.scan <add>, %v, %init {inclusive = false, reduction_dim = 1 : i64} : A, B`.

    Running totals along a dimension, from `%init`, and the last of them.
    """

    name = "vector.scan"
    source = operand_def(VectorType)
    initial_value = operand_def(VectorType)
    kind = prop_def(CombiningKindAttr)
    inclusive = prop_def(BoolAttr)
    reduction_dim = prop_def(IntegerAttr[IntegerType])
    dest = result_def(VectorType)
    accumulated_value = result_def(VectorType)
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = (
        "$kind `,` $source `,` $initial_value attr-dict `:` custom<BothTypes>(type($source), type($dest)) "
        "`,` custom<BothTypes>(type($initial_value), type($accumulated_value))"
    )

    def verify_(self) -> None:
        shape, dim = list(vector_shape(self.source)), self.reduction_dim.value.data
        remaining = tuple(shape[:dim] + shape[dim + 1 :])
        if not 0 <= dim < len(shape) or vector_shape(self.initial_value) != remaining:
            raise VerifyException(
                f"vector.scan of {attribute_text(self.source.type)} along dimension {dim} starts from "
                f"{list(remaining)}, not {attribute_text(self.initial_value.type)}"
            )
