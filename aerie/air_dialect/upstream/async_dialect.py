"""MLIR's async dialect, which xDSL does not have: read and printed, as mlir-air's tests of its host library
use it. None of it runs here.

Source: AsyncOps.td of MLIR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.ir import Dialect, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, SingleBlockImplicitTerminator, ensure_terminator

from aerie.air_dialect.assembly import print_parts
from aerie.air_dialect.upstream.formats import Formatted


@irdl_attr_definition
class TokenType(ParametrizedAttribute, TypeAttribute):
    """`!async.token`: completes when the operation that made it does."""

    name = "async.token"


@irdl_op_definition
class YieldOp(Formatted):
    """`async.yield`: the end of a body, which gives no values."""

    name = "async.yield"
    FORMAT: ClassVar = "attr-dict"
    traits = traits_def(IsTerminator())


@irdl_op_definition
class AwaitOp(Formatted):
    """`async.await %t : !async.token`."""

    name = "async.await"
    token = operand_def(TokenType)
    FORMAT: ClassVar = "$token `:` type($token) attr-dict"


@irdl_op_definition
class ExecuteOp(IRDLOperation):
    """`%t = async.execute [%u] { ... }`: a body that runs by itself, after the tokens; it gives no values."""

    name = "async.execute"
    dependencies = var_operand_def(TokenType)
    token = result_def(TokenType)
    body = region_def("single_block")
    traits = traits_def(SingleBlockImplicitTerminator(YieldOp))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        names = parser.parse_optional_comma_separated_list(
            parser.Delimiter.SQUARE, parser.parse_unresolved_operand
        )
        dependencies = [parser.resolve_operand(name, TokenType()) for name in names or ()]
        attributes = parser.parse_optional_attr_dict_with_keyword()
        op = cls.build(
            operands=[dependencies],
            result_types=[TokenType()],
            attributes=attributes.data if attributes else {},
            regions=[parser.parse_region()],
        )
        ensure_terminator(op, SingleBlockImplicitTerminator(YieldOp))
        return op

    def print(self, printer: Printer) -> None:
        dependencies: Sequence[SSAValue] = self.dependencies
        if dependencies:
            print_parts(printer, " [", dependencies, "]")
        if self.attributes:
            print_parts(printer, " attributes", self.attributes)
        printer.print_string(" ")
        printer.print_region(self.body, print_block_terminators=False)


ASYNC = Dialect("async", [AwaitOp, ExecuteOp, YieldOp], [TokenType])
