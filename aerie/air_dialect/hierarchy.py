"""`air.launch`, `air.segment` and `air.herd`: the three levels of the AIR compute hierarchy, and `air.rank`.

A launch is the unit the host dispatches, a segment owns a part of the array with its memtiles, a
herd is a grid of cores. Each runs its body once per point of its iteration space and sees nothing
from outside but what `args(...)` hands in. Assembly after mlir-air's AIRDialect.cpp.

Ranks and what goes with them, which mlir-air has since May 2026, are for systems of several devices with a
symmetric heap. The NPU does not use them; they are here so that such text can be read, checked and written.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from xdsl.builder import Builder
from xdsl.dialects.builtin import IndexType, MemRefType, StringAttr
from xdsl.ir import (
    Attribute,
    Block,
    BlockArgument,
    Operation,
    ParametrizedAttribute,
    Region,
    SSAValue,
    TypeAttribute,
)
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
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.rewriter import InsertPoint
from xdsl.traits import (
    HasParent,
    IsolatedFromAbove,
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
    parse_binding,
    parse_index,
    print_async,
    print_attributes,
    print_bindings,
    print_parts,
    split_properties,
)
from aerie.air_dialect.types import AsyncTokenType, MemorySpace
from aerie.air_dialect.verifiers import (
    check_allocations,
    check_body_arguments,
    check_core_accesses,
    check_herd_sizes,
    parent_ops,
)


class HierarchyOp(AsyncOp, ABC):
    """What launch, segment and herd share: tokens, an iteration space, captured values and a body.

    The body is a single block whose arguments are one index per dimension (`ids`), the extents
    (`size_args`) and one argument per captured value (`kernel_args`), in this order.
    """

    ITERATION_KEYWORD: ClassVar[str | None] = None
    """The keyword before the iteration space: `tile` for a herd, `unroll` for a segment."""
    ITERATION_OPTIONAL: ClassVar[bool] = False

    sym_name_attr = opt_prop_def(StringAttr, prop_name="sym_name")
    async_dependencies = var_operand_def(AsyncTokenType)
    sizes = var_operand_def(IndexType)
    kernel_operands = var_operand_def()
    async_token_result = opt_result_def(AsyncTokenType)
    body = region_def("single_block")

    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self,
        sizes: Sequence[SSAValue | Operation],
        kernel_operands: Sequence[SSAValue | Operation] = (),
        body: Region | None = None,
        *,
        sym_name: str | None = None,
        async_dependencies: Sequence[SSAValue | Operation] = (),
        is_async: bool = False,
        attributes: Mapping[str, Attribute] | None = None,
        between: Sequence[Sequence[SSAValue]] = (),
    ) -> None:
        """Build the operation; without `body` it gets a block with its arguments and the terminator.

        Add operations to such a body through `body_builder()`. `attributes` may name properties too.
        `between` are the operand groups that a subclass has between the tokens and the sizes.
        """
        operands = [SSAValue.get(value) for value in kernel_operands]
        own, rest = split_properties(type(self), attributes or {})
        super().__init__(
            operands=[async_dependencies, *between, sizes, operands],
            result_types=[AsyncTokenType() if is_async else None],
            properties={
                "sym_name": None if sym_name is None else StringAttr(sym_name),
                **own,
            },
            attributes=rest,
            regions=[body or _empty_body(len(sizes), [value.type for value in operands])],
        )
        for trait in self.get_traits_of_type(SingleBlockImplicitTerminator):
            ensure_terminator(self, trait)

    @property
    def sym_name(self) -> str | None:
        """The symbol the operation is named with, if any."""
        return None if self.sym_name_attr is None else self.sym_name_attr.data

    @property
    def ids(self) -> tuple[BlockArgument, ...]:
        """The body's block arguments that hold this point's coordinates."""
        return tuple(self.body.block.args[: len(self.sizes)])

    @property
    def size_args(self) -> tuple[BlockArgument, ...]:
        """The body's block arguments that hold the extents of the iteration space."""
        dims = len(self.sizes)
        return tuple(self.body.block.args[dims : 2 * dims])

    @property
    def kernel_args(self) -> tuple[BlockArgument, ...]:
        """The body's block arguments that stand for `kernel_operands`."""
        return tuple(self.body.block.args[2 * len(self.sizes) :])

    @property
    def has_body(self) -> bool:
        """Whether the body holds anything besides its terminator."""
        return self.body.block.first_op is not self.body.block.last_op

    def body_builder(self) -> Builder:
        """A builder that inserts operations before the body's terminator."""
        terminator = self.body.block.last_op
        assert terminator is not None
        return Builder(InsertPoint.before(terminator))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        name = parser.parse_optional_symbol_name()
        is_async, dependencies = parse_async(parser)
        between = cls._parse_between(parser)
        arguments, sizes = cls._parse_iteration_space(parser)
        captured, operands = _parse_captures(parser)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        body = _parse_isolated_region(parser, [*arguments, *captured])
        if body is None and name is None:
            parser.raise_error(
                f"{cls.name} without a body needs a @name and link_with: write them, or a body"
            )
        body = body or _bodiless([*arguments, *captured])
        return cls(
            sizes,
            operands,
            body,
            sym_name=None if name is None else name.data,
            async_dependencies=dependencies,
            is_async=is_async,
            attributes={} if attributes is None else attributes.data,
            between=between,
        )

    @classmethod
    def _parse_between(cls, parser: Parser) -> Sequence[Sequence[SSAValue]]:  # noqa: ARG003
        """Parse the operands that a subclass writes between the tokens and the iteration space."""
        return ()

    def _print_between(self, printer: Printer) -> None:
        """Print what `_parse_between` parses."""

    @classmethod
    def _parse_iteration_space(cls, parser: Parser) -> tuple[list[Parser.Argument], list[SSAValue]]:
        """Parse `keyword (%i, ...) in (%si = %size, ...)`: the block arguments and the sizes."""
        if cls.ITERATION_KEYWORD is not None:
            if cls.ITERATION_OPTIONAL and parser.parse_optional_keyword(cls.ITERATION_KEYWORD) is None:
                return [], []
            if not cls.ITERATION_OPTIONAL:
                parser.parse_keyword(cls.ITERATION_KEYWORD)
        paren = parser.Delimiter.PAREN
        ids = parser.parse_comma_separated_list(paren, lambda: parser.parse_argument(expect_type=False))
        parser.parse_keyword("in")
        pairs = parser.parse_comma_separated_list(paren, lambda: _parse_size(parser))
        if len(ids) != len(pairs):
            parser.raise_error(
                f"{cls.name} names {len(ids)} indices but {len(pairs)} sizes: write one size per index"
            )
        arguments = [argument.resolve(IndexType()) for argument in (*ids, *(size for size, _ in pairs))]
        return arguments, [value for _, value in pairs]

    def print(self, printer: Printer) -> None:
        if self.sym_name is not None:
            printer.print_string(" ")
            printer.print_symbol_name(self.sym_name)
        print_async(printer, self.async_token, self.async_dependencies)
        self._print_between(printer)
        self._print_iteration_space(printer)
        self._print_captures(printer)
        print_attributes(printer, self, hidden=("sym_name",), keyword=True)
        if self.sym_name is not None and not self.has_body:
            return
        printer.print_string(" ")
        printer.print_region(
            self.body, print_entry_block_args=False, print_empty_block=False, print_block_terminators=False
        )

    def verify_(self) -> None:
        check_body_arguments(self, self.body, len(self.sizes), self.kernel_operands)

    def _print_iteration_space(self, printer: Printer) -> None:
        if self.ITERATION_OPTIONAL and not self.sizes:
            return
        keyword = f" {self.ITERATION_KEYWORD} (" if self.ITERATION_KEYWORD else " ("
        print_parts(printer, keyword, self.ids, ") in (")
        print_bindings(printer, self.size_args, self.sizes)
        printer.print_string(")")

    def _print_captures(self, printer: Printer) -> None:
        if not self.kernel_operands:
            return
        printer.print_string(" args(")
        print_bindings(printer, self.kernel_args, self.kernel_operands)
        print_parts(printer, ") : ", [value.type for value in self.kernel_operands])


def _bodiless(arguments: Sequence[Parser.Argument]) -> Region:
    """The body of an operation written without one: its arguments keep their names."""
    block = Block(arg_types=[argument.type for argument in arguments])
    for value, argument in zip(block.args, arguments, strict=True):
        name = argument.name.text[1:]
        value.name_hint = name if SSAValue.is_valid_name(name) else None
    return Region(block)


def _empty_body(dims: int, captured: Sequence[Attribute]) -> Region:
    return Region(Block(arg_types=[*[IndexType()] * (2 * dims), *captured]))


def _parse_size(parser: Parser) -> tuple[Parser.UnresolvedArgument, SSAValue]:
    argument = parser.parse_argument(expect_type=False)
    parser.parse_punctuation("=")
    return argument, parse_index(parser)


def _parse_captures(parser: Parser) -> tuple[list[Parser.Argument], list[SSAValue]]:
    """Parse an optional `args(%a = %x, ...) : type, ...`: the block arguments and what they capture."""
    if parser.parse_optional_keyword("args") is None:
        return [], []
    captures = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_binding(parser))
    if not captures:
        return [], []
    parser.parse_punctuation(":")
    start = parser.pos
    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    values = parser.resolve_operands([operand for _, operand in captures], types, start)
    arguments = [argument.resolve(type_) for (argument, _), type_ in zip(captures, types, strict=True)]
    return arguments, list(values)


def _parse_isolated_region(parser: Parser, arguments: Sequence[Parser.Argument]) -> Region | None:
    """Parse an optional region in which no outer name is visible, so that it may use them anew."""
    outer_values, outer_references = parser.ssa_values, parser.forward_ssa_references
    parser.ssa_values, parser.forward_ssa_references = {}, {}
    region = parser.parse_optional_region(arguments)
    if parser.forward_ssa_references:
        names = ", ".join(f"%{name}" for name in parser.forward_ssa_references)
        parser.raise_error(
            f"{names} used in a body that does not define it: a hierarchy body is isolated from above, "
            "pass the value through args(...) or create the constant inside"
        )
    parser.ssa_values, parser.forward_ssa_references = outer_values, outer_references
    return region


class EmptyTerminatorOp(IRDLOperation, ABC):
    """A terminator without operands; the assembly leaves it out."""

    assembly_format = "attr-dict"


@irdl_op_definition
class LaunchTerminatorOp(EmptyTerminatorOp):
    """Ends the body of `air.launch`."""

    name = "air.launch_terminator"
    traits = lazy_traits_def(lambda: (HasParent(LaunchOp), IsTerminator(), Pure()))


@irdl_op_definition
class SegmentTerminatorOp(EmptyTerminatorOp):
    """Ends the body of `air.segment`."""

    name = "air.segment_terminator"
    traits = lazy_traits_def(lambda: (HasParent(SegmentOp), IsTerminator(), Pure()))


@irdl_op_definition
class HerdTerminatorOp(EmptyTerminatorOp):
    """Ends the body of `air.herd`."""

    name = "air.herd_terminator"
    traits = lazy_traits_def(lambda: (HasParent(HerdOp), IsTerminator(), Pure()))


@irdl_op_definition
class LaunchOp(HierarchyOp):
    """`air.launch (%i, %j) in (%si=%c4, %sj=%c4) args(...) : ... { ... }`: independent iterations."""

    name = "air.launch"
    traits = traits_def(
        IsolatedFromAbove(), RecursiveMemoryEffect(), SingleBlockImplicitTerminator(LaunchTerminatorOp)
    )


@irdl_op_definition
class SegmentOp(HierarchyOp):
    """`air.segment @name unroll(%i) in (%si=%c2) args(...) : ... { ... }`: a region of the array."""

    name = "air.segment"
    ITERATION_KEYWORD: ClassVar[str | None] = "unroll"
    ITERATION_OPTIONAL: ClassVar[bool] = True
    traits = traits_def(
        IsolatedFromAbove(), RecursiveMemoryEffect(), SingleBlockImplicitTerminator(SegmentTerminatorOp)
    )

    def verify_(self) -> None:
        super().verify_()
        check_allocations(self, self.body, MemorySpace.L2)


@irdl_op_definition
class HerdOp(HierarchyOp):
    """`air.herd @name tile (%x, %y) in (%sx=%c8, %sy=%c4) args(...) : ... { ... }`: a grid of cores.

    x counts columns and y rows. `link_with` names the object file of the herd's external functions;
    a named herd with `link_with` may leave its body out.
    """

    name = "air.herd"
    ITERATION_KEYWORD: ClassVar[str | None] = "tile"
    link_with = opt_prop_def(StringAttr)
    traits = traits_def(
        IsolatedFromAbove(), RecursiveMemoryEffect(), SingleBlockImplicitTerminator(HerdTerminatorOp)
    )

    def verify_(self) -> None:
        super().verify_()
        check_herd_sizes(self.sizes)
        check_allocations(self, self.body, MemorySpace.L1)
        check_core_accesses(self.body)


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
            print_parts(printer, " universe(", self.universe, ")")

    def verify_(self) -> None:
        super().verify_()
        for parent in parent_ops(self):
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
