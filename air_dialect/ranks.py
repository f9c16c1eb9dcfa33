"""The multi-device operations of the AIR dialect: `air.rank` and what goes with it.

mlir-air has them since May 2026, for systems of several devices with a symmetric heap. The NPU does not
use them; they are here so that such text can be read, checked and written back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import Self
from xdsl.dialects.builtin import IndexType, MemRefType, StringAttr
from xdsl.ir import OpResult, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    IRDLOperation,
    VarConstraint,
    irdl_attr_definition,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_result_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    HasParent,
    IsolatedFromAbove,
    IsTerminator,
    Pure,
    RecursiveMemoryEffect,
    SingleBlockImplicitTerminator,
)
from xdsl.utils.exceptions import VerifyException

from air_dialect.assembly import parse_async, print_async, print_attributes, split_properties
from air_dialect.hierarchy import EmptyTerminatorOp, HerdOp, HierarchyOp, SegmentOp
from air_dialect.types import AsyncTokenType
from air_dialect.verifiers import enclosing


@irdl_attr_definition
class UniverseType(ParametrizedAttribute, TypeAttribute):
    """`!air.universe`: a bounded pool of devices."""

    name = "air.universe"


@irdl_attr_definition
class SymmetricHeapAttr(ParametrizedAttribute):
    """`#air.symmetric_heap`: the memory space of buffers that every rank allocates alike."""

    name = "air.symmetric_heap"


@irdl_op_definition
class UniverseAllocOp(IRDLOperation):
    """`%u = air.universe.alloc(%capacity)`."""

    name = "air.universe.alloc"
    capacity = operand_def(IndexType)
    universe = result_def(UniverseType)
    traits = traits_def(Pure())
    assembly_format = "`(` $capacity `)` attr-dict"


@irdl_op_definition
class RankTerminatorOp(EmptyTerminatorOp):
    """Ends the body of `air.rank`."""

    name = "air.rank_terminator"
    traits = lazy_traits_def(lambda: (HasParent(RankOp), IsTerminator(), Pure()))


@irdl_op_definition
class RankOp(HierarchyOp):
    """`air.rank universe(%u) (%r) in (%n=%c2) args(...) : ... { ... }`: one instance per device."""

    name = "air.rank"
    async_dependencies = var_operand_def(AsyncTokenType)
    universe = opt_operand_def(UniverseType)
    sizes = var_operand_def(IndexType)
    kernel_operands = var_operand_def()
    traits = traits_def(
        IsolatedFromAbove(), RecursiveMemoryEffect(), SingleBlockImplicitTerminator(RankTerminatorOp)
    )

    @classmethod
    def _parse_between(cls, parser: Parser) -> Sequence[Sequence[SSAValue]]:
        if parser.parse_optional_keyword("universe") is None:
            return ((),)
        with parser.in_parens():
            return ((parser.resolve_operand(parser.parse_unresolved_operand(), UniverseType()),),)

    def _print_between(self, printer: Printer) -> None:
        if self.universe is not None:
            printer.print_string(" universe(")
            printer.print_operand(self.universe)
            printer.print_string(")")

    def verify_(self) -> None:
        super().verify_()
        for parent in enclosing(self):
            if isinstance(parent, SegmentOp | HerdOp | RankOp):
                raise VerifyException(
                    f"air.rank cannot be nested inside {parent.name}: put it around air.launch, or inside one"
                )


@irdl_op_definition
class TranslateOp(IRDLOperation):
    """`air.translate %v, %from, %to, %bases : memref, memref<?xindex>`: the same buffer on another rank."""

    name = "air.translate"
    T: ClassVar = VarConstraint("T", AnyAttr())
    source = operand_def(T)
    from_rank = operand_def(IndexType)
    to_rank = operand_def(IndexType)
    heap_bases = operand_def(MemRefType)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = (
        "$source `,` $from_rank `,` $to_rank `,` $heap_bases attr-dict "
        "`:` type($source) `,` type($heap_bases)"
    )


@irdl_op_definition
class CustomOp(IRDLOperation):
    """`air.custom @name operands (%a) : type attributes {...}`: a placeholder with a user-given latency."""

    name = "air.custom"
    symbol = opt_prop_def(StringAttr, prop_name="sym_name")
    async_dependencies = var_operand_def(AsyncTokenType)
    custom_operands = var_operand_def()
    async_token_result = opt_result_def(AsyncTokenType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    @property
    def async_token(self) -> OpResult | None:
        """The token of the asynchronous form, None in the blocking form."""
        return self.results[0] if self.results else None

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
            printer.print_string(" operands (")
            printer.print_list(self.custom_operands, printer.print_operand)
            printer.print_string(") : ")
            printer.print_list(self.custom_operands.types, printer.print_attribute)
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
