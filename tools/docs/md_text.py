"""Pieces of Markdown that generated pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

GENERATED = "<!-- Made from the code by tools/docs when the site is built. -->"


def page(title: str, *parts: str) -> str:
    """A page: its title, and its parts with an empty line between them."""
    return "\n\n".join((GENERATED, f"# {title}", *(part for part in parts if part))) + "\n"


def section(title: str, *parts: str, level: int = 2) -> str:
    return "\n\n".join((f"{'#' * level} {title}", *(part for part in parts if part)))


def table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; `|` and line ends in cells are written such that they stay in their cell."""
    lines = [_row(heading), _row(["---"] * len(heading)), *map(_row, rows)]
    return "\n".join(lines)


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(_cell(each) for each in cells)} |"


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def code(text: object) -> str:
    """Inline code; "" for nothing."""
    return f"`{text}`" if str(text) else ""


def block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.strip(chr(10))}\n```"


def sentence(text: str) -> str:
    """With a capital at its beginning, and a full stop at its end."""
    text = " ".join(text.split())
    return (
        text[:1].upper()
        + text[1:]
        + ("" if text.endswith((".", ":", "?", "")) and text[-1:] in ".:?" else ".")
    )
