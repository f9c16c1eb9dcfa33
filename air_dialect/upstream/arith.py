"""`arith` lane by lane: comparisons, choices and conversions of vectors, and `arith.remf`.

xDSL's comparisons give a single i1, and most of its conversions take scalars only. The classes are
subclasses of xDSL's, so `isinstance(op, arith.CmpiOp)` holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import Self
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    FixedBitwidthType,
    IndexType,
    IntegerAttr,
    IntegerType,
    TensorType,
    VectorType,
    i1,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def, traits_def
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from air_dialect.attributes import attribute_text
from air_dialect.upstream.assembly import Conversion

NO_FASTMATH = arith.FastMathFlagsAttr("none")


def _shape(type_: Attribute) -> tuple[int, ...] | None:
    """The shape of a vector or tensor, None for a scalar."""
    return type_.get_shape() if isinstance(type_, VectorType | TensorType) else None


def _element(type_: Attribute) -> Attribute:
    """The element type of a vector or tensor, the type itself for a scalar."""
    if not isinstance(type_, VectorType | TensorType):
        return type_
    element: Attribute = type_.element_type
    return element


def _truth_type(type_: Attribute) -> Attribute:
    """What a comparison of values of this type gives: i1, or one i1 per lane."""
    if isinstance(type_, VectorType):
        return VectorType(i1, type_.shape, type_.scalable_dims)
    return TensorType(i1, type_.shape) if isinstance(type_, TensorType) else i1


# ------------------------------------------------------------------------------ comparisons, choices


class CmpiOp(arith.CmpiOp):
    """`arith.cmpi slt, %a, %b : vector<8xi32>`, which gives a vector<8xi1>."""

    def __init__(self, lhs: SSAValue | Operation, rhs: SSAValue | Operation, predicate: str) -> None:
        """`predicate` is one of eq, ne, and s or u with lt, le, gt or ge."""
        number = arith.CMPI_COMPARISON_OPERATIONS.index(predicate)
        IRDLOperation.__init__(
            self,
            operands=[lhs, rhs],
            result_types=[_truth_type(SSAValue.get(lhs).type)],
            properties={"predicate": IntegerAttr(number, 64)},
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        predicate = _parse_predicate(parser, arith.CMPI_COMPARISON_OPERATIONS)
        names = _parse_names(parser, 2)
        attributes = parser.parse_optional_attr_dict()
        lhs, rhs = _resolve_alike(parser, names)
        op = cls(lhs, rhs, predicate)
        op.attributes.update(attributes)
        return op

    def print(self, printer: Printer) -> None:
        predicate = arith.CMPI_COMPARISON_OPERATIONS[self.predicate.value.data]
        printer.print_string(f" {predicate}, ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.lhs.type)

    def verify_(self) -> None:
        is_integer = isinstance(_element(self.lhs.type), IntegerType | IndexType)
        _check_comparison(self, is_integer, "integers or indices")


class CmpfOp(arith.CmpfOp):
    """`arith.cmpf olt, %a, %b : vector<8xf32>`, which gives a vector<8xi1>."""

    def __init__(
        self,
        lhs: SSAValue | Operation,
        rhs: SSAValue | Operation,
        predicate: str,
        fastmath: arith.FastMathFlagsAttr = NO_FASTMATH,
    ) -> None:
        """`predicate` is false, true, ord, uno, or o (ordered) or u (unordered) with eq, ne, lt, ..."""
        number = arith.CMPF_COMPARISON_OPERATIONS.index(predicate)
        IRDLOperation.__init__(
            self,
            operands=[lhs, rhs],
            result_types=[_truth_type(SSAValue.get(lhs).type)],
            properties={"predicate": IntegerAttr(number, 64), "fastmath": fastmath},
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        predicate = _parse_predicate(parser, arith.CMPF_COMPARISON_OPERATIONS)
        names = _parse_names(parser, 2)
        fastmath = NO_FASTMATH
        if parser.parse_optional_keyword("fastmath") is not None:
            fastmath = arith.FastMathFlagsAttr(arith.FastMathFlagsAttr.parse_parameter(parser))
        attributes = parser.parse_optional_attr_dict()
        lhs, rhs = _resolve_alike(parser, names)
        op = cls(lhs, rhs, predicate, fastmath)
        op.attributes.update(attributes)
        return op

    def print(self, printer: Printer) -> None:
        predicate = arith.CMPF_COMPARISON_OPERATIONS[self.predicate.value.data]
        printer.print_string(f" {predicate}, ")
        printer.print_list(self.operands, printer.print_operand)
        if self.fastmath != NO_FASTMATH:
            printer.print_string(" fastmath")
            self.fastmath.print_parameter(printer)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.lhs.type)

    def verify_(self) -> None:
        _check_comparison(self, isinstance(_element(self.lhs.type), AnyFloat), "floats")


def _parse_predicate(parser: Parser, known: Sequence[str]) -> str:
    """Parse a comparison's predicate and the comma after it."""
    start = parser.pos
    predicate = parser.parse_identifier()
    if predicate not in known:
        parser.raise_error(f"no comparison is called {predicate}: write one of {', '.join(known)}", start)
    parser.parse_punctuation(",")
    return predicate


def _parse_names(parser: Parser, count: int) -> list[UnresolvedOperand]:
    """Parse `%a, %b, ...`."""
    names = [parser.parse_unresolved_operand()]
    for _ in range(count - 1):
        parser.parse_punctuation(",")
        names.append(parser.parse_unresolved_operand())
    return names


def _resolve_alike(parser: Parser, names: Sequence[UnresolvedOperand]) -> list[SSAValue]:
    """Parse `: type`, the type of all the operands."""
    parser.parse_punctuation(":")
    type_ = parser.parse_type()
    return [parser.resolve_operand(name, type_) for name in names]


def _check_comparison(op: Operation, is_comparable: bool, what: str) -> None:
    left, right = op.operands[0].type, op.operands[1].type
    if left != right or not is_comparable:
        raise VerifyException(
            f"{op.name} of {attribute_text(left)} and {attribute_text(right)}: write {what}, or vectors of "
            "them, of one type"
        )
    if op.results[0].type != _truth_type(left):
        raise VerifyException(
            f"{op.name} of {attribute_text(left)} gives {attribute_text(_truth_type(left))}, not "
            f"{attribute_text(op.results[0].type)}"
        )


class SelectOp(arith.SelectOp):
    """`arith.select %c, %a, %b : vector<8xi1>, vector<8xf32>`: lane by lane.

    With one i1 for all lanes the assembly leaves the condition's type out.
    """

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        condition, then, otherwise = _parse_names(parser, 3)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        op = cls(
            parser.resolve_operand(condition, types[0] if len(types) > 1 else i1),
            *(parser.resolve_operand(name, types[-1]) for name in (then, otherwise)),
        )
        op.attributes.update(attributes)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        shown = [self.result.type] if self.cond.type == i1 else [self.cond.type, self.result.type]
        printer.print_list(shown, printer.print_attribute)

    def verify_(self) -> None:
        if not self.lhs.type == self.rhs.type == self.result.type:
            raise VerifyException(
                f"arith.select of {attribute_text(self.lhs.type)} or {attribute_text(self.rhs.type)} as "
                f"{attribute_text(self.result.type)}: the three types must be equal"
            )
        if self.cond.type not in (i1, _truth_type(self.result.type)):
            raise VerifyException(
                f"arith.select of {attribute_text(self.result.type)} by {attribute_text(self.cond.type)}: "
                f"the condition must be an i1 or a {attribute_text(_truth_type(self.result.type))}"
            )


# --------------------------------------------------------------------------------------- conversions


class _Conversion(Conversion, ABC):
    """`arith.sitofp %v : vector<8xi32> to vector<8xf32>`: lane by lane, between shapes that are equal."""

    RULE: ClassVar[str]
    """What the elements must be, for messages."""

    def verify_(self) -> None:
        source, target = self.operands[0].type, self.results[0].type
        if _shape(source) != _shape(target) or not self._converts(_element(source), _element(target)):
            raise VerifyException(
                f"{self.name} from {attribute_text(source)} to {attribute_text(target)}: write {self.RULE}, "
                "both scalars or both vectors of one shape"
            )

    @classmethod
    @abstractmethod
    def _converts(cls, source: Attribute, target: Attribute) -> bool:
        """Whether elements of the one type convert to the other."""


class _IntegerExtension(_Conversion, ABC):
    RULE = "an integer and a wider integer"

    @classmethod
    def _converts(cls, source: Attribute, target: Attribute) -> bool:
        integers = isinstance(source, IntegerType) and isinstance(target, IntegerType)
        return integers and _width(source) < _width(target)


class _FloatToInteger(_Conversion, ABC):
    RULE = "a float and an integer"

    @classmethod
    def _converts(cls, source: Attribute, target: Attribute) -> bool:
        return isinstance(source, AnyFloat) and isinstance(target, IntegerType)


class _IntegerToFloat(_Conversion, ABC):
    RULE = "an integer and a float"

    @classmethod
    def _converts(cls, source: Attribute, target: Attribute) -> bool:
        return isinstance(source, IntegerType) and isinstance(target, AnyFloat)


def _width(type_: Attribute) -> int:
    """The width of a scalar type in bits."""
    assert isinstance(type_, FixedBitwidthType)
    return type_.bitwidth


class ExtSIOp(_IntegerExtension, arith.ExtSIOp):
    """`arith.extsi`: sign-extends."""


class ExtUIOp(_IntegerExtension, arith.ExtUIOp):
    """`arith.extui`: zero-extends."""


class TruncIOp(_Conversion, arith.TruncIOp):
    """`arith.trunci`: keeps the low bits."""

    RULE = "an integer and a narrower integer"

    @classmethod
    def _converts(cls, source: Attribute, target: Attribute) -> bool:
        integers = isinstance(source, IntegerType) and isinstance(target, IntegerType)
        return integers and _width(source) > _width(target)


class ExtFOp(_Conversion, arith.ExtFOp):
    """`arith.extf`: exact."""

    RULE = "a float and a wider float"

    @classmethod
    def _converts(cls, source: Attribute, target: Attribute) -> bool:
        floats = isinstance(source, AnyFloat) and isinstance(target, AnyFloat)
        return floats and _width(source) < _width(target)


class TruncFOp(_Conversion, arith.TruncFOp):
    """`arith.truncf`: rounds to nearest even."""

    RULE = "a float and a narrower float"

    @classmethod
    def _converts(cls, source: Attribute, target: Attribute) -> bool:
        floats = isinstance(source, AnyFloat) and isinstance(target, AnyFloat)
        return floats and _width(source) > _width(target)


class FPToSIOp(_FloatToInteger, arith.FPToSIOp):
    """`arith.fptosi`: rounds towards zero to a signed integer."""


class FPToUIOp(_FloatToInteger, arith.FPToUIOp):
    """`arith.fptoui`: rounds towards zero to an unsigned integer."""


class SIToFPOp(_IntegerToFloat, arith.SIToFPOp):
    """`arith.sitofp`: from a signed integer."""


class UIToFPOp(_IntegerToFloat, arith.UIToFPOp):
    """`arith.uitofp`: from an unsigned integer."""


class IndexConversionOp(_Conversion, ABC):
    """A conversion between index and an integer."""

    RULE: ClassVar[str] = "an index and an integer, in either order"

    @classmethod
    def _converts(cls, source: Attribute, target: Attribute) -> bool:
        return {type(source), type(target)} == {IndexType, IntegerType}


class IndexCastOp(IndexConversionOp, arith.IndexCastOp):
    """`arith.index_cast`: between index and a signed integer."""


@irdl_op_definition
class IndexCastUIOp(IndexConversionOp):
    """`arith.index_castui`: between index and an unsigned integer."""

    name = "arith.index_castui"
    input = operand_def()
    result = result_def()
    traits = traits_def(Pure())


# ---------------------------------------------------------------------------------------- arithmetic


@irdl_op_definition
class RemfOp(arith.FloatingPointLikeBinaryOperation):
    """`arith.remf %a, %b : f32`: the remainder of the division, with the dividend's sign."""

    name = "arith.remf"
    traits = traits_def(Pure())


OPERATIONS: tuple[type[Operation], ...] = (
    CmpiOp,
    CmpfOp,
    SelectOp,
    ExtSIOp,
    ExtUIOp,
    TruncIOp,
    ExtFOp,
    TruncFOp,
    FPToSIOp,
    FPToUIOp,
    SIToFPOp,
    UIToFPOp,
    IndexCastOp,
    RemfOp,
    IndexCastUIOp,
)
