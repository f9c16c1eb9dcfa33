"""The lexer by one expression: the tokens and the errors of xDSL's; and types that are read once."""

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRTokenKind

from aerie.air_dialect import AirParseError, parse, parser_printer
from aerie.air_dialect.lexer import FastLexer
from tests.virtual_npu.test_vnpu_products import FORMS

PIECES = (
    *"abxXyzE_$.-0159%@#!^:,()[]{}<>=+/*?|\"\\ \n\té²&",
    "0x", "0x1F", "1.5e-3", "->", "...", "{-#", "#-}", "//", '"a b"', '"\\22"', "memref<2x0x3xf32>",
    "%a#1", "@s",
)  # fmt: skip


def tokens(lexer: MLIRLexer) -> list[Any]:
    """All tokens of a text: kinds and places; last the error, if there is one."""
    found: list[Any] = []
    try:
        while not found or found[-1][0] is not MLIRTokenKind.EOF:
            token = lexer.lex()
            found.append((token.kind, token.span.start, token.span.end, token.text))
    except ParseError as error:
        found.append((error.msg, error.span.start, error.span.end))
    return found


def check_same_tokens(text: str) -> None:
    source = Input(text, "text")
    assert tokens(FastLexer(source)) == tokens(MLIRLexer(source)), text


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@example("memref<4x0x8xbf16, strided<[8, 1], offset: ?>>")
@example('%0:2 = "a.b"(%c_1#1) {x = 0x10 : i8, y = -1.0e+3} : (i1) -> i1 // comment')
@example("//")
@example('{-# #-} #-} #a !b ^c @d @"e" %')
def test_tokens_and_errors_are_those_of_xdsl(text):
    check_same_tokens(text)


def test_whole_programs_have_the_same_tokens():
    for form in FORMS.values():
        check_same_tokens(form.text())


def test_much_white_space_before_what_is_no_token_takes_no_time():
    """Each further blank would double it, if pieces were tried twice."""
    check_same_tokens(" \n" * 5000 + "&")


FUNCTION = "func.func @f(%a: {0}, %b: {0}) {{ return }}"


@pytest.mark.parametrize(
    "type_",
    [
        "memref<4x?xf32, strided<[8, 1], offset: ?>, 2 : i32>",
        "memref<2x4xbf16, 1>",
        "vector<[4]xf32>",
        "vector<2x[4]xbf16>",
        "memref<4x8xf32, affine_map<(d0, d1) -> (d1, d0)>>",
        "memref<4xf32 >",
    ],
)
def test_a_type_that_was_read_before_is_the_same(type_, monkeypatch):
    text = FUNCTION.format(type_)
    monkeypatch.setattr(parser_printer, "_PLAIN_TYPE", re.compile("(?!)"))
    plain = str(parse(text))
    monkeypatch.undo()
    monkeypatch.setattr(parser_printer, "_types", {})
    assert [str(parse(text)) for _ in range(2)] == [plain, plain]
    assert set(parser_printer._types) <= {type_}


@pytest.mark.parametrize("type_", ["memref<2xf3>", "memref<2xf32", "vector<2xf32, 1>", "memref<2xf32, 1>>"])
def test_a_wrong_type_is_refused_each_time(type_):
    messages = []
    for _ in range(2):
        with pytest.raises(AirParseError) as raised:
            parse(FUNCTION.format(type_))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert type_ not in parser_printer._types


def test_an_alias_is_read_in_each_text():
    text = "#m = {}\nfunc.func @f(%a: memref<2xf32, #m>) {{ return }}"
    assert "1 : i32" in str(parse(text.format("1 : i32")))
    assert "2 : i32" in str(parse(text.format("2 : i32")))


def test_no_more_types_are_kept_than_the_limit(monkeypatch):
    monkeypatch.setattr(parser_printer, "_types", {})
    monkeypatch.setattr(parser_printer, "MAX_TYPES", 8)
    arguments = ", ".join(f"%a{n}: memref<{n + 1}xf32>" for n in range(20))
    parse(f"func.func @f({arguments}, %x: memref<{'1x' * 200}f32>) {{ return }}")
    assert len(parser_printer._types) <= 8
    assert all(len(text) <= parser_printer.MAX_TYPE_CHARACTERS for text in parser_printer._types)
