"""`air.execute` and `air.wait_all`: regions that run when their tokens are ready, and joins of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    opt_prop_def,
    opt_result_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    HasParent,
    IsTerminator,
    Pure,
    RecursiveMemoryEffect,
    SingleBlockImplicitTerminator,
    ensure_terminator,
)
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.assembly import (
    AsyncOp,
    parse_async,
    parse_dependencies,
    print_async,
    print_attributes,
    print_parts,
    split_properties,
)
from aerie.air_dialect.types import AsyncTokenType, attribute_text


@irdl_op_definition
class ExecuteTerminatorOp(IRDLOperation):
    """`air.execute_terminator %v : type`: ends the body of `air.execute` and names what it returns."""

    name = "air.execute_terminator"
    values = var_operand_def()
    traits = lazy_traits_def(lambda: (HasParent(ExecuteOp), IsTerminator(), Pure()))
    assembly_format = "attr-dict ($values^ `:` type($values))?"

    def __init__(self, values: Sequence[SSAValue | Operation] = ()) -> None:
        super().__init__(operands=[values])


@irdl_op_definition
class ExecuteOp(IRDLOperation):
    """`%token, %r = air.execute [%deps] -> (type) { ... }`: a region that runs asynchronously."""

    name = "air.execute"
    async_dependencies = var_operand_def(AsyncTokenType)
    async_token = result_def(AsyncTokenType)
    values = var_result_def()
    body = region_def("single_block")
    traits = traits_def(RecursiveMemoryEffect(), SingleBlockImplicitTerminator(ExecuteTerminatorOp))

    def __init__(
        self,
        body: Region,
        *,
        async_dependencies: Sequence[SSAValue | Operation] = (),
        result_types: Sequence[Attribute] = (),
        attributes: dict[str, Attribute] | None = None,
    ) -> None:
        """Build from a one-block region; a missing terminator is added when nothing is returned."""
        super().__init__(
            operands=[async_dependencies],
            result_types=[AsyncTokenType(), result_types],
            attributes=attributes or {},
            regions=[body],
        )
        for trait in self.get_traits_of_type(SingleBlockImplicitTerminator):
            ensure_terminator(self, trait)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        dependencies = parse_dependencies(parser)
        types: list[Attribute] = []
        if parser.parse_optional_punctuation("->") is not None:
            types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        body = parser.parse_region()
        attributes = parser.parse_optional_attr_dict()
        return cls(body, async_dependencies=dependencies, result_types=types, attributes=attributes)

    def print(self, printer: Printer) -> None:
        print_async(printer, None, self.async_dependencies)
        if self.values:
            print_parts(printer, " -> (", self.values.types, ")")
        printer.print_string(" ")
        printer.print_region(self.body, print_empty_block=False, print_block_terminators=bool(self.values))
        print_attributes(printer, self)

    def verify_(self) -> None:
        terminator = self.body.block.last_op
        assert isinstance(terminator, ExecuteTerminatorOp), "the trait has checked this"
        returned, declared = terminator.values.types, self.values.types
        if returned != declared:
            raise VerifyException(
                f"air.execute returns {_types(declared)} but its terminator hands over {_types(returned)}: "
                "make the two lists equal"
            )


def _types(types: Sequence[Attribute]) -> str:
    return "(" + ", ".join(map(attribute_text, types)) + ")"


@irdl_op_definition
class WaitAllOp(AsyncOp):
    """`%t = air.wait_all async [%a, %b]` joins tokens; `air.wait_all [%t]` blocks on them."""

    name = "air.wait_all"
    async_dependencies = var_operand_def(AsyncTokenType)
    async_token_result = opt_result_def(AsyncTokenType)

    def __init__(
        self,
        async_dependencies: Sequence[SSAValue | Operation] = (),
        *,
        is_async: bool = False,
        attributes: dict[str, Attribute] | None = None,
    ) -> None:
        super().__init__(
            operands=[async_dependencies],
            result_types=[AsyncTokenType() if is_async else None],
            attributes=attributes or {},
        )

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        is_async, dependencies = parse_async(parser)
        return cls(dependencies, is_async=is_async, attributes=parser.parse_optional_attr_dict())

    def print(self, printer: Printer) -> None:
        print_async(printer, self.async_token, self.async_dependencies)
        print_attributes(printer, self)


@irdl_op_definition
class CustomOp(AsyncOp):
    """`air.custom @name operands (%a) : type attributes {...}`: a placeholder with a user-given latency."""

    name = "air.custom"
    symbol = opt_prop_def(StringAttr, prop_name="sym_name")
    async_dependencies = var_operand_def(AsyncTokenType)
    custom_operands = var_operand_def()
    async_token_result = opt_result_def(AsyncTokenType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_optional_symbol_name()
        is_async, dependencies = parse_async(parser)
        operands: Sequence[SSAValue] = ()
        if parser.parse_optional_keyword("operands") is not None:
            operands = _parse_typed_operands(parser)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        own, rest = split_properties(cls, {} if attributes is None else attributes.data)
        return cls(
            operands=[dependencies, operands],
            result_types=[AsyncTokenType() if is_async else None],
            properties={"sym_name": name, **own},
            attributes=rest,
        )

    def print(self, printer: Printer) -> None:
        if self.symbol is not None:
            printer.print_string(" ")
            printer.print_symbol_name(self.symbol.data)
        print_async(printer, self.async_token, self.async_dependencies)
        if self.custom_operands:
            print_parts(printer, " operands (", self.custom_operands, ") : ", self.custom_operands.types)
        print_attributes(printer, self, hidden=("sym_name",), keyword=True)


def _parse_typed_operands(parser: Parser) -> Sequence[SSAValue]:
    """Parse `(%a, %b) : type, type`; nothing follows an empty list."""
    operands = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
    if not operands:
        return ()
    parser.parse_punctuation(":")
    start = parser.pos
    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    return parser.resolve_operands(operands, types, start)
