"""`affine.delinearize_index` and `affine.linearize_index`: between one position and one per dimension."""

from __future__ import annotations

from typing_extensions import Self
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IndexType, UnitAttr, i64
from xdsl.dialects.utils import parse_dynamic_index_list_without_types, print_dynamic_index_list
from xdsl.ir import Operation
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException


@irdl_op_definition
class DelinearizeIndexOp(IRDLOperation):
    """`%r:2 = affine.delinearize_index %i into (%n, 8) : index, index`: a position as one per dimension.

    The first extent may be left out: it bounds nothing.
    """

    name = "affine.delinearize_index"
    linear_index = operand_def(IndexType)
    dynamic_basis = var_operand_def(IndexType)
    static_basis = prop_def(DenseArrayBase.constr(i64))
    multi_index = var_result_def(IndexType)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        index = parser.parse_operand()
        parser.parse_keyword("into")
        values, integers = parse_dynamic_index_list_without_types(
            parser, DYNAMIC_INDEX, delimiter=parser.Delimiter.PAREN
        )
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        return cls.create(
            operands=[index, *(parser.resolve_operand(value, IndexType()) for value in values)],
            result_types=types,
            properties={"static_basis": DenseArrayBase.from_list(i64, integers)},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.linear_index)
        printer.print_string(" into ")
        print_dynamic_index_list(
            printer,
            DYNAMIC_INDEX,
            self.dynamic_basis,
            self.static_basis.get_values(),
            delimiter=Parser.Delimiter.PAREN,
        )
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_list(self.result_types, printer.print_attribute)

    def verify_(self) -> None:
        extents, results = len(self.static_basis), len(self.multi_index)
        if results - extents not in (0, 1):
            raise VerifyException(
                f"affine.delinearize_index has {extents} extents and {results} results: write one extent per "
                "result, or leave the first out"
            )


@irdl_op_definition
class LinearizeIndexOp(IRDLOperation):
    """`%i = affine.linearize_index disjoint [%a, %b] by (%n, 8) : index`: one position for one per dimension.

    `disjoint` promises that every index lies below its extent. The first extent may be left out.
    """

    name = "affine.linearize_index"
    multi_index = var_operand_def(IndexType)
    dynamic_basis = var_operand_def(IndexType)
    static_basis = prop_def(DenseArrayBase.constr(i64))
    disjoint = opt_prop_def(UnitAttr)
    linear_index = result_def(IndexType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        disjoint = UnitAttr() if parser.parse_optional_keyword("disjoint") is not None else None
        names = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_unresolved_operand)
        parser.parse_keyword("by")
        values, integers = parse_dynamic_index_list_without_types(
            parser, DYNAMIC_INDEX, delimiter=parser.Delimiter.PAREN
        )
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.build(
            operands=[
                [parser.resolve_operand(name, IndexType()) for name in names],
                [parser.resolve_operand(value, IndexType()) for value in values],
            ],
            result_types=[parser.parse_type()],
            properties={"static_basis": DenseArrayBase.from_list(i64, integers), "disjoint": disjoint},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" disjoint [" if self.disjoint is not None else " [")
        printer.print_list(self.multi_index, printer.print_operand)
        printer.print_string("] by ")
        print_dynamic_index_list(
            printer,
            DYNAMIC_INDEX,
            self.dynamic_basis,
            self.static_basis.get_values(),
            delimiter=Parser.Delimiter.PAREN,
        )
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.linear_index.type)

    def verify_(self) -> None:
        extents, indices = len(self.static_basis), len(self.multi_index)
        if indices - extents not in (0, 1):
            raise VerifyException(
                f"affine.linearize_index has {indices} indices and {extents} extents: write one extent per "
                "index, or leave the first out"
            )


OPERATIONS: tuple[type[Operation], ...] = (DelinearizeIndexOp, LinearizeIndexOp)
