"""From text to a verified module, with the place of every operation and of every error, and back to text."""

from __future__ import annotations

import functools
import importlib
import re
import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, cast

from xdsl.context import Context
from xdsl.dialects.arith import ConstantOp, FastMathFlagsAttr
from xdsl.dialects.builtin import (
    AnyDenseElement,
    AnyFloat,
    FileLineColLoc,
    IntAttr,
    LocationAttr,
    ModuleOp,
    StringAttr,
    UnknownLoc,
    UnregisteredAttr,
)
from xdsl.ir import Attribute, Dialect, Operation, SSAValue, TypeAttribute
from xdsl.irdl import IRDLOperation
from xdsl.parser import AttrParser, Parser
from xdsl.parser.core import ForwardDeclaredValue
from xdsl.parser.generic_parser import ParserState
from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Input, Span
from xdsl.utils.mlir_lexer import MLIRTokenKind

from aerie.air_dialect.assembly import OPERAND_SEGMENT_SIZES, RESULT_SEGMENT_SIZES
from aerie.air_dialect.lexer import FastLexer
from aerie.air_dialect.ops import AIR
from aerie.air_dialect.types import AttributePrinter
from aerie.air_dialect.upstream.dialects import ADDED, DIALECTS
from aerie.air_dialect.upstream.formats import Formatted, compiled_format
from aerie.air_dialect.verification import AirParseError, location, one_line, verify


class _Context(Context):
    """A context that keeps an attribute of an unknown dialect as it is written, such as `#llvm.loop_unroll`.

    Attributes are annotations; an unknown operation or type remains an error.
    """

    def get_optional_attr(self, name: str) -> type[Attribute] | None:
        attribute = super().get_optional_attr(name)
        if attribute is None and Dialect.split_name(name)[0] not in self._loaded_dialects:
            attribute = _unknown_attribute(name)
        return attribute


@functools.cache
def _unknown_attribute(name: str) -> type[Attribute]:
    """The class of an unknown attribute: one for all contexts, so that attributes of two texts compare."""
    return UnregisteredAttr.with_name_and_type(name, False)


def make_context() -> Context:
    """A fresh context with the AIR dialect and every upstream dialect an AIR program uses."""
    ctx = _Context()
    for dialect in (AIR, *DIALECTS):
        ctx.load_dialect(dialect)
    for name in ("aie", "aiex", "aievec", "airrt"):
        ctx.register_dialect(name, functools.partial(_rare_dialect, "aie.dialects", name))
    ctx.register_dialect("async", functools.partial(_rare_dialect, "upstream.async_dialect", "async"))
    return ctx


def _rare_dialect(module: str, name: str) -> Dialect:
    """A dialect that most texts do not have, such as those of what the compiler makes of AIR."""
    dialect: Dialect = getattr(importlib.import_module(f"{__package__}.{module}"), name.upper())
    return dialect


class _BitPattern(Parser._TensorLiteralElement):
    """A hexadecimal element of a dense literal: an integer, or the bits of a float."""

    def to_type(self, parser: AttrParser, type: AnyDenseElement) -> object:
        if not isinstance(type, AnyFloat):
            return super().to_type(parser, type)
        bits = self.to_int(parser)
        if not 0 <= bits < 2 ** (8 * type.compile_time_size):
            parser.raise_error(
                f"{self.span.text} does not fit into the {type.bitwidth} bits of {type}", self.span
            )
        return type.unpack(bits.to_bytes(type.compile_time_size, "little"), 1)[0]


_PLAIN_TYPE = re.compile(r'(?:memref|vector)<(?:[^<>()#!"/{}]++|<[^<>()#!"/{}]*+>)*+>')
"""A type of which each piece stands there: no alias, no type of a dialect that a text may lack."""
MAX_TYPES, MAX_TYPE_CHARACTERS = 4096, 200
_types: dict[str, TypeAttribute] = {}
"""Types that were read, by their texts: a program has few, hundreds of times."""


class AirParser(Parser):
    """xDSL's parser, which also notes where in the text every operation stands.

    It reads a hexadecimal integer in a dense literal of floats as their bits, as MLIR does: without
    that `dense<0xFF800000> : vector<8xf32>` would be 4286578688, not minus infinity.
    """

    _line_starts: Sequence[int] = ()
    _location: Span | None = None
    """The `loc(...)` that was read last."""

    def __init__(self, ctx: Context, text: str, filename: str) -> None:
        super().__init__(ctx, text, filename)
        self._resume_from(ParserState(FastLexer(Input(text, filename))))
        self.written_locations: dict[int, str] = {}
        """By the line of an operation, its `loc(...)` as it is written."""

    def _parse_tensor_literal_element(self) -> Parser._TensorLiteralElement:
        element = super()._parse_tensor_literal_element()
        if element.span.text.startswith(("0x", "0X")):
            return _BitPattern(element.is_negative, element.value, element.span)
        return element

    def _get_op_by_name(self, name: str) -> type[Operation]:
        try:
            return super()._get_op_by_name(name)
        except ParseError:
            self.raise_error(f"operation {name} is not known to the AIR dialect's reader", self._operation)

    def parse_optional_type(self) -> TypeAttribute | None:
        """A type. One that was read before, in whatever text, is not read again."""
        match = _PLAIN_TYPE.match(self.lexer.input.content, self.pos)
        if match is None:
            return super().parse_optional_type()
        known = _types.get(match[0])
        if known is not None:
            self._resume_from(match.end())
            return known
        found = super().parse_optional_type()
        if found is not None and len(match[0]) <= MAX_TYPE_CHARACTERS:
            if len(_types) >= MAX_TYPES:
                _types.clear()
            _types[match[0]] = found
        return found

    def parse_operation(self) -> Operation:
        span = self._operation = self._current_token.span
        is_named = self._current_token.kind is MLIRTokenKind.PERCENT_IDENT
        try:
            op = super().parse_operation()
        except ParseError:
            raise
        except Exception as error:  # xDSL's formats let VerifyException and others through
            self.raise_error(str(error) or type(error).__name__, span)
        if getattr(op, "async_token_result", None) is not None and not is_named:
            self.raise_error(
                f"{op.name} needs to be named when marked 'async': write %token = {op.name} async ...", span
            )
        _keep_unknown_properties(op)
        if isinstance(op.location, UnknownLoc):
            op.location = self._place(span.start)
            self._note_written_location(op.location.line.data)
        return op

    def _note_written_location(self, line: int) -> None:
        """Note the location that was read last, if it ends the operation that was read last."""
        end = self._current_token.span.start
        if self._location and not self.lexer.input.content[self._location.end : end].strip():
            self.written_locations.setdefault(line, self._location.text)

    def parse_optional_location(self) -> LocationAttr | None:
        """Skip a `loc(...)`, of whatever form: the place of an operation is that in the text that was given.

        Aliases in it may be defined later, as `--mlir-print-debuginfo` has them; `source_places` reads them.
        """
        if self._current_token.text != "loc":
            return None
        start = self._consume_token().span.start
        self.parse_punctuation("(")
        depth = 1
        while depth:
            token = self._consume_token()
            if token.kind is MLIRTokenKind.EOF:
                self.raise_error("this location has no closing parenthesis", token.span)
            depth += (token.kind is MLIRTokenKind.L_PAREN) - (token.kind is MLIRTokenKind.R_PAREN)
        self._location = Span(start, token.span.end, self.lexer.input)
        return UnknownLoc()

    def parse_optional_argument(self, expect_type: bool = True) -> Any:
        """Also takes the location that MLIR prints behind an argument's type."""
        argument = super().parse_optional_argument(expect_type)
        if argument is not None:
            self.parse_optional_location()
        return argument

    def _place(self, position: int) -> FileLineColLoc:
        source = self.lexer.input
        if not self._line_starts:
            self._line_starts = [0, *(match.end() for match in re.finditer("\n", source.content))]
        line = bisect_right(self._line_starts, position)
        column = position - self._line_starts[line - 1] + 1
        return FileLineColLoc(StringAttr(source.name), IntAttr(line), IntAttr(column))


_ALIAS = re.compile(r"^(#[\w.$-]+) = (loc\(.*)$", re.MULTILINE)
_PLACE = re.compile(
    r'"(?P<file>(?:[^"\\\n]|\\.)+)":(?P<line>\d+):(?P<column>\d+)|(?P<alias>#[\w.$-]+)|"(?:[^"\\\n]|\\.)*"'
)


_HAS_LOCATION = re.compile(r"\bloc\(")


def source_places(text: str) -> dict[int, str]:
    """By the line of an operation in the text, the place that its `loc(...)` names: `kernel.py:12:7`.

    Of a fused location it is the first place in it, of a call that of the callee. Lines without one are left
    out. Raises AirParseError if the text does not parse.
    """
    if not _HAS_LOCATION.search(text):
        return {}
    with ONE_AT_A_TIME:
        parser = AirParser(make_context(), text, "<string>")
        try:
            parser.parse_module()
        except ParseError as error:
            raise AirParseError(f"{error.span.get_location()}: error: {_message(error)}") from error
    aliases = {match[1]: match[2] for match in _ALIAS.finditer(text)}
    places = {line: _place_of(written, aliases) for line, written in parser.written_locations.items()}
    return {line: place for line, place in places.items() if place}


def _place_of(location: str, aliases: dict[str, str]) -> str:
    """The first place in a location, through aliases; empty if it names none. Line 0 means none."""
    seen = set[str]()
    open_searches = [_PLACE.finditer(location)]
    while open_searches:
        match = next(open_searches[-1], None)
        if match is None:
            open_searches.pop()
        elif match["file"] and int(match["line"]):
            return f"{match['file']}:{match['line']}:{match['column']}"
        elif match["alias"] and match["alias"] not in seen:
            seen.add(match["alias"])
            open_searches.append(_PLACE.finditer(aliases.get(match["alias"], "")))
    return ""


ONE_AT_A_TIME = threading.RLock()
"""Held by whoever makes operations with regions. xDSL swaps a method of Operation while it adds an implicit
terminator, for all threads at once; two at a time add it twice."""


def _keep_unknown_properties(op: Operation) -> None:
    """Make properties that xDSL's definition lacks, such as a new flag of MLIR's, discardable attributes.

    A flag that says nothing is left out.
    """
    if not isinstance(op, IRDLOperation):
        return
    for name in (
        op.properties.keys()
        - op.get_irdl_definition().properties
        - {OPERAND_SEGMENT_SIZES, RESULT_SEGMENT_SIZES}
    ):
        value = op.properties.pop(name)
        if value != FastMathFlagsAttr("none"):
            op.attributes[name] = value


def parse(
    text: str, filename: str = "<string>", *, strict: bool = True, check_loops: bool = False
) -> ModuleOp:
    """Parse and verify a module; `strict` and `in_time` as in `verify`. Threads may call this; they take
    turns.

    Text without an enclosing `module { }` becomes the body of one. Integers written as offsets, sizes
    or strides become `arith.constant` operations. Raises AirParseError with the place and the fix.
    """
    source = Input(text, filename)
    with ONE_AT_A_TIME:
        try:
            _check_quotes(source)
            module = AirParser(make_context(), text, filename).parse_module()
        except ParseError as error:
            raise AirParseError(f"{error.span.get_location()}: error: {_message(error)}") from error
        _check_defined(module)
        _insert_constants(module)
        verify(module, strict=strict, in_time=check_loops)
    return module


def _message(error: ParseError) -> str:
    """What is wrong, in one line; xDSL says the same of an empty text and of text that is no operation."""
    if error.msg != "Could not parse entire input!":
        return one_line(error.msg)
    if not error.span.text:
        return "the text holds no operation: write a module, or the operations of one"
    return f"expected an operation, found {error.span.text}"


_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|"')


def _check_quotes(source: Input) -> None:
    """Find a string without a closing quote, over which xDSL's lexer would spend exponential time."""
    for piece in _STRING_OR_COMMENT.finditer(source.content):
        if piece[0] == '"':
            raise ParseError(Span(piece.start(), piece.end(), source), "this string has no closing quote")


def _check_defined(module: ModuleOp) -> None:
    """Refuse values that are used and never defined; xDSL overlooks them inside isolated regions."""
    for op in module.walk():
        for number, operand in enumerate(op.operands):
            if isinstance(operand, ForwardDeclaredValue):
                name = f"%{operand.name_hint}" if operand.name_hint else "a value"
                raise AirParseError(
                    f"{location(op)}: error: operand {number} of {op.name} is {name}, not defined there"
                )


def _insert_constants(module: ModuleOp) -> None:
    """Put the constants that inline integers became in front of their users."""
    for op in list(module.walk()):
        for operand in op.operands:
            owner = operand.owner
            if isinstance(owner, ConstantOp) and owner.parent is None and op.parent is not None:
                owner.location = op.location
                op.parent.insert_op_before(owner, op)


# ---- printing ----

_NUMBERING = re.compile(r"(_\d+)+$")


def print_module(module: ModuleOp) -> str:
    """The module as text, in mlir-air's assembly; ends with a newline."""
    stream = StringIO()
    AirPrinter(stream=stream).print_op(module)
    return stream.getvalue() + "\n"


def print_as_source(module: ModuleOp, filename: str = "<string>") -> str:
    """As `print_module`, and the module becomes what `parse` would make of the text.

    Its operations have their places in the text, and its values the names there. So what is made of a module
    that was built in Python, with its text at hand, is what would be made of the text.
    """
    stream = StringIO()
    _PlacingPrinter(stream, filename).print_op(module)
    return stream.getvalue() + "\n"


def print_with_places(module: ModuleOp, text: str) -> str:
    """As `print_module`, with a location for each operation whose place `source_places` finds in the text
    that the module was read from."""
    stream = StringIO()
    _SourcePrinter(stream, source_places(text)).print_op(module)
    return stream.getvalue() + "\n"


class AirPrinter(AttributePrinter):
    """Prints operations of an upstream dialect with this package's assembly, whoever built them."""

    def print_ssa_value(self, value: SSAValue) -> str:
        """Print a value's name: its hint, numbered where values in view share it.

        xDSL takes one `_<number>` off a hint that it read; here all are taken off, for `x_1_1` leaves
        `x_1`, which is also what the second value of hint `x` is called.
        """
        base = _NUMBERING.sub("", value.name_hint or "")
        if value not in self._ssa_values:
            self._name(value, base)
        return super().print_ssa_value(value)

    def _name(self, value: SSAValue, base: str) -> None:
        """Choose the name of a value that was not printed yet. base: its hint without a number."""
        if base:
            count = self.ssa_names.get(base, 0)
            self.ssa_names[base] = count + 1
            self._ssa_values[value] = f"{base}_{count}" if count else base

    def print_op(self, op: Operation) -> None:
        assembly = ADDED.get(op.name)
        if assembly is None or isinstance(op, assembly) or assembly.print is Operation.print:
            super().print_op(op)
            return
        if op.results:
            self.print_list(op.results, self.print_ssa_value)
            self.print_string(" = ")
        self.print_string(op.name)
        if issubclass(assembly, Formatted):
            compiled_format(assembly).print(self, cast(IRDLOperation, op))
        else:
            assembly.print(op, self)  # the same definition, so the same accessors


class _SourcePrinter(AirPrinter):
    """Prints a location behind each operation on whose line the text has one."""

    def __init__(self, stream: StringIO, places: Mapping[int, str]) -> None:
        super().__init__(stream=stream)
        self._places = places

    def print_op(self, op: Operation) -> None:
        super().print_op(op)
        place = op.location
        found = self._places.get(place.line.data) if isinstance(place, FileLineColLoc) else None
        if found:
            file, line, column = found.rsplit(":", 2)
            self.print_string(f' loc("{file}":{line}:{column})')


class _PlacingPrinter(AirPrinter):
    """Gives operations the places and values the names that the parser would read in its text."""

    def __init__(self, stream: StringIO, filename: str) -> None:
        super().__init__(stream=stream)
        self._filename = StringAttr(filename)

    def print_op(self, op: Operation) -> None:
        line, column = self._current_line + 1, self._current_column + 1
        op.location = FileLineColLoc(self._filename, IntAttr(line), IntAttr(column))
        super().print_op(op)

    def _name(self, value: SSAValue, base: str) -> None:
        super()._name(value, base)
        value.name_hint = base or None
