"""Parsing and printing that several operations share: tokens, lists, block arguments, attributes.

Functions that parse raise xDSL's ParseError, with the place in the text.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, Self, cast

from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import DYNAMIC_INDEX, DenseArrayBase, IndexType, IntegerAttr, i32
from xdsl.ir import Attribute, Operation, OpResult, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer

from aerie.air_dialect.types import AsyncTokenType

OPERAND_SEGMENT_SIZES = "operandSegmentSizes"
RESULT_SEGMENT_SIZES = "resultSegmentSizes"


Printable = str | SSAValue | Attribute | Mapping[str, Attribute] | Sequence[SSAValue] | Sequence[Attribute]


def print_parts(printer: Printer, *pieces: Printable) -> None:
    """Print strings as they are, values by name, types and attributes as text.

    A mapping is an attribute dictionary, left out where empty; other sequences have commas between.
    """
    for piece in pieces:
        if isinstance(piece, str):
            printer.print_string(piece)
        elif isinstance(piece, SSAValue):
            printer.print_operand(piece)
        elif isinstance(piece, Attribute):
            printer.print_attribute(piece)
        elif isinstance(piece, Mapping):
            printer.print_op_attributes(piece)
        else:
            printer.print_list(
                cast(Sequence[SSAValue | Attribute], piece), lambda item: print_parts(printer, item)
            )


def parse_async(parser: Parser) -> tuple[bool, list[SSAValue]]:
    """Parse `[async] [[%token, ...]]`: whether a token results, and the tokens waited for."""
    is_async = parser.parse_optional_keyword("async") is not None
    return is_async, parse_dependencies(parser)


def parse_dependencies(parser: Parser) -> list[SSAValue]:
    """Parse an optional `[%token, ...]`."""
    tokens = parser.parse_optional_comma_separated_list(
        parser.Delimiter.SQUARE, parser.parse_unresolved_operand
    )
    return [parser.resolve_operand(token, AsyncTokenType()) for token in tokens or ()]


def print_async(printer: Printer, token: SSAValue | None, dependencies: Sequence[SSAValue]) -> None:
    """Print ` async [%token, ...]`, leaving out what is absent."""
    if token is not None:
        printer.print_string(" async")
    if dependencies:
        print_parts(printer, " [", dependencies, "]")


def parse_index(parser: Parser) -> SSAValue:
    """Parse an index operand, or an integer, which becomes the result of a new `arith.constant`.

    The new constant has no parent yet: `air_dialect.parser_printer` puts it before its user.
    """
    operand = parser.parse_optional_unresolved_operand()
    if operand is not None:
        return parser.resolve_operand(operand, IndexType())
    return _constant(parser.parse_integer(allow_boolean=False, context_msg="an index operand or an integer"))


def _constant(value: int) -> SSAValue:
    """The result of a new index constant, called %c4 or, below zero, %cm4."""
    constant = ConstantOp(IntegerAttr(value, IndexType()))
    constant.result.name_hint = f"c{value}" if value >= 0 else f"cm{-value}"
    return constant.result


def parse_index_list(parser: Parser) -> list[SSAValue]:
    """Parse `[%a, 4, ...]`."""
    return parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_index(parser))


def print_pattern(
    printer: Printer,
    memref: SSAValue,
    offsets: Sequence[SSAValue],
    sizes: Sequence[SSAValue],
    strides: Sequence[SSAValue],
) -> None:
    """Print `%memref[offsets] [sizes] [strides]`."""
    print_parts(printer, memref, "[", offsets, "] [", sizes, "] [", strides, "]")


class AsyncOp(IRDLOperation, ABC):
    """An operation with an asynchronous form, whose first result is its token."""

    @property
    def async_token(self) -> OpResult | None:
        """The token of the asynchronous form, None in the blocking form."""
        return self.results[0] if self.results else None


class StaticListOp(AsyncOp, ABC):
    """An operation whose generic form may hold integers of its lists in attributes, as mlir-air's does.

    In `static_src_sizes = array<i64: 4, -9223372036854775808>` the second entry is MLIR's kDynamic: the list
    is 4, then the next operand of its group. `create` makes constants of the integers, as the custom form
    does.
    """

    STATIC_LISTS: ClassVar[Mapping[str, int]]
    """The attributes, each with the number of the operand group it completes."""

    @classmethod
    def create(
        cls,
        *,
        operands: Sequence[SSAValue] = (),
        properties: Mapping[str, Attribute] = MappingProxyType({}),
        attributes: Mapping[str, Attribute] = MappingProxyType({}),
        **others: Any,
    ) -> Self:
        """Build from parts, with constants for the integers of the generic form's attributes.

        As MLIR does, this takes them from either dictionary: `<{...}>`, or `{...}` as older printers have it.
        """
        all_attributes = {**attributes, **properties}
        lists = {name: all_attributes[name] for name in cls.STATIC_LISTS if name in all_attributes}
        attributes = {name: value for name, value in attributes.items() if name not in lists}
        segments = properties.get(OPERAND_SEGMENT_SIZES)
        # A clone comes without its operands at first.
        if isinstance(segments, DenseArrayBase) and sum(segments.get_values()) == len(operands):
            groups = _split(operands, segments.get_values(), len(cls.get_irdl_definition().operands))
            for name, integers in lists.items():
                if isinstance(integers, DenseArrayBase):
                    group = cls.STATIC_LISTS[name]
                    groups[group] = _interleave(integers.get_values(), groups[group])
            operands = [value for group in groups for value in group]
            sizes = DenseArrayBase.from_list(i32, [len(group) for group in groups])
            properties = {**properties, OPERAND_SEGMENT_SIZES: sizes}
        remaining = {name: value for name, value in properties.items() if name not in lists}
        return super().create(operands=operands, properties=remaining, attributes=attributes, **others)


def _split(values: Sequence[SSAValue], sizes: Sequence[int], count: int) -> list[list[SSAValue]]:
    """The groups of a flat operand list, as many as `count`: groups at the end may be left out."""
    remaining = iter(values)
    groups = [list(islice(remaining, size)) for size in sizes]
    return groups + [[] for _ in range(count - len(groups))]


def _interleave(integers: Sequence[int], dynamic: Sequence[SSAValue]) -> list[SSAValue]:
    """A list whose integers are constants, and whose placeholders are the dynamic values in turn."""
    remaining = iter(dynamic)
    values = [
        next(remaining, None) if integer == DYNAMIC_INDEX else _constant(integer) for integer in integers
    ]
    return [value for value in values if value is not None] + list(remaining)


def split_properties(
    op_type: type[Operation], attributes: Mapping[str, Attribute]
) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
    """Split a parsed attribute dictionary into the operation's own properties and the rest."""
    own = set(op_type.get_irdl_definition().properties)  # type: ignore[attr-defined]
    properties = {name: value for name, value in attributes.items() if name in own}
    return properties, {name: value for name, value in attributes.items() if name not in own}


def print_attributes(
    printer: Printer, op: Operation, *, hidden: Iterable[str] = (), keyword: bool = False
) -> None:
    """Print properties and attributes as one dictionary, without those the assembly already shows."""
    printer.print_op_attributes(
        {**op.properties, **op.attributes},
        reserved_attr_names=(OPERAND_SEGMENT_SIZES, *hidden),
        print_keyword=keyword,
    )


def index_operands(parser: Parser) -> list[SSAValue]:
    """Parse `(%a, %b)`."""
    unresolved = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
    return [parser.resolve_operand(operand, IndexType()) for operand in unresolved]


def index_arguments(parser: Parser) -> list[Parser.Argument]:
    """Parse `(%i, %j)` as block arguments of type index."""
    arguments = parser.parse_comma_separated_list(
        parser.Delimiter.PAREN, lambda: parser.parse_argument(expect_type=False)
    )
    return [argument.resolve(IndexType()) for argument in arguments]


def optional_result_types(parser: Parser) -> list[Attribute]:
    """Parse an optional `-> type` or `-> (type, ...)`."""
    if parser.parse_optional_punctuation("->") is None:
        return []
    types = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
    if types is None:
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
    return [*types]


def print_result_types(printer: Printer, op: Operation) -> None:
    """Print ` -> (type, ...)`, nothing for an operation without results."""
    if op.results:
        print_parts(printer, " -> (", op.result_types, ")")


def parse_iter_args(parser: Parser, keyword: str) -> tuple[list[Parser.Argument], list[SSAValue]]:
    """Parse an optional `keyword(%inner = %outer, ...) -> (type, ...)`: block arguments and operands."""
    if parser.parse_optional_keyword(keyword) is None:
        return [], []
    pairs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_binding(parser))
    position = parser.pos
    types = optional_result_types(parser)
    values = parser.resolve_operands([operand for _, operand in pairs], types, position)
    arguments = [argument.resolve(type_) for (argument, _), type_ in zip(pairs, types, strict=True)]
    return arguments, list(values)


def parse_binding(parser: Parser) -> tuple[Parser.UnresolvedArgument, UnresolvedOperand]:
    """Parse `%inner = %outer`: a block argument and what it stands for."""
    argument = parser.parse_argument(expect_type=False)
    parser.parse_punctuation("=")
    return argument, parser.parse_unresolved_operand()


def print_bindings(
    printer: Printer, arguments: Sequence[SSAValue], values: Sequence[SSAValue], sign: str = "="
) -> None:
    """Print `%inner=%outer, ...`."""
    pairs = list(zip(arguments, values, strict=True))
    printer.print_list(pairs, lambda pair: print_parts(printer, pair[0], sign, pair[1]))


def parse_reference(parser: Parser) -> tuple[UnresolvedOperand, list[SSAValue]]:
    """Parse `%m[%i, %j]`: a buffer, whose type comes later, and indices."""
    buffer = parser.parse_unresolved_operand()
    indices = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_unresolved_operand)
    return buffer, [parser.resolve_operand(index, IndexType()) for index in indices]


def op_classes(module: ModuleType) -> list[type[Operation]]:
    """The operations that a module defines, those of its table TABLE_OPS too."""
    here = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    own = [cls for cls in here if isinstance(cls, type) and issubclass(cls, IRDLOperation)]
    return [op for op in own if hasattr(op, "name")] + getattr(module, "TABLE_OPS", [])
