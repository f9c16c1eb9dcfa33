"""What MLIR's math dialect has and xDSL lacks."""

from __future__ import annotations

from abc import ABC

from typing_extensions import Self
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    TensorType,
    VectorType,
    i1,
)
from xdsl.ir import Attribute, Operation
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from air_dialect.attributes import attribute_text


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


OPERATIONS: tuple[type[Operation], ...] = (
    ErfcOp,
    SinCosOp,
    IsFiniteOp,
    IsInfOp,
    IsNaNOp,
    IsNormalOp,
    ClampFOp,
)
