"""MLIR's index dialect, which xDSL does not have."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar, Self

from xdsl.dialects.builtin import BoolAttr, IndexType, IntegerAttr, IntegerType, i1
from xdsl.irdl import IRDLOperation, base, irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from aerie.air_dialect.assembly import print_parts
from aerie.air_dialect.upstream.formats import Formatted, define_op


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """`index.constant 4`."""

    name = "index.constant"
    value = prop_def(IntegerAttr[IndexType])
    result = result_def(IndexType)
    traits = traits_def(Pure())

    def __init__(self, value: int) -> None:
        super().__init__(properties={"value": IntegerAttr(value, IndexType())}, result_types=[IndexType()])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        op = cls(parser.parse_integer(allow_boolean=False))
        op.attributes.update(parser.parse_optional_attr_dict())
        return op

    def print(self, printer: Printer) -> None:
        print_parts(printer, f" {self.value.value.data}", self.attributes)


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
        print_parts(printer, " true" if self.value.value.data else " false", self.attributes)


@irdl_op_definition
class SizeOfOp(IRDLOperation):
    """`index.sizeof`: the bits of an index, 64 here."""

    name = "index.sizeof"
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "attr-dict"


@irdl_op_definition
class CmpOp(Formatted):
    """`index.cmp slt(%a, %b)`; the predicates are those of arith.cmpi."""

    name = "index.cmp"
    pred = prop_def(IntegerAttr[IntegerType])
    lhs = operand_def(IndexType)
    rhs = operand_def(IndexType)
    result = result_def(i1)
    traits = traits_def(Pure())
    FORMAT: ClassVar[str] = "custom<Keyword>($pred) `(` $lhs `,` $rhs `)` attr-dict"


class BinaryOp(IRDLOperation, ABC):
    """`index.add %a, %b`: both operands and the result are of type index."""

    lhs = operand_def(IndexType)
    rhs = operand_def(IndexType)
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "$lhs `,` $rhs attr-dict"


class CastOp(IRDLOperation, ABC):
    """`index.casts %v : i32 to index`: between index and an integer type."""

    input = operand_def(base(IndexType) | base(IntegerType))
    result = result_def(base(IndexType) | base(IntegerType))
    traits = traits_def(Pure())
    assembly_format = "$input attr-dict `:` type($input) `to` type($result)"


_TABLE: tuple[tuple[str, type[IRDLOperation], str], ...] = (
    ("add", BinaryOp, "Sum."),
    ("sub", BinaryOp, "Difference."),
    ("mul", BinaryOp, "Product."),
    ("divs", BinaryOp, "Signed quotient, rounded towards zero."),
    ("divu", BinaryOp, "Unsigned quotient."),
    ("ceildivs", BinaryOp, "Signed quotient, rounded up."),
    ("ceildivu", BinaryOp, "Unsigned quotient, rounded up."),
    ("floordivs", BinaryOp, "Signed quotient, rounded down."),
    ("rems", BinaryOp, "Remainder of the signed quotient."),
    ("remu", BinaryOp, "Remainder of the unsigned quotient."),
    ("maxs", BinaryOp, "The larger of two signed values."),
    ("maxu", BinaryOp, "The larger of two unsigned values."),
    ("mins", BinaryOp, "The smaller of two signed values."),
    ("minu", BinaryOp, "The smaller of two unsigned values."),
    ("and", BinaryOp, "Bitwise and."),
    ("or", BinaryOp, "Bitwise or."),
    ("xor", BinaryOp, "Bitwise exclusive or."),
    ("shl", BinaryOp, "Shift to the left."),
    ("shrs", BinaryOp, "Shift to the right that keeps the sign."),
    ("shru", BinaryOp, "Shift to the right that brings in zeros."),
    ("casts", CastOp, "Sign-extends when it widens."),
    ("castu", CastOp, "Zero-extends when it widens."),
)
"""Word after `index.`, form, meaning."""
TABLE_OPS = [define_op(f"index.{word}", form, meaning) for word, form, meaning in _TABLE]
