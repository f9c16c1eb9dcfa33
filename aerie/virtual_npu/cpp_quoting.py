"""Quotes text of a program for C++: names, messages and lines of MLIR enter C++ only through this module.

    mangled        any name as part of an identifier, injective
    local_name     any name of an SSA value as an identifier of its own
    literal        any text as a string literal
    comment        any line as a comment, which ends where its line ends
    shown          any name as messages show it: in one line, of a bounded length
    symbol, value  `@name` and `%name`, shown

A program is data. Symbols of MLIR may hold any text, quotes and newlines too, and are as long as they like;
nothing here depends on what a parser lets through.
"""

from __future__ import annotations

import re

from aerie.common.shown_names import name_digest

# ---- identifiers ----

_MAX_MANGLED_LENGTH = 200
"""Characters of a mangled name; compilers and linkers take more, the readers of their messages do not."""
_ESCAPED = re.compile(r"_(?=x)|[^0-9A-Za-z_]")


def mangled(name: str) -> str:
    """Any name as part of a C++ identifier, a different one for each name.

    Letters, digits and `_` stay. Any other character is `_xHEX_`, and so is a `_` before an x, so that each
    `_x` begins one of these. A name that is long then is its beginning and its SHA-256, as `_xhHEX_`.
    """
    text = _ESCAPED.sub(lambda found: f"_x{ord(found[0]):x}_", name)
    if len(text) <= _MAX_MANGLED_LENGTH:
        return text
    return f"{text[: _MAX_MANGLED_LENGTH // 2]}_xh{name_digest(name)}_"


_LOCAL = re.compile(r"v_[0-9A-Za-z_]{1,400}")


def local_name(hint: str | None) -> str:
    """A C++ identifier for a local variable. All begin with `v`, so that none is a keyword, a macro, or a
    name that generated code has for something else; one that was made here already stays as it is."""
    if not hint:
        return "v"
    return hint if _LOCAL.fullmatch(hint) else f"v_{mangled(hint)}"


def entry_symbol(name: str) -> str:
    """The exported C function of a public func.func."""
    return f"vnpu_entry_{mangled(name)}"


# ---- literals and comments ----


def string_literal(text: str) -> str:
    """A C++ string literal of the text's UTF-8. What is not plain is in octal digits, always three, so that
    neither a line's end nor a trigraph is left in it."""
    return '"' + "".join(map(_in_literal, text.encode("utf-8", "surrogatepass"))) + '"'


def _in_literal(byte: int) -> str:
    if byte in b'"\\':
        return f"\\{chr(byte)}"
    return chr(byte) if 0x20 <= byte < 0x7F and byte != ord("?") else f"\\{byte:03o}"


_MAX_COMMENT_LENGTH = 400


def line_comment(line: str) -> str:
    """A line as the text of a `//` comment. A backslash, or the trigraph of one, at its end would take the
    next line of C++ into the comment, so something else ends it."""
    text = "".join(char if char.isprintable() else " " for char in line[:_MAX_COMMENT_LENGTH]).strip()
    return f"{text} ." if text.endswith(("\\", "??/")) else text
