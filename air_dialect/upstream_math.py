"""What MLIR's arith, math and index dialects have and xDSL lacks."""

from __future__ import annotations

from abc import ABC

from typing_extensions import Self
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    BoolAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    TensorType,
    VectorType,
    i1,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from air_dialect.attributes import attribute_text
from air_dialect.upstream_arith import IndexConversionOp
from air_dialect.upstream_index import BinaryOp

# ------------------------------------------------------------------------------------------ math


def _like(type_: Attribute, element: Attribute) -> Attribute:
    """The type with another element type."""
    if isinstance(type_, VectorType):
        return VectorType(element, type_.shape, type_.scalable_dims)
    return TensorType(element, type_.shape) if isinstance(type_, TensorType) else element


def _element(type_: Attribute) -> Attribute:
    if not isinstance(type_, VectorType | TensorType):
        return type_
    element: Attribute = type_.element_type
    return element


def _parse_fastmath(parser: Parser) -> dict[str, Attribute]:
    """Parse an optional `fastmath<...>` as a property."""
    if parser.parse_optional_keyword("fastmath") is None:
        return {}
    return {"fastmath": arith.FastMathFlagsAttr(arith.FastMathFlagsAttr.parse_parameter(parser))}


class _FloatFunction(IRDLOperation, ABC):
    """`%v fastmath<fast> : f32`: a function of one float, or of the floats of a vector."""

    operand = operand_def()
    fastmath = opt_prop_def(arith.FastMathFlagsAttr)

    @classmethod
    def results_for(cls, type_: Attribute) -> list[Attribute]:
        """The types of the results."""
        return [type_]

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_unresolved_operand()
        properties = _parse_fastmath(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        return cls.create(
            operands=[parser.resolve_operand(name, type_)],
            result_types=cls.results_for(type_),
            properties=properties,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.operand)
        if self.fastmath is not None:
            printer.print_string(" fastmath")
            self.fastmath.print_parameter(printer)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.operand.type)

    def verify_(self) -> None:
        if not isinstance(_element(self.operand.type), AnyFloat):
            raise VerifyException(f"{self.name} takes floats, not {attribute_text(self.operand.type)}")


@irdl_op_definition
class ErfcOp(_FloatFunction):
    """`math.erfc`: 1 - erf."""

    name = "math.erfc"
    result = result_def()
    traits = traits_def(Pure())


@irdl_op_definition
class SinCosOp(_FloatFunction):
    """`%s, %c = math.sincos %x : f32`."""

    name = "math.sincos"
    sin = result_def()
    cos = result_def()
    traits = traits_def(Pure())

    @classmethod
    def results_for(cls, type_: Attribute) -> list[Attribute]:
        return [type_, type_]


class _FloatTest(_FloatFunction, ABC):
    """A function from floats to i1."""

    result = result_def()
    traits = traits_def(Pure())

    @classmethod
    def results_for(cls, type_: Attribute) -> list[Attribute]:
        return [_like(type_, i1)]


@irdl_op_definition
class IsFiniteOp(_FloatTest):
    """`math.isfinite`: neither infinite nor NaN."""

    name = "math.isfinite"


@irdl_op_definition
class IsInfOp(_FloatTest):
    """`math.isinf`."""

    name = "math.isinf"


@irdl_op_definition
class IsNaNOp(_FloatTest):
    """`math.isnan`."""

    name = "math.isnan"


@irdl_op_definition
class IsNormalOp(_FloatTest):
    """`math.isnormal`: neither zero, subnormal, infinite nor NaN."""

    name = "math.isnormal"


@irdl_op_definition
class ClampFOp(IRDLOperation):
    """`math.clampf %v to [%min, %max] : f32`."""

    name = "math.clampf"
    value = operand_def()
    min = operand_def()
    max = operand_def()
    fastmath = opt_prop_def(arith.FastMathFlagsAttr)
    result = result_def()
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names = [parser.parse_unresolved_operand()]
        parser.parse_keyword("to")
        names += parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_unresolved_operand)
        properties = _parse_fastmath(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        return cls.create(
            operands=[parser.resolve_operand(name, type_) for name in names],
            result_types=[type_],
            properties=properties,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.value)
        printer.print_string(" to [")
        printer.print_list([self.min, self.max], printer.print_operand)
        printer.print_string("]")
        if self.fastmath is not None:
            printer.print_string(" fastmath")
            self.fastmath.print_parameter(printer)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.value.type)


# ----------------------------------------------------------------------------------------- index


@irdl_op_definition
class AndOp(BinaryOp):
    """Bitwise and."""

    name = "index.and"


@irdl_op_definition
class OrOp(BinaryOp):
    """Bitwise or."""

    name = "index.or"


@irdl_op_definition
class XOrOp(BinaryOp):
    """Bitwise exclusive or."""

    name = "index.xor"


@irdl_op_definition
class ShlOp(BinaryOp):
    """Shift to the left."""

    name = "index.shl"


@irdl_op_definition
class ShrSOp(BinaryOp):
    """Shift to the right that keeps the sign."""

    name = "index.shrs"


@irdl_op_definition
class ShrUOp(BinaryOp):
    """Shift to the right that brings in zeros."""

    name = "index.shru"


@irdl_op_definition
class MaxUOp(BinaryOp):
    """The larger of two unsigned values."""

    name = "index.maxu"


@irdl_op_definition
class MinUOp(BinaryOp):
    """The smaller of two unsigned values."""

    name = "index.minu"


@irdl_op_definition
class CeilDivUOp(BinaryOp):
    """Unsigned division, rounded up."""

    name = "index.ceildivu"


@irdl_op_definition
class SizeOfOp(IRDLOperation):
    """`index.sizeof`: the bits of an index, 64 here."""

    name = "index.sizeof"
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict"


@irdl_op_definition
class BoolConstantOp(IRDLOperation):
    """`index.bool.constant true`."""

    name = "index.bool.constant"
    value = prop_def(BoolAttr)
    result = result_def(i1)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        value = BoolAttr.from_bool(parser.parse_boolean())
        return cls.create(
            result_types=[i1], properties={"value": value}, attributes=parser.parse_optional_attr_dict()
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" true" if self.value.value.data else " false")
        printer.print_op_attributes(self.attributes)


PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


@irdl_op_definition
class CmpOp(IRDLOperation):
    """`index.cmp slt(%a, %b)`; the predicates are those of arith.cmpi."""

    name = "index.cmp"
    pred = prop_def(IntegerAttr[IntegerType])
    lhs = operand_def(IndexType)
    rhs = operand_def(IndexType)
    result = result_def(i1)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        start = parser.pos
        word = parser.parse_identifier()
        if word not in PREDICATES:
            parser.raise_error(f"no comparison is called {word}: write one of {', '.join(PREDICATES)}", start)
        names = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        values: list[SSAValue] = [parser.resolve_operand(name, IndexType()) for name in names]
        return cls.create(
            operands=values,
            result_types=[i1],
            properties={"pred": IntegerAttr(PREDICATES.index(word), i64)},
            attributes=parser.parse_optional_attr_dict(),
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {PREDICATES[self.pred.value.data]}(")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_string(")")
        printer.print_op_attributes(self.attributes)


# ----------------------------------------------------------------------------------------- arith


@irdl_op_definition
class IndexCastUIOp(IndexConversionOp):
    """`arith.index_castui`: between index and an unsigned integer."""

    name = "arith.index_castui"
    input = operand_def()
    result = result_def()
    traits = traits_def(Pure())


OPERATIONS: tuple[type[Operation], ...] = (
    ErfcOp,
    SinCosOp,
    IsFiniteOp,
    IsInfOp,
    IsNaNOp,
    IsNormalOp,
    ClampFOp,
    AndOp,
    OrOp,
    XOrOp,
    ShlOp,
    ShrSOp,
    ShrUOp,
    MaxUOp,
    MinUOp,
    CeilDivUOp,
    SizeOfOp,
    BoolConstantOp,
    CmpOp,
    IndexCastUIOp,
)
