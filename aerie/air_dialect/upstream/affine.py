"""Assembly of MLIR's affine operations that xDSL lacks or knows only in the generic form.

The classes named like xDSL's are subclasses of them, so `isinstance(op, affine.IfOp)` holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, Self

from xdsl.dialects import affine
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    AffineSetAttr,
    ArrayAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    IndexType,
    IntegerAttr,
    StringAttr,
    TensorType,
    UnitAttr,
    i32,
    i64,
)
from xdsl.dialects.utils import parse_dynamic_index_list_without_types, print_dynamic_index_list
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
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
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.parser.affine_parser import AffineParser
from xdsl.printer import Printer
from xdsl.traits import (
    Pure,
)
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.assembly import (
    index_arguments,
    optional_result_types,
    print_parts,
    print_result_types,
)
from aerie.air_dialect.upstream.formats import ATOMIC_KINDS


class IfOp(affine.IfOp):
    """`affine.if #set(%i)[%n] -> type { ... } else { ... }`."""

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        condition = parser.parse_attribute()
        if not isinstance(condition, AffineSetAttr):
            parser.raise_error(f"affine.if tests an integer set, not {condition}")
        arguments = _map_operands(parser)
        types = optional_result_types(parser)
        arms = [parser.parse_region(())]
        has_else = parser.parse_optional_keyword("else") is not None
        arms.append(parser.parse_region(()) if has_else else Region())
        for block in (block for arm in arms for block in arm.blocks):
            if not isinstance(block.last_op, affine.YieldOp):
                block.add_op(affine.YieldOp.get())
        return cls.create(
            operands=arguments,
            result_types=types,
            properties={"condition": condition},
            regions=arms,
            attributes=parser.parse_optional_attr_dict(),
        )

    def print(self, printer: Printer) -> None:
        print_parts(printer, " ", self.condition)
        _print_map_operands(printer, self.args, self.condition.data.num_dims)
        print_result_types(printer, self)
        printer.print_string(" ")
        show = bool(self.results)
        printer.print_region(self.then_region, print_empty_block=False, print_block_terminators=show)
        if self.else_region.blocks:
            printer.print_string(" else ")
            printer.print_region(self.else_region, print_empty_block=False, print_block_terminators=show)
        print_parts(printer, self.attributes)

    def verify_(self) -> None:
        super().verify_()
        space = self.condition.data
        if len(self.args) != space.num_dims + space.num_symbols:
            raise VerifyException(
                f"affine.if has {len(self.args)} operands but its set takes {space.num_dims} dimensions and "
                f"{space.num_symbols} symbols"
            )
        for block in (block for region in self.regions for block in region.blocks):
            yielded = [value.type for value in block.last_op.operands] if block.last_op is not None else []
            if yielded != list(self.result_types):
                raise VerifyException(
                    f"affine.if has {len(self.results)} results, and an arm yields {len(yielded)} values: "
                    "both arms yield one value per result, of its type"
                )


def _map_operands(parser: Parser) -> list[SSAValue]:
    """Parse `(%dims)[%symbols]`, either of which may be absent."""
    operands: list[SSAValue] = []
    for delimiter in (parser.Delimiter.PAREN, parser.Delimiter.SQUARE):
        unresolved = parser.parse_optional_comma_separated_list(delimiter, parser.parse_unresolved_operand)
        operands += [parser.resolve_operand(operand, IndexType()) for operand in unresolved or ()]
    return operands


def _print_map_operands(printer: Printer, operands: Sequence[SSAValue], dims: int) -> None:
    print_parts(printer, "(", operands[:dims], ")")
    if len(operands) > dims:
        print_parts(printer, "[", operands[dims:], "]")


@irdl_op_definition
class MaxOp(IRDLOperation):
    """`affine.max #map(%d)[%s]`: the largest result of a map."""

    name = "affine.max"
    arguments = var_operand_def(IndexType)
    map = prop_def(AffineMapAttr)
    result = result_def(IndexType)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        affine_map = parser.parse_attribute()
        if not isinstance(affine_map, AffineMapAttr):
            parser.raise_error(f"affine.max evaluates an affine map, not {affine_map}")
        return cls.create(
            operands=_map_operands(parser),
            result_types=[IndexType()],
            properties={"map": affine_map},
            attributes=parser.parse_optional_attr_dict(),
        )

    def print(self, printer: Printer) -> None:
        print_parts(printer, " ", self.map)
        _print_map_operands(printer, self.arguments, self.map.data.num_dims)
        print_parts(printer, self.attributes)

    def verify_(self) -> None:
        space = self.map.data
        if len(self.arguments) != space.num_dims + space.num_symbols:
            raise VerifyException(
                f"affine.max has {len(self.arguments)} operands but its map takes {space.num_dims} "
                f"dimensions and {space.num_symbols} symbols"
            )


class ParallelOp(affine.ParallelOp):
    """`affine.parallel (%i, %j) = (0, %n) to (%m * 2, min(%a, 8)) step (2, 3) { ... }`.

    `reduce ("addf") -> (f32)` after the steps folds what the iterations yield into results.
    """

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        arguments = index_arguments(parser)
        parser.parse_punctuation("=")
        lower = _parse_bounds(parser, "max")
        parser.parse_keyword("to")
        upper = _parse_bounds(parser, "min")
        steps = [1] * len(arguments)
        if parser.parse_optional_keyword("step") is not None:
            steps = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_integer)
        position = parser.pos
        if not len(arguments) == len(lower.groups) == len(upper.groups) == len(steps):
            parser.raise_error(
                f"affine.parallel has {len(arguments)} indices, {len(lower.groups)} lower bounds, "
                f"{len(upper.groups)} upper bounds and {len(steps)} steps: write one of each per index",
                position,
            )
        kinds: list[str] = []
        if parser.parse_optional_keyword("reduce") is not None:
            kinds = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_str_literal)
        types = optional_result_types(parser)
        body = parser.parse_region(arguments)
        attributes = parser.parse_optional_attr_dict()
        if not isinstance(body.block.last_op, affine.YieldOp):
            body.block.add_op(affine.YieldOp.get())
        return cls.create(
            operands=[*lower.operands, *upper.operands],
            result_types=types,
            properties={
                "reductions": ArrayAttr(map(StringAttr, kinds)),
                "lowerBoundsMap": lower.map,
                "lowerBoundsGroups": _group_sizes(lower.groups),
                "upperBoundsMap": upper.map,
                "upperBoundsGroups": _group_sizes(upper.groups),
                "steps": ArrayAttr(IntegerAttr(step, i64) for step in steps),
            },
            attributes=attributes,
            regions=[body],
        )

    def print(self, printer: Printer) -> None:
        lower, upper = self.lowerBoundsMap.data, self.upperBoundsMap.data
        split = lower.num_dims + lower.num_symbols
        steps = [step.value.data for step in self.steps]
        print_parts(printer, " (", self.body.block.args, ") = ")
        _print_bounds(printer, "max", lower, self.lowerBoundsGroups, self.map_operands[:split])
        printer.print_string(" to ")
        _print_bounds(printer, "min", upper, self.upperBoundsGroups, self.map_operands[split:])
        if set(steps) != {1}:
            printer.print_string(f" step ({', '.join(map(str, steps))})")
        if self.reductions:
            print_parts(printer, " reduce (", self.reductions.data, ")")
        print_result_types(printer, self)
        printer.print_string(" ")
        printer.print_region(
            self.body,
            print_entry_block_args=False,
            print_empty_block=False,
            print_block_terminators=bool(self.results),
        )
        print_parts(printer, self.attributes)

    def verify_(self) -> None:
        counts = {len(self.body.block.args), len(self.steps)}
        for bounds, groups in (
            (self.lowerBoundsMap, self.lowerBoundsGroups),
            (self.upperBoundsMap, self.upperBoundsGroups),
        ):
            sizes = [size for size in groups.get_values() if isinstance(size, int)]
            counts.add(len(sizes))
            if sum(sizes) != len(bounds.data.results):
                raise VerifyException(
                    f"affine.parallel groups {sum(sizes)} bounds of {len(bounds.data.results)}: every bound "
                    "belongs to one loop"
                )
        spaces = (self.lowerBoundsMap.data, self.upperBoundsMap.data)
        expected = sum(space.num_dims + space.num_symbols for space in spaces)
        if len(counts) > 1 or len(self.operands) != expected:
            raise VerifyException(
                f"affine.parallel has {len(self.operands)} operands for maps that take {expected}, or not "
                "one lower bound, upper bound and step per index"
            )
        self._verify_reductions()

    def _verify_reductions(self) -> None:
        end = self.body.block.last_op
        yielded = [] if end is None else [value.type for value in end.operands]
        kinds = [kind.data for kind in self.reductions]
        unknown = [kind for kind in kinds if kind not in ATOMIC_KINDS]
        if unknown:
            raise VerifyException(
                f"affine.parallel reduces by {unknown[0]}: write one of {', '.join(ATOMIC_KINDS)}"
            )
        if len(kinds) != len(self.results) or yielded != list(self.result_types):
            raise VerifyException(
                f"affine.parallel has {len(self.results)} results, {len(kinds)} reductions and "
                f"{len(yielded)} yielded values: write one of each, of one type"
            )


class _Bounds(NamedTuple):
    """One side of the bounds: a result of `map` per expression, grouped by loop."""

    map: AffineMapAttr
    groups: Sequence[Sequence[AffineExpr]]
    operands: Sequence[SSAValue]


def _parse_bounds(parser: Parser, word: str) -> _Bounds:
    """Parse `(0, %n * 2, min(%a, %b))`, where `word` is min or max."""
    expressions = AffineParser(parser._parser_state)
    parse_value, values, spans = expressions._get_parse_optional_ssa_value()
    paren = parser.Delimiter.PAREN

    def parse_expression() -> AffineExpr:
        return expressions._parse_affine_expr(parse_value)

    def parse_group() -> Sequence[AffineExpr]:
        if parser.parse_optional_keyword(word) is not None:
            return parser.parse_comma_separated_list(paren, parse_expression)
        return [parse_expression()]

    groups = parser.parse_comma_separated_list(paren, parse_group)
    results = tuple(expression for group in groups for expression in group)
    operands = [parser.resolve_operand(UnresolvedOperand(span, 0), IndexType()) for span in spans]
    return _Bounds(AffineMapAttr(AffineMap(0, len(values), results)), groups, operands)


def _group_sizes(groups: Sequence[Sequence[AffineExpr]]) -> Attribute:
    return DenseIntOrFPElementsAttr.from_list(TensorType(i32, [len(groups)]), [len(g) for g in groups])


def _print_bounds(
    printer: Printer,
    word: str,
    bounds: AffineMap,
    sizes: DenseIntOrFPElementsAttr,
    operands: Sequence[SSAValue],
) -> None:
    """Print what `_parse_bounds` parses; dimensions and symbols of the map are all operands by name."""
    dims = [AffineExpr.symbol(position) for position in range(bounds.num_dims)]
    symbols = [AffineExpr.symbol(bounds.num_dims + position) for position in range(bounds.num_symbols)]
    results = iter([result.replace_dims_and_symbols(dims, symbols) for result in bounds.results])

    def print_expression(expression: AffineExpr) -> None:
        affine._print_affine_expr_of_ssa_ids(printer, expression, operands)

    def print_group(size: int) -> None:
        printer.print_string("" if size == 1 else f"{word}(")
        printer.print_list(list(islice(results, size)), print_expression)
        printer.print_string("" if size == 1 else ")")

    with printer.in_parens():
        printer.print_list([size for size in sizes.get_values() if isinstance(size, int)], print_group)


# ---- between one position and one per dimension ----


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
        values, basis = _parse_basis(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.create(
            operands=[index, *values],
            result_types=parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type),
            properties={"static_basis": basis},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        print_parts(printer, " ", self.linear_index, " into ")
        _print_basis(printer, self)
        print_parts(printer, self.attributes, " : ", self.result_types)

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
        values, basis = _parse_basis(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        return cls.build(
            operands=[[parser.resolve_operand(name, IndexType()) for name in names], values],
            result_types=[parser.parse_type()],
            properties={"static_basis": basis, "disjoint": disjoint},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        print_parts(printer, " disjoint [" if self.disjoint is not None else " [", self.multi_index, "] by ")
        _print_basis(printer, self)
        print_parts(printer, self.attributes, " : ", self.linear_index.type)

    def verify_(self) -> None:
        extents, indices = len(self.static_basis), len(self.multi_index)
        if indices - extents not in (0, 1):
            raise VerifyException(
                f"affine.linearize_index has {indices} indices and {extents} extents: write one extent per "
                "index, or leave the first out"
            )


def _parse_basis(parser: Parser) -> tuple[list[SSAValue], Attribute]:
    """Parse `(%n, 8)`: the extents that are values, and all of them as an attribute."""
    names, integers = parse_dynamic_index_list_without_types(
        parser, DYNAMIC_INDEX, delimiter=parser.Delimiter.PAREN
    )
    values: list[SSAValue] = [parser.resolve_operand(name, IndexType()) for name in names]
    return values, DenseArrayBase.from_list(i64, integers)


def _print_basis(printer: Printer, op: DelinearizeIndexOp | LinearizeIndexOp) -> None:
    print_dynamic_index_list(
        printer,
        DYNAMIC_INDEX,
        op.dynamic_basis,
        op.static_basis.get_values(),
        delimiter=Parser.Delimiter.PAREN,
    )
