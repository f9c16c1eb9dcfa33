"""Tokens of MLIR text by one regular expression, in place of xDSL's lexer, which looks at single characters.

Half of the time of xDSL's parser is its lexer's. What the expression does not know (strings, floats,
hexadecimal numbers, the end, letters beyond ASCII) xDSL's lexer reads, and it makes the errors.
"""

from __future__ import annotations

import re

from xdsl.utils.lexer import Span, Token
from xdsl.utils.mlir_lexer import KIND_BY_PUNCTUATION_SPELLING, MLIRLexer, MLIRToken, MLIRTokenKind

_SUFFIX = r"(?:[0-9]++|[a-zA-Z$._-][a-zA-Z0-9$._-]*+)"
_TOKEN = re.compile(
    rf"""(?:\s++|//[^\n]*+\n?)*+(?:
    (?P<BARE_IDENT>[a-zA-Z_][a-zA-Z0-9_$.]*+) |
    (?P<PERCENT_IDENT>%{_SUFFIX}) |
    (?P<punctuation>-> | []:,()}}[<>=+*?|/-] | \{{(?!-\#)) |
    (?P<INTEGER_LIT>(?!0x)[0-9]++(?!\.)) |
    (?P<AT_IDENT>@[a-zA-Z_][a-zA-Z0-9_$.]*+) |
    (?P<HASH_IDENT>\#(?!-\}}){_SUFFIX}) |
    (?P<EXCLAMATION_IDENT>!{_SUFFIX}) |
    (?P<CARET_IDENT>\^{_SUFFIX})
    )""",
    re.ASCII | re.VERBOSE,
)
"""Whitespace and comments, then a token; its group has the name of its kind. No piece is tried twice."""

_KINDS = {name: MLIRTokenKind[name] for name in _TOKEN.groupindex if name != "punctuation"}


class FastLexer(MLIRLexer):
    """xDSL's lexer: the same tokens, the same errors."""

    def lex(self) -> MLIRToken:
        """The next token. Raises ParseError where there is none."""
        match = _TOKEN.match(self.input.content, self.pos)
        if match is None or match.lastgroup is None:
            return super().lex()
        start, self.pos = match.span(match.lastgroup)
        kind = _KINDS.get(match.lastgroup) or KIND_BY_PUNCTUATION_SPELLING[match[match.lastgroup]]
        return Token(kind, Span(start, self.pos, self.input))
