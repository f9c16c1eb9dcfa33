"""Declarative assembly: xDSL's `assembly_format`, extended for operations that it cannot express.

xDSL gives a format to classes it defines anew, infers types from their constraints alone, and refuses a type
before the verifier can say what is wrong with it. A `Formatted` operation may also be a subclass of one of
xDSL's, may compute types by the directives below, and leaves rules to its verifier.
"""

from __future__ import annotations

import functools
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import ClassVar, Self, TypeVar, cast

from xdsl.dialects.arith import CMPF_COMPARISON_OPERATIONS, CMPI_COMPARISON_OPERATIONS
from xdsl.dialects.builtin import IntegerAttr, TensorType, VectorType, i1, i64
from xdsl.dialects.utils import DynamicIndexList
from xdsl.ir import Attribute
from xdsl.irdl import IRDLOperation, irdl_op_definition
from xdsl.irdl.declarative_assembly_format import (
    AttrDictDirective,
    AttributeVariable,
    CustomDirective,
    FormatDirective,
    FormatProgram,
    ParsingState,
    PrintingState,
    TypeDirective,
    VariadicResultVariable,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer

from aerie.air_dialect.assembly import print_parts
from aerie.air_dialect.types import attribute_text


class Formatted(IRDLOperation, ABC):
    """An operation that is read and printed by its FORMAT."""

    FORMAT: ClassVar[str]

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        return compiled_format(cls).parse(parser, cls)

    def print(self, printer: Printer) -> None:
        compiled_format(type(self)).print(printer, self)


@functools.cache
def compiled_format(op_type: type[Formatted]) -> FormatProgram:
    """The format of an operation, ready to run; it is made with its first use."""
    definition = replace(op_type.get_irdl_definition(), custom_directives=_DIRECTIVES)
    directives = FormatProgram.from_str(op_type.FORMAT, definition).stmts
    return _Program(tuple(map(_own_dictionary, directives)))


_Op = TypeVar("_Op", bound=IRDLOperation)


class _Program(FormatProgram):
    """A format that takes the types as they are written, or as the directives make them."""

    def parse(self, parser: Parser, op_type: type[_Op]) -> _Op:
        state = ParsingState(op_type)
        state.op_type = next(base for base in op_type.__mro__ if "get_irdl_definition" in vars(base))
        for directive in self.stmts:
            directive.parse(parser, state)
        definition = op_type.get_irdl_definition()
        operands = []
        for names, types, (_, operand) in zip(
            state.operands, state.operand_types, definition.operands, strict=True
        ):
            assert names is not None, "a format names every operand"
            inferred = operand.constr.infer(state.context, length=len(names)) if types is None else types
            operands.append(parser.resolve_operands(names, inferred, parser.pos))
        results = [
            result.constr.infer(state.context, length=None) if types is None else types
            for types, (_, result) in zip(state.result_types, definition.results, strict=True)
        ]
        return op_type.build(
            operands=operands,
            result_types=results,
            attributes=state.attributes,
            properties=state.properties,
            regions=state.regions,
        )


# ---- directives ----


class _AttributeDictionary(AttrDictDirective):
    """xDSL's, but properties stand before attributes, in the order of their definition."""

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        own = [name for name in op.get_irdl_definition().properties if name in self.expected_properties]
        shown = {name: op.properties[name] for name in own if name in op.properties}
        if printer.print_op_attributes({**shown, **op.attributes}):
            state.last_was_punctuation, state.should_emit_space = False, True


def _own_dictionary(directive: FormatDirective) -> FormatDirective:
    if not isinstance(directive, AttrDictDirective):
        return directive
    return _AttributeDictionary(
        directive.with_keyword, directive.reserved_attr_names, directive.expected_properties
    )


def element_type(type_: Attribute) -> Attribute:
    """The element type of a vector or tensor, the type itself for a scalar."""
    if not isinstance(type_, VectorType | TensorType):
        return type_
    element: Attribute = type_.element_type
    return element


def comparison_type(type_: Attribute) -> Attribute:
    """The result type of a comparison of values of this type: i1, or a vector of i1."""
    if isinstance(type_, VectorType):
        return VectorType(i1, type_.shape, type_.scalable_dims)
    return TensorType(i1, type_.shape) if isinstance(type_, TensorType) else i1


def parse_vector_type(parser: Parser) -> VectorType:
    """Parse a type, which must be a vector's."""
    position = parser.pos
    type_ = parser.parse_type()
    if not isinstance(type_, VectorType):
        parser.raise_error(f"expected a vector type here, not {attribute_text(type_)}", position)
    return type_


@irdl_custom_directive
class SameType(CustomDirective):
    """`custom<SameType>(type(operands), type(results))`: one type, that of every operand and result."""

    operands: TypeDirective
    results: TypeDirective

    @staticmethod
    def result_type(type_: Attribute) -> Attribute:
        """The type of the results, from the one that is written."""
        return type_

    def parse(self, parser: Parser, state: ParsingState) -> None:
        type_ = parser.parse_type()
        state.operand_types = [[type_] * len(names or ()) for names in state.operands]
        state.result_types = [[self.result_type(type_)] for _ in state.result_types]

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        printer.print_attribute(op.operands[0].type)


@irdl_custom_directive
class ComparisonResult(SameType):
    """`custom<ComparisonResult>(type(operands), type(results))`: one type of all operands; the results have
    an i1 per lane.
    """

    operands: TypeDirective
    results: TypeDirective

    @staticmethod
    def result_type(type_: Attribute) -> Attribute:
        return comparison_type(type_)


@irdl_custom_directive
class VectorOf(CustomDirective):
    """`custom<VectorOf>(type($vector), type($elements))`: a vector type, from which the elements' type
    follows.

    `custom<BothTypes>(...)` may stand for the vector. Variadic elements are as many as the vector has.
    """

    vector: FormatDirective
    elements: TypeDirective

    def parse(self, parser: Parser, state: ParsingState) -> None:
        type_ = parse_vector_type(parser)
        is_many = isinstance(self.elements.inner, VariadicResultVariable)
        cast(TypeDirective, self.vector).set(state, [type_])
        self.elements.set(state, [type_.element_type] * (prod(type_.get_shape()) if is_many else 1))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        self.vector.print(printer, state, op)


@irdl_custom_directive
class BothTypes(CustomDirective):
    """`custom<BothTypes>(type($first), type($second))`: the one type of two values."""

    first: TypeDirective
    second: TypeDirective

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.set(state, [parser.parse_type()])

    def set(self, state: ParsingState, types: Sequence[Attribute]) -> None:
        """Set the types of both to the given ones."""
        self.first.set(state, types)
        self.second.set(state, types)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        self.first.print(printer, state, op)


@irdl_custom_directive
class Signature(CustomDirective):
    """`custom<Signature>(type($a), type($b), type($result))`: `(A, B) -> C`."""

    first: TypeDirective
    second: TypeDirective
    result: TypeDirective

    def parse(self, parser: Parser, state: ParsingState) -> None:
        position = parser.pos
        types = parser.parse_function_type()
        if len(types.inputs) != 2 or len(types.outputs) != 1:
            parser.raise_error(f"two types and a result's are wanted here, not {types}", position)
        self.first.set(state, types.inputs.data[:1])
        self.second.set(state, types.inputs.data[1:])
        self.result.set(state, types.outputs.data)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        inputs = [*self.first.get(op), *self.second.get(op)]
        print_parts(printer, "(", inputs, ") -> ", self.result.get(op))


ATOMIC_KINDS = (
    "addf", "addi", "assign", "maximumf", "maxs", "maxu", "minimumf", "mins", "minu", "mulf", "muli", "ori",
    "andi", "maxnumf", "minnumf", "xori",
)  # fmt: skip
"""The reductions of memref.atomic_rmw and affine.parallel, in MLIR's order (AtomicRMWKindAttr)."""
_WORDS: Mapping[str, tuple[str, Sequence[str]]] = {
    "arith.cmpf": ("no comparison is called", CMPF_COMPARISON_OPERATIONS),
    "arith.cmpi": ("no comparison is called", CMPI_COMPARISON_OPERATIONS),
    "index.cmp": ("no comparison is called", CMPI_COMPARISON_OPERATIONS),
    "memref.atomic_rmw": ("memref.atomic_rmw knows no", ATOMIC_KINDS),
}
"""What `custom<Keyword>` of an operation reads, and how the message begins where a word is none of these."""


@irdl_custom_directive
class Keyword(CustomDirective):
    """`custom<Keyword>($attribute)`: a keyword such as a predicate; the attribute is its number, an i64."""

    attribute: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        unknown, words = _WORDS[state.op_type.name]
        start = parser.pos
        word = parser.parse_identifier()
        if word not in words:
            parser.raise_error(f"{unknown} {word}: write one of {', '.join(words)}", start)
        self.attribute.set(state, IntegerAttr(words.index(word), i64))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        number = self.attribute.get(op)
        assert isinstance(number, IntegerAttr)
        state.print_whitespace(printer)
        printer.print_string(_WORDS[op.name][1][number.value.data])


_DIRECTIVES: dict[str, type[CustomDirective]] = {
    directive.__name__: directive
    for directive in (DynamicIndexList, Signature, SameType, ComparisonResult, BothTypes, VectorOf, Keyword)
}


def add_directive(directive: type[CustomDirective]) -> type[CustomDirective]:
    """Let the formats of this package name a directive that another file defines."""
    _DIRECTIVES[directive.__name__] = directive
    return directive


def define_op(name: str, form: type[_Op], meaning: str, **members: object) -> type[_Op]:
    """Define an operation from a row of a table: `form` is the class with its operands, results and assembly,
    `meaning` its docstring, `members` further attributes of the class."""
    shared = _defined(form)
    definition = replace(shared.get_irdl_definition(), name=name)
    definition_of = staticmethod(lambda: definition)
    own = {"__doc__": meaning, "__module__": form.__module__, "name": name}
    title = name.split(".")[1].title().replace("_", "")
    return type(f"{title}Op", (shared,), {**own, "get_irdl_definition": definition_of, **members})


@functools.cache
def _defined(form: type[_Op]) -> type[_Op]:
    """The form as xDSL defines an operation, which takes it a while: once for all of a table."""
    return irdl_op_definition(type(form.__name__, (form,), {"name": form.__name__}))
