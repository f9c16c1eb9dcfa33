"""Assembly of MLIR's parallel loops and affine conditions, which xDSL lacks or knows only generically.

The classes named like xDSL's are subclasses of them, so `isinstance(op, scf.ParallelOp)` holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Self
from xdsl.dialects import affine, scf
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    AffineSetAttr,
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    IntegerType,
    i64,
)
from xdsl.dialects.utils import print_dynamic_index_list, split_dynamic_index_list
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import (
    HasParent,
    IsTerminator,
    NoTerminator,
    Pure,
    RecursiveMemoryEffect,
    SingleBlockImplicitTerminator,
    ensure_terminator,
)
from xdsl.utils.exceptions import VerifyException

Bound = SSAValue | int


def _index_operands(parser: Parser) -> list[SSAValue]:
    """Parse `(%a, %b)`."""
    unresolved = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
    return [parser.resolve_operand(operand, IndexType()) for operand in unresolved]


def _index_arguments(parser: Parser) -> list[Parser.Argument]:
    """Parse `(%i, %j)` as block arguments of type index."""
    arguments = parser.parse_comma_separated_list(
        parser.Delimiter.PAREN, lambda: parser.parse_argument(expect_type=False)
    )
    return [argument.resolve(IndexType()) for argument in arguments]


def _optional_result_types(parser: Parser) -> list[Attribute]:
    """Parse an optional `-> type` or `-> (type, ...)`."""
    if parser.parse_optional_punctuation("->") is None:
        return []
    types = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    if types is None:
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    return [*types]


def _print_result_types(printer: Printer, op: Operation) -> None:
    if op.results:
        printer.print_string(" -> (")
        printer.print_list(op.result_types, printer.print_attribute)
        printer.print_string(")")


def _print_parens(printer: Printer, values: Sequence[SSAValue]) -> None:
    with printer.in_parens():
        printer.print_list(values, printer.print_operand)


class ParallelOp(scf.ParallelOp):
    """`scf.parallel (%i) = (%lb) to (%ub) step (%s) init (%v) -> type { ... }`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        arguments = _index_arguments(parser)
        parser.parse_punctuation("=")
        lower = _index_operands(parser)
        parser.parse_keyword("to")
        upper = _index_operands(parser)
        parser.parse_keyword("step")
        steps = _index_operands(parser)
        initial: list[SSAValue] = []
        if parser.parse_optional_keyword("init") is not None:
            position = parser.pos
            unresolved = parser.parse_comma_separated_list(
                parser.Delimiter.PAREN, parser.parse_unresolved_operand
            )
            initial = list(parser.resolve_operands(unresolved, _optional_result_types(parser), position))
        op = cls(lower, upper, steps, parser.parse_region(arguments), initial)
        op.attributes.update(parser.parse_optional_attr_dict())
        for trait in op.get_traits_of_type(SingleBlockImplicitTerminator):
            ensure_terminator(op, trait)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        _print_parens(printer, self.body.block.args)
        for word, values in ((" = ", self.lowerBound), (" to ", self.upperBound), (" step ", self.step)):
            printer.print_string(word)
            _print_parens(printer, values)
        if self.initVals:
            printer.print_string(" init ")
            _print_parens(printer, self.initVals)
            _print_result_types(printer, self)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        printer.print_op_attributes(self.attributes)


@irdl_op_definition
class InParallelOp(IRDLOperation):
    """`scf.forall.in_parallel { ... }`: ends `scf.forall`; its body combines the iterations' tensors."""

    name = "scf.forall.in_parallel"
    body = region_def("single_block")
    traits = lazy_traits_def(lambda: (HasParent(ForallOp), IsTerminator(), NoTerminator()))

    def __init__(self, body: Region | None = None) -> None:
        super().__init__(regions=[body or Region(Block())])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        body = parser.parse_region(())
        op = cls(body)
        op.attributes.update(parser.parse_optional_attr_dict())
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_region(self.body, print_empty_block=False)
        printer.print_op_attributes(self.attributes)


@irdl_op_definition
class ForallOp(IRDLOperation):
    """`scf.forall (%i) in (4) { ... }` or `scf.forall (%i) = (0) to (32) step (8) { ... }`.

    Bounds and steps are integers or index values; `shared_outs` are the tensors the iterations fill.
    """

    name = "scf.forall"
    dynamic_lower = var_operand_def(IndexType)
    dynamic_upper = var_operand_def(IndexType)
    dynamic_step = var_operand_def(IndexType)
    outputs = var_operand_def()
    static_lower = prop_def(DenseArrayBase.constr(i64), prop_name="staticLowerBound")
    static_upper = prop_def(DenseArrayBase.constr(i64), prop_name="staticUpperBound")
    static_step = prop_def(DenseArrayBase.constr(i64), prop_name="staticStep")
    mapping = opt_prop_def(ArrayAttr)
    res = var_result_def()
    body = region_def("single_block")
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(RecursiveMemoryEffect(), SingleBlockImplicitTerminator(InParallelOp))

    def __init__(
        self,
        lower: Sequence[Bound],
        upper: Sequence[Bound],
        steps: Sequence[Bound],
        body: Region,
        outputs: Sequence[SSAValue] = (),
        mapping: Attribute | None = None,
    ) -> None:
        (low, dynamic_low), (up, dynamic_up), (step, dynamic_step) = (
            split_dynamic_index_list(bounds, DYNAMIC_INDEX) for bounds in (lower, upper, steps)
        )
        super().__init__(
            operands=[dynamic_low, dynamic_up, dynamic_step, outputs],
            result_types=[[output.type for output in outputs]],
            properties={
                "staticLowerBound": DenseArrayBase.from_list(i64, low),
                "staticUpperBound": DenseArrayBase.from_list(i64, up),
                "staticStep": DenseArrayBase.from_list(i64, step),
                "mapping": mapping,
            },
            regions=[body],
        )
        if not isinstance(body.block.last_op, InParallelOp):
            body.block.add_op(InParallelOp())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        arguments = _index_arguments(parser)
        if parser.parse_optional_keyword("in") is not None:
            upper = _mixed_bounds(parser)
            lower: list[Bound] = [0] * len(upper)
            steps: list[Bound] = [1] * len(upper)
        else:
            parser.parse_punctuation("=")
            lower = _mixed_bounds(parser)
            parser.parse_keyword("to")
            upper = _mixed_bounds(parser)
            parser.parse_keyword("step")
            steps = _mixed_bounds(parser)
        shared, outputs = _parse_shared_outs(parser)
        body = parser.parse_region([*arguments, *shared])
        attributes = parser.parse_optional_attr_dict()
        op = cls(lower, upper, steps, body, outputs, attributes.pop("mapping", None))
        op.attributes.update(attributes)
        return op

    def print(self, printer: Printer) -> None:
        rank = len(self.static_upper)
        printer.print_string(" ")
        _print_parens(printer, self.body.block.args[:rank])
        normalized = set(self.static_lower.get_values()) <= {0} and set(self.static_step.get_values()) <= {1}
        if normalized:
            printer.print_string(" in ")
        else:
            printer.print_string(" = ")
            _print_mixed(printer, self.dynamic_lower, self.static_lower)
            printer.print_string(" to ")
        _print_mixed(printer, self.dynamic_upper, self.static_upper)
        if not normalized:
            printer.print_string(" step ")
            _print_mixed(printer, self.dynamic_step, self.static_step)
        self._print_shared_outs(printer, self.body.block.args[rank:])
        printer.print_string(" ")
        printer.print_region(
            self.body,
            print_entry_block_args=False,
            print_empty_block=False,
            print_block_terminators=bool(self.outputs),
        )
        mapping = {} if self.mapping is None else {"mapping": self.mapping}
        printer.print_op_attributes({**mapping, **self.attributes})

    def _print_shared_outs(self, printer: Printer, arguments: Sequence[SSAValue]) -> None:
        if not self.outputs:
            return

        def print_binding(pair: tuple[SSAValue, SSAValue]) -> None:
            printer.print_ssa_value(pair[0])
            printer.print_string(" = ")
            printer.print_operand(pair[1])

        printer.print_string(" shared_outs(")
        printer.print_list(list(zip(arguments, self.outputs, strict=True)), print_binding)
        printer.print_string(")")
        _print_result_types(printer, self)


def _mixed_bounds(parser: Parser) -> list[Bound]:
    """Parse `(4, %n)`."""

    def parse_bound() -> Bound:
        operand = parser.parse_optional_unresolved_operand()
        if operand is None:
            return parser.parse_integer(allow_boolean=False)
        return parser.resolve_operand(operand, IndexType())

    return parser.parse_comma_separated_list(parser.Delimiter.PAREN, parse_bound)


def _print_mixed(printer: Printer, dynamic: Sequence[SSAValue], static: DenseArrayBase[IntegerType]) -> None:
    print_dynamic_index_list(
        printer, DYNAMIC_INDEX, dynamic, static.get_values(), delimiter=Parser.Delimiter.PAREN
    )


def _parse_shared_outs(parser: Parser) -> tuple[list[Parser.Argument], list[SSAValue]]:
    """Parse an optional `shared_outs(%o = %t) -> (type)`."""
    if parser.parse_optional_keyword("shared_outs") is None:
        return [], []
    pairs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_shared_out(parser))
    position = parser.pos
    types = _optional_result_types(parser)
    values = parser.resolve_operands([operand for _, operand in pairs], types, position)
    arguments = [argument.resolve(type_) for (argument, _), type_ in zip(pairs, types, strict=True)]
    return arguments, list(values)


def _parse_shared_out(parser: Parser) -> tuple[Parser.UnresolvedArgument, UnresolvedOperand]:
    argument = parser.parse_argument(expect_type=False)
    parser.parse_punctuation("=")
    return argument, parser.parse_unresolved_operand()


class IfOp(affine.IfOp):
    """`affine.if #set(%i)[%n] -> type { ... } else { ... }`."""

    def __init__(
        self,
        condition: AffineSetAttr,
        arguments: Sequence[SSAValue | Operation],
        then_region: Region,
        else_region: Region | None = None,
        result_types: Sequence[Attribute] = (),
    ) -> None:
        """Build the condition; a region that does not end with `affine.yield` gets an empty one."""
        super().__init__(
            operands=[arguments],
            result_types=[result_types],
            properties={"condition": condition},
            regions=[then_region, else_region or Region()],
        )
        for block in (block for region in self.regions for block in region.blocks):
            if not isinstance(block.last_op, affine.YieldOp):
                block.add_op(affine.YieldOp.get())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        condition = parser.parse_attribute()
        if not isinstance(condition, AffineSetAttr):
            parser.raise_error(f"affine.if tests an integer set, not {condition}")
        arguments = _map_operands(parser)
        types = _optional_result_types(parser)
        then_region = parser.parse_region(())
        else_region = parser.parse_region(()) if parser.parse_optional_keyword("else") is not None else None
        op = cls(condition, arguments, then_region, else_region, types)
        op.attributes.update(parser.parse_optional_attr_dict())
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.condition)
        _print_map_operands(printer, self.args, self.condition.data.num_dims)
        _print_result_types(printer, self)
        printer.print_string(" ")
        show = bool(self.results)
        printer.print_region(self.then_region, print_empty_block=False, print_block_terminators=show)
        if self.else_region.blocks:
            printer.print_string(" else ")
            printer.print_region(self.else_region, print_empty_block=False, print_block_terminators=show)
        printer.print_op_attributes(self.attributes)

    def verify_(self) -> None:
        super().verify_()
        space = self.condition.data
        if len(self.args) != space.num_dims + space.num_symbols:
            raise VerifyException(
                f"affine.if has {len(self.args)} operands but its set takes {space.num_dims} dimensions and "
                f"{space.num_symbols} symbols"
            )


def _map_operands(parser: Parser) -> list[SSAValue]:
    """Parse `(%dims)[%symbols]`, either of which may be absent."""
    operands: list[SSAValue] = []
    for delimiter in (parser.Delimiter.PAREN, parser.Delimiter.SQUARE):
        unresolved = parser.parse_optional_comma_separated_list(delimiter, parser.parse_unresolved_operand)
        operands += [parser.resolve_operand(operand, IndexType()) for operand in unresolved or ()]
    return operands


def _print_map_operands(printer: Printer, operands: Sequence[SSAValue], dims: int) -> None:
    _print_parens(printer, operands[:dims])
    if len(operands) > dims:
        with printer.in_square_brackets():
            printer.print_list(operands[dims:], printer.print_operand)


@irdl_op_definition
class MaxOp(IRDLOperation):
    """`affine.max #map(%d)[%s]`: the largest result of a map."""

    name = "affine.max"
    arguments = var_operand_def(IndexType)
    map = prop_def(AffineMapAttr)
    result = result_def(IndexType)
    traits = traits_def(Pure())

    def __init__(self, arguments: Sequence[SSAValue | Operation], affine_map: AffineMapAttr) -> None:
        super().__init__(operands=[arguments], properties={"map": affine_map}, result_types=[IndexType()])

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        affine_map = parser.parse_attribute()
        if not isinstance(affine_map, AffineMapAttr):
            parser.raise_error(f"affine.max evaluates an affine map, not {affine_map}")
        op = cls(_map_operands(parser), affine_map)
        op.attributes.update(parser.parse_optional_attr_dict())
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.map)
        _print_map_operands(printer, self.arguments, self.map.data.num_dims)
        printer.print_op_attributes(self.attributes)

    def verify_(self) -> None:
        space = self.map.data
        if len(self.arguments) != space.num_dims + space.num_symbols:
            raise VerifyException(
                f"affine.max has {len(self.arguments)} operands but its map takes {space.num_dims} "
                f"dimensions and {space.num_symbols} symbols"
            )


OPERATIONS: tuple[type[Operation], ...] = (ParallelOp, ForallOp, InParallelOp, IfOp, MaxOp)
