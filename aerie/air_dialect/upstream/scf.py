"""Assembly of MLIR's structured loops, which xDSL lacks, knows only generically or reads in one way only.

The classes named like xDSL's are subclasses of them, so `isinstance(op, scf.ParallelOp)` holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from xdsl.dialects import scf
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    DenseArrayBase,
    IndexType,
    IntegerType,
    UnitAttr,
    i1,
    i64,
)
from xdsl.dialects.utils import (
    parse_dynamic_index_list_without_types,
    print_dynamic_index_list,
    print_for_op_like,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    HasParent,
    IsTerminator,
    NoTerminator,
    RecursiveMemoryEffect,
    SingleBlockImplicitTerminator,
    ensure_terminator,
)

from aerie.air_dialect.assembly import (
    index_arguments,
    index_operands,
    optional_result_types,
    parse_binding,
    parse_iter_args,
    print_bindings,
    print_parts,
    print_result_types,
)

UNSIGNED = "unsignedCmp"
"""The attribute of an `scf.for unsigned`, which compares its variable with the bound as unsigned numbers."""


class ForOp(scf.ForOp):
    """`scf.for unsigned %i = %lb to %ub step %s iter_args(%x = %v) -> type : i32 { ... }`.

    xDSL wants parentheses around a single type, takes the induction variable's type for granted, and does not
    know `unsigned`.
    """

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        is_unsigned = parser.parse_optional_keyword("unsigned") is not None
        induction = parser.parse_argument(expect_type=False)
        names = []
        for word in ("=", "to", "step"):
            parser.parse_characters(word)
            names.append(parser.parse_unresolved_operand())
        carried, values = parse_iter_args(parser, "iter_args")
        type_: Attribute = IndexType()
        if parser.parse_optional_punctuation(":") is not None:
            type_ = parser.parse_type()
        lower, upper, step = (parser.resolve_operand(name, type_) for name in names)
        body = parser.parse_region([induction.resolve(type_), *carried])
        op = cls(lower, upper, step, values, body)
        op.attributes.update(parser.parse_optional_attr_dict())
        if is_unsigned:
            op.attributes[UNSIGNED] = UnitAttr()
        if not carried:
            for trait in op.get_traits_of_type(SingleBlockImplicitTerminator):
                ensure_terminator(op, trait)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" unsigned" if UNSIGNED in self.attributes else "")
        bounds = (self.lb, self.ub, self.step)
        print_for_op_like(printer, *bounds, self.iter_args, self.body, IndexType)
        printer.print_op_attributes(self.attributes, reserved_attr_names=(UNSIGNED,))


class IfOp(scf.IfOp):
    """`scf.if %c -> type { ... } else { ... }`: xDSL wants parentheses around a single type."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        condition = parser.resolve_operand(parser.parse_unresolved_operand(), i1)
        types = optional_result_types(parser)
        yes, no = cls.parse_region_with_yield(parser), Region()
        if parser.parse_optional_keyword("else") is not None:
            no = cls.parse_region_with_yield(parser)
        return cls(condition, types, yes, no, parser.parse_optional_attr_dict())


class WhileOp(scf.WhileOp):
    """`scf.while (%x = %v) : (type) -> type { ... } do { ... }`, of which the list may lack."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        pairs = parser.parse_optional_comma_separated_list(
            parser.Delimiter.PAREN, lambda: parse_binding(parser)
        )
        parser.parse_punctuation(":")
        position = parser.pos
        type_ = parser.parse_function_type()
        inputs = type_.inputs.data
        if len(pairs or ()) != len(inputs):
            parser.raise_error(
                f"scf.while has {len(pairs or ())} values and {len(inputs)} types of them: give one each",
                position,
            )
        operands = parser.resolve_operands([operand for _, operand in pairs or ()], inputs, position)
        names = [argument.resolve(each) for (argument, _), each in zip(pairs or (), inputs, strict=True)]
        before = parser.parse_region(names)
        parser.parse_keyword("do")
        after = parser.parse_region()
        if not after.blocks:
            after.add_block(Block())
        if not (after.block.last_op and after.block.last_op.has_trait(IsTerminator)):
            after.block.add_op(scf.YieldOp())
        op = cls(operands, type_.outputs.data, before, after)
        dictionary = parser.parse_optional_attr_dict_with_keyword()
        op.attributes.update({} if dictionary is None else dictionary.data)
        return op

    def print(self, printer: Printer) -> None:
        if self.arguments:
            printer.print_string(" (")
            print_bindings(printer, self.before_region.block.args, self.arguments, " = ")
            printer.print_string(")")
        printer.print_string(" : ")
        printer.print_operation_type(self)
        printer.print_string(" ")
        printer.print_region(self.before_region, print_entry_block_args=False)
        printer.print_string(" do ")
        printer.print_region(self.after_region)
        printer.print_op_attributes(self.attributes, print_keyword=True)


class ParallelOp(scf.ParallelOp):
    """`scf.parallel (%i) = (%lb) to (%ub) step (%s) init (%v) -> type { ... }`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        arguments = index_arguments(parser)
        parser.parse_punctuation("=")
        lower = index_operands(parser)
        parser.parse_keyword("to")
        upper = index_operands(parser)
        parser.parse_keyword("step")
        steps = index_operands(parser)
        initial: list[SSAValue] = []
        if parser.parse_optional_keyword("init") is not None:
            position = parser.pos
            unresolved = parser.parse_comma_separated_list(
                parser.Delimiter.PAREN, parser.parse_unresolved_operand
            )
            initial = list(parser.resolve_operands(unresolved, optional_result_types(parser), position))
        op = cls(lower, upper, steps, parser.parse_region(arguments), initial)
        op.attributes.update(parser.parse_optional_attr_dict())
        for trait in op.get_traits_of_type(SingleBlockImplicitTerminator):
            ensure_terminator(op, trait)
        return op

    def print(self, printer: Printer) -> None:
        print_parts(printer, " (", self.body.block.args, ") = (", self.lowerBound, ") to (", self.upperBound)
        print_parts(printer, ") step (", self.step, ")")
        if self.initVals:
            print_parts(printer, " init (", self.initVals, ")")
            print_result_types(printer, self)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        print_parts(printer, self.attributes)


class ReduceOp(scf.ReduceOp):
    """`scf.reduce(%a, %b : f32, i32) { ... }, { ... }`: xDSL's format wants the regions without commas."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operands: list[SSAValue] = []
        if parser.parse_optional_punctuation("(") is not None:
            names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
            parser.parse_punctuation(":")
            position = parser.pos
            types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
            operands = list(parser.resolve_operands(names, types, position))
            parser.parse_punctuation(")")
        regions: list[Region] = []
        while operands and (not regions or parser.parse_optional_punctuation(",") is not None):
            regions.append(parser.parse_region())
        op = cls(operands, regions)
        op.attributes.update(parser.parse_optional_attr_dict())
        return op

    def print(self, printer: Printer) -> None:
        if self.args:
            print_parts(printer, "(", self.args, " : ", [value.type for value in self.args], ") ")
            printer.print_list(self.reductions, printer.print_region)
        printer.print_op_attributes(self.attributes)


@irdl_op_definition
class InParallelOp(IRDLOperation):
    """`scf.forall.in_parallel { ... }`: ends `scf.forall`; its body combines the iterations' tensors."""

    name = "scf.forall.in_parallel"
    body = region_def("single_block")
    traits = lazy_traits_def(lambda: (HasParent(ForallOp), IsTerminator(), NoTerminator()))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        body = parser.parse_region(())
        return cls.create(regions=[body], attributes=parser.parse_optional_attr_dict())

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_region(self.body, print_empty_block=False)
        print_parts(printer, self.attributes)


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

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        arguments = index_arguments(parser)
        if parser.parse_optional_keyword("in") is not None:
            upper = _parse_bounds(parser)
            lower, step = _Bounds.all(0, len(upper.static)), _Bounds.all(1, len(upper.static))
        else:
            parser.parse_punctuation("=")
            lower = _parse_bounds(parser)
            parser.parse_keyword("to")
            upper = _parse_bounds(parser)
            parser.parse_keyword("step")
            step = _parse_bounds(parser)
        shared, outputs = parse_iter_args(parser, "shared_outs")
        body = parser.parse_region([*arguments, *shared])
        if not isinstance(body.block.last_op, InParallelOp):
            body.block.add_op(InParallelOp(regions=[Region(Block())]))
        attributes = parser.parse_optional_attr_dict()
        return cls.build(
            operands=[lower.dynamic, upper.dynamic, step.dynamic, outputs],
            result_types=[[output.type for output in outputs]],
            properties={
                "staticLowerBound": lower.static,
                "staticUpperBound": upper.static,
                "staticStep": step.static,
                "mapping": attributes.pop("mapping", None),
            },
            attributes=attributes,
            regions=[body],
        )

    def print(self, printer: Printer) -> None:
        rank = len(self.static_upper)
        print_parts(printer, " (", self.body.block.args[:rank], ")")
        normalized = set(self.static_lower.get_values()) <= {0} and set(self.static_step.get_values()) <= {1}
        if normalized:
            printer.print_string(" in ")
        else:
            printer.print_string(" = ")
            _print_bounds(printer, self.dynamic_lower, self.static_lower)
            printer.print_string(" to ")
        _print_bounds(printer, self.dynamic_upper, self.static_upper)
        if not normalized:
            printer.print_string(" step ")
            _print_bounds(printer, self.dynamic_step, self.static_step)
        if self.outputs:
            printer.print_string(" shared_outs(")
            print_bindings(printer, self.body.block.args[rank:], self.outputs, " = ")
            printer.print_string(")")
            print_result_types(printer, self)
        printer.print_string(" ")
        printer.print_region(
            self.body,
            print_entry_block_args=False,
            print_empty_block=False,
            print_block_terminators=bool(self.outputs),
        )
        mapping = {} if self.mapping is None else {"mapping": self.mapping}
        print_parts(printer, {**mapping, **self.attributes})


class _Bounds(NamedTuple):
    """The bounds of all dimensions: integers, and in place of DYNAMIC_INDEX the values in turn."""

    dynamic: Sequence[SSAValue]
    static: DenseArrayBase[IntegerType]

    @classmethod
    def all(cls, bound: int, rank: int) -> Self:
        """The same integer for every dimension."""
        return cls([], DenseArrayBase.from_list(i64, [bound] * rank))


def _parse_bounds(parser: Parser) -> _Bounds:
    """Parse `(4, %n)`."""
    names, integers = parse_dynamic_index_list_without_types(
        parser, DYNAMIC_INDEX, delimiter=parser.Delimiter.PAREN
    )
    values = [parser.resolve_operand(name, IndexType()) for name in names]
    return _Bounds(values, DenseArrayBase.from_list(i64, integers))


def _print_bounds(printer: Printer, dynamic: Sequence[SSAValue], static: DenseArrayBase[IntegerType]) -> None:
    print_dynamic_index_list(
        printer, DYNAMIC_INDEX, dynamic, static.get_values(), delimiter=Parser.Delimiter.PAREN
    )


class IndexSwitchOp(scf.IndexSwitchOp):
    """`scf.index_switch %i -> type case 0 { ... } default { ... }`; yields without values may lack."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        selector = parser.parse_operand()
        attributes = parser.parse_optional_attr_dict()
        types = optional_result_types(parser)
        cases: list[int] = []
        regions: list[Region] = []
        while parser.parse_optional_keyword("case") is not None:
            cases.append(parser.parse_integer())
            regions.append(_parse_arm(parser))
        parser.parse_keyword("default")
        default = _parse_arm(parser)
        return cls(selector, DenseArrayBase.from_list(i64, cases), default, regions, types, attributes)


def _parse_arm(parser: Parser) -> Region:
    region = parser.parse_region(())
    if not region.blocks[-1].last_op or not region.blocks[-1].last_op.has_trait(IsTerminator):
        region.blocks[-1].add_op(scf.YieldOp())
    return region
