"""Names and texts of a program as messages show them: printable, in one line, cut where they are long."""

from __future__ import annotations

import hashlib
import re

_MAX_SHOWN_LENGTH = 100
_BARE = re.compile(r"[A-Za-z0-9_$.\-]+")


def display_name(name: str) -> str:
    """A name for a message: bare if MLIR allows that, else in MLIR's quotes.

    A long name is cut in the middle, where 16 digits of its hash distinguish it.
    """
    text = name if _BARE.fullmatch(name) else f'"{"".join(map(_printed, name))}"'
    if len(text) <= _MAX_SHOWN_LENGTH:
        return text
    half = _MAX_SHOWN_LENGTH // 2 - 12
    return f"{text[:half]}...{name_digest(name)[:16]}...{text[-half:]}"


def _printed(char: str) -> str:
    """A character inside of MLIR's quotes."""
    if char in '"\\':
        return f"\\{char}"
    if " " <= char <= "~":
        return char
    return "".join(f"\\{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def one_line(text: str, max_length: int = 400) -> str:
    """A text of a program as messages show it: printable, in one line, cut where it is long."""
    printed = "".join(char if char.isprintable() else _printed(char) for char in text[: max_length + 1])
    return printed if len(printed) <= max_length else f"{printed[:max_length]}..."


def symbol_name(name: str) -> str:
    """`@name` in messages."""
    return f"@{display_name(name)}"


def value_name(name: str | None) -> str:
    """`%name` in messages; nothing for a value without a name."""
    return f"%{display_name(name)}" if name else ""


def name_digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
