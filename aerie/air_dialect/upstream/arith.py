"""`arith` lane by lane: comparisons, choices and conversions of vectors, and `arith.remf`.

xDSL's comparisons give a single i1, and most of its conversions take scalars only. The classes are
subclasses of xDSL's, so `isinstance(op, arith.CmpiOp)` holds.
"""

from __future__ import annotations

import operator
from abc import ABC
from collections.abc import Callable, Sequence
from types import UnionType
from typing import ClassVar, NamedTuple, Self

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
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.assembly import print_parts, split_properties
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.upstream.formats import Formatted, comparison_type, element_type

NO_FASTMATH = arith.FastMathFlagsAttr("none")


def _shape(type_: Attribute) -> tuple[int, ...] | None:
    """The shape of a vector or tensor, None for a scalar."""
    return type_.get_shape() if isinstance(type_, VectorType | TensorType) else None


# ------------------------------------------------------------------------------ comparisons, choices


class CmpiOp(Formatted, arith.CmpiOp):
    """`arith.cmpi slt, %a, %b : vector<8xi32>`, which gives a vector<8xi1>."""

    FORMAT = (
        "custom<Keyword>($predicate) `,` $lhs `,` $rhs attr-dict "
        "`:` custom<ComparisonResult>(type(operands), type(results))"
    )

    def __init__(self, lhs: SSAValue | Operation, rhs: SSAValue | Operation, predicate: str) -> None:
        """`predicate` is one of eq, ne, and s or u with lt, le, gt or ge."""
        number = arith.CMPI_COMPARISON_OPERATIONS.index(predicate)
        IRDLOperation.__init__(
            self,
            operands=[lhs, rhs],
            result_types=[comparison_type(SSAValue.get(lhs).type)],
            properties={"predicate": IntegerAttr(number, 64)},
        )

    def verify_(self) -> None:
        is_integer = isinstance(element_type(self.lhs.type), IntegerType | IndexType)
        _check_comparison(self, is_integer, "integers or indices")


class CmpfOp(Formatted, arith.CmpfOp):
    """`arith.cmpf olt, %a, %b : vector<8xf32>`, which gives a vector<8xi1>."""

    FORMAT = (
        "custom<Keyword>($predicate) `,` $lhs `,` $rhs (`fastmath` `` $fastmath^)? attr-dict "
        "`:` custom<ComparisonResult>(type(operands), type(results))"
    )

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
            result_types=[comparison_type(SSAValue.get(lhs).type)],
            properties={"predicate": IntegerAttr(number, 64), "fastmath": fastmath},
        )

    def verify_(self) -> None:
        _check_comparison(self, isinstance(element_type(self.lhs.type), AnyFloat), "floats")


def _check_comparison(op: Operation, is_comparable: bool, what: str) -> None:
    left, right = op.operands[0].type, op.operands[1].type
    if left != right or not is_comparable:
        raise VerifyException(
            f"{op.name} of {attribute_text(left)} and {attribute_text(right)}: write {what}, or vectors of "
            "them, of one type"
        )
    if op.results[0].type != comparison_type(left):
        raise VerifyException(
            f"{op.name} of {attribute_text(left)} gives {attribute_text(comparison_type(left))}, not "
            f"{attribute_text(op.results[0].type)}"
        )


class SelectOp(arith.SelectOp):
    """`arith.select %c, %a, %b : vector<8xi1>, vector<8xf32>`: lane by lane.

    With one i1 for all lanes the assembly leaves the condition's type out.
    """

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names = [parser.parse_unresolved_operand()]
        for _ in range(2):
            parser.parse_punctuation(",")
            names.append(parser.parse_unresolved_operand())
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        condition = types[0] if len(types) > 1 else i1
        op = cls(*map(parser.resolve_operand, names, (condition, types[-1], types[-1])))
        op.attributes.update(attributes)
        return op

    def print(self, printer: Printer) -> None:
        shown = [self.result.type] if self.cond.type == i1 else [self.cond.type, self.result.type]
        print_parts(printer, " ", self.operands, self.attributes, " : ", shown)

    def verify_(self) -> None:
        if not self.lhs.type == self.rhs.type == self.result.type:
            raise VerifyException(
                f"arith.select of {attribute_text(self.lhs.type)} or {attribute_text(self.rhs.type)} as "
                f"{attribute_text(self.result.type)}: the three types must be equal"
            )
        if self.cond.type not in (i1, comparison_type(self.result.type)):
            raise VerifyException(
                f"arith.select of {attribute_text(self.result.type)} by {attribute_text(self.cond.type)}: "
                f"the condition must be an i1 or a {attribute_text(comparison_type(self.result.type))}"
            )


# --------------------------------------------------------------------------------------- conversions


class _Rule(NamedTuple):
    """Between which elements a conversion goes."""

    pairs: Sequence[tuple[type[Attribute] | UnionType, type[Attribute] | UnionType]]
    """The types of source and target."""
    widths: Callable[[int, int], bool] | None
    """How the width of the source compares to the target's."""
    words: str

    def allows(self, source: Attribute, target: Attribute) -> bool:
        if not any(isinstance(source, one) and isinstance(target, other) for one, other in self.pairs):
            return False
        return self.widths is None or self.widths(_width(source), _width(target))


def _width(type_: Attribute) -> int:
    """The width of a scalar type in bits."""
    assert isinstance(type_, FixedBitwidthType)
    return type_.bitwidth


ROUNDINGS = ("to_nearest_even", "downward", "upward", "toward_zero", "to_nearest_away")
"""MLIR's rounding modes, by the number of the attribute."""
ROUNDING = "roundingmode"


class _Rounded(IRDLOperation, ABC):
    """`arith.truncf %a upward fastmath<fast> : f32 to bf16`: it may say how it rounds, xDSL's may not."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes: dict[str, Attribute] = {}
        word = parser.parse_optional_keyword_in(ROUNDINGS)
        if word is not None:
            attributes[ROUNDING] = IntegerAttr(ROUNDINGS.index(word), 32)
        if parser.parse_optional_keyword("fastmath") is not None:
            attributes["fastmath"] = arith.FastMathFlagsAttr(arith.FastMathFlagsAttr.parse_parameter(parser))
        attributes.update(parser.parse_optional_attr_dict())
        parser.parse_punctuation(":")
        source = target = parser.parse_type()
        if parser.parse_optional_keyword("to") is not None:
            target = parser.parse_type()
        own, rest = split_properties(cls, attributes)
        operands = [parser.resolve_operand(name, source) for name in names]
        return cls.create(operands=operands, result_types=[target], properties=own, attributes=rest)

    def print(self, printer: Printer) -> None:
        attributes = {**self.properties, **self.attributes}
        print_parts(printer, " ", self.operands)
        mode, flags = attributes.pop(ROUNDING, None), attributes.pop("fastmath", NO_FASTMATH)
        if isinstance(mode, IntegerAttr):
            printer.print_string(f" {ROUNDINGS[mode.value.data]}")
        if flags != NO_FASTMATH and isinstance(flags, arith.FastMathFlagsAttr):
            printer.print_string(" fastmath")
            flags.print_parameter(printer)
        print_parts(printer, attributes, " : ", self.operands[0].type)
        if len(self.operands) == 1:
            print_parts(printer, " to ", self.results[0].type)


_WIDER_INTEGER = _Rule([(IntegerType, IntegerType)], operator.lt, "an integer and a wider integer")
_NARROWER_INTEGER = _Rule([(IntegerType, IntegerType)], operator.gt, "an integer and a narrower integer")
_WIDER_FLOAT = _Rule([(AnyFloat, AnyFloat)], operator.lt, "a float and a wider float")
_NARROWER_FLOAT = _Rule([(AnyFloat, AnyFloat)], operator.gt, "a float and a narrower float")
_FLOAT_TO_INTEGER = _Rule([(AnyFloat, IntegerType)], None, "a float and an integer")
_INTEGER_TO_FLOAT = _Rule([(IntegerType, AnyFloat)], None, "an integer and a float")
_INDEX = _Rule(
    [(IndexType, IntegerType), (IntegerType, IndexType)], None, "an index and an integer, in either order"
)


class _Conversion(Formatted, ABC):
    """`arith.sitofp %v : vector<8xi32> to vector<8xf32>`: lane by lane, between shapes that are equal."""

    FORMAT: ClassVar[str] = "$input attr-dict `:` type($input) `to` type($result)"
    RULE: ClassVar[_Rule]

    def verify_(self) -> None:
        source, target = self.operands[0].type, self.results[0].type
        is_allowed = self.RULE.allows(element_type(source), element_type(target))
        if _shape(source) != _shape(target) or not is_allowed:
            raise VerifyException(
                f"{self.name} from {attribute_text(source)} to {attribute_text(target)}: write "
                f"{self.RULE.words}, both scalars or both vectors of one shape"
            )


class ExtSIOp(_Conversion, arith.ExtSIOp):
    """`arith.extsi`: sign-extends."""

    RULE = _WIDER_INTEGER


class ExtUIOp(_Conversion, arith.ExtUIOp):
    """`arith.extui`: zero-extends."""

    RULE = _WIDER_INTEGER


class TruncIOp(_Conversion, arith.TruncIOp):
    """`arith.trunci`: keeps the low bits."""

    RULE = _NARROWER_INTEGER


class ExtFOp(_Conversion, arith.ExtFOp):
    """`arith.extf`: exact."""

    RULE = _WIDER_FLOAT


class TruncFOp(_Rounded, _Conversion, arith.TruncFOp):
    """`arith.truncf`: rounds to nearest even, or as it says."""

    RULE = _NARROWER_FLOAT


class FPToSIOp(_Conversion, arith.FPToSIOp):
    """`arith.fptosi`: rounds towards zero to a signed integer."""

    RULE = _FLOAT_TO_INTEGER


class FPToUIOp(_Conversion, arith.FPToUIOp):
    """`arith.fptoui`: rounds towards zero to an unsigned integer."""

    RULE = _FLOAT_TO_INTEGER


class SIToFPOp(_Rounded, _Conversion, arith.SIToFPOp):
    """`arith.sitofp`: from a signed integer."""

    RULE = _INTEGER_TO_FLOAT


class UIToFPOp(_Rounded, _Conversion, arith.UIToFPOp):
    """`arith.uitofp`: from an unsigned integer."""

    RULE = _INTEGER_TO_FLOAT


class IndexCastOp(_Conversion, arith.IndexCastOp):
    """`arith.index_cast`: between index and a signed integer."""

    RULE = _INDEX


@irdl_op_definition
class IndexCastUIOp(_Conversion):
    """`arith.index_castui`: between index and an unsigned integer."""

    name = "arith.index_castui"
    input = operand_def()
    result = result_def()
    traits = traits_def(Pure())
    RULE: ClassVar[_Rule] = _INDEX


# ---------------------------------------------------------------------------------------- arithmetic


@irdl_op_definition
class RemfOp(arith.FloatingPointLikeBinaryOperation):
    """`arith.remf %a, %b : f32`: the remainder of the division, with the dividend's sign."""

    name = "arith.remf"
    traits = traits_def(Pure())


class AddfOp(_Rounded, arith.AddfOp):
    """`arith.addf %a, %b upward : f32`."""


class SubfOp(_Rounded, arith.SubfOp):
    """`arith.subf %a, %b upward : f32`."""


class MulfOp(_Rounded, arith.MulfOp):
    """`arith.mulf %a, %b upward : f32`."""


class DivfOp(_Rounded, arith.DivfOp):
    """`arith.divf %a, %b upward : f32`."""
