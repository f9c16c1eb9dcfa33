"""MLIR's index dialect, which xDSL does not have."""

from __future__ import annotations

from abc import ABC

from typing_extensions import Self
from xdsl.dialects.builtin import BoolAttr, IndexType, IntegerAttr, IntegerType, i1, i64
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import IRDLOperation, base, irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure


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
        printer.print_string(f" {self.value.value.data}")
        printer.print_op_attributes(self.attributes)


class BinaryOp(IRDLOperation, ABC):
    """`index.add %a, %b`: both operands and the result are of type index."""

    lhs = operand_def(IndexType)
    rhs = operand_def(IndexType)
    result = result_def(IndexType)
    traits = traits_def(Pure())
    assembly_format = "$lhs `,` $rhs attr-dict"

    def __init__(self, lhs: SSAValue | Operation, rhs: SSAValue | Operation) -> None:
        super().__init__(operands=[lhs, rhs], result_types=[IndexType()])


@irdl_op_definition
class AddOp(BinaryOp):
    """Sum."""

    name = "index.add"


@irdl_op_definition
class SubOp(BinaryOp):
    """Difference."""

    name = "index.sub"


@irdl_op_definition
class MulOp(BinaryOp):
    """Product."""

    name = "index.mul"


@irdl_op_definition
class DivSOp(BinaryOp):
    """Signed quotient, rounded towards zero."""

    name = "index.divs"


@irdl_op_definition
class DivUOp(BinaryOp):
    """Unsigned quotient."""

    name = "index.divu"


@irdl_op_definition
class CeilDivSOp(BinaryOp):
    """Signed quotient, rounded up."""

    name = "index.ceildivs"


@irdl_op_definition
class FloorDivSOp(BinaryOp):
    """Signed quotient, rounded down."""

    name = "index.floordivs"


@irdl_op_definition
class RemSOp(BinaryOp):
    """Remainder of the signed quotient."""

    name = "index.rems"


@irdl_op_definition
class RemUOp(BinaryOp):
    """Remainder of the unsigned quotient."""

    name = "index.remu"


@irdl_op_definition
class MaxSOp(BinaryOp):
    """The larger of two signed values."""

    name = "index.maxs"


@irdl_op_definition
class MinSOp(BinaryOp):
    """The smaller of two signed values."""

    name = "index.mins"


class CastOp(IRDLOperation, ABC):
    """`index.casts %v : i32 to index`: between index and an integer type."""

    input = operand_def(base(IndexType) | base(IntegerType))
    result = result_def(base(IndexType) | base(IntegerType))
    traits = traits_def(Pure())
    assembly_format = "$input attr-dict `:` type($input) `to` type($result)"

    def __init__(self, value: SSAValue | Operation, target: IndexType | IntegerType) -> None:
        super().__init__(operands=[value], result_types=[target])


@irdl_op_definition
class CastSOp(CastOp):
    """Sign-extends when it widens."""

    name = "index.casts"


@irdl_op_definition
class CastUOp(CastOp):
    """Zero-extends when it widens."""

    name = "index.castu"


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


OPERATIONS: tuple[type[Operation], ...] = (
    ConstantOp,
    AddOp,
    SubOp,
    MulOp,
    DivSOp,
    DivUOp,
    CeilDivSOp,
    FloorDivSOp,
    RemSOp,
    RemUOp,
    MaxSOp,
    MinSOp,
    CastSOp,
    CastUOp,
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
)
