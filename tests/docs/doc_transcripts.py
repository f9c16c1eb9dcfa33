"""Reading the pages: their code blocks, the sessions in them, and their tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"

FENCE = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COUNTS = re.compile(r"\d+ deselected in [\d.]+s")


def blocks(page: str) -> list[tuple[str, str, str]]:
    """(language, file to save it as or "", text) of each code block that names a language, in order."""
    return FENCE.findall((DOCS / page).read_text())


def session(body: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


def matches(expected: str, found: str) -> bool:
    """Whether `found` is what a page shows; `...` in it stands for anything, within a line or for lines."""
    lines = [
        r"(?:.*\n)*?" if line == "...\n" else re.escape(line).replace(r"\.\.\.", ".*")
        for line in _plain(expected).splitlines(keepends=True)
    ]
    return re.fullmatch("".join(lines), _plain(found)) is not None


def _plain(text: str) -> str:
    """Without what differs from run to run, and with the columns of tables closed up."""
    return re.sub(" +", " ", COUNTS.sub("", text))


def table(page: str, *heading: str) -> list[tuple[str, ...]]:
    """The rows of the table with this heading; cells without their backticks."""
    text = (DOCS / page).read_text()
    start = text.index("| " + " | ".join(heading) + " |\n")
    rows = text[start:].partition("\n\n")[0].splitlines()[2:]
    return [tuple(cell.strip().replace("`", "") for cell in row.strip("|").split(" | ")) for row in rows]
