"""Reading the pages: their code blocks, the marks for the runner, and their tables.

A comment before a block, or at the top of a page for all of its blocks, tells how it is run:

    <!-- not run: needs an NPU -->     it is not, for one of the reasons in REASONS
    <!-- smollm2 -->                  only by `make test-slow`, where that model can be fetched
    <!-- slow -->                      only by `make test-slow`
    <!-- numbers aside -->             numbers may differ from those shown
    <!-- own project -->               the page changes the project: it has a copy of it
    <!-- broken checkpoints -->        it needs those of broken.py
    <!-- server -->                    it needs a server of the demo model
    <!-- FILE of PAGE -->              it needs the file that another page shows
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
README = PROJECT / "README.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
"""All pages that are written by hand; tools/docs makes the others."""

REASONS = (
    "needs an NPU",
    "needs a network",
    "needs several machines",
    "needs the NPU compilers",
    "needs minutes",
    "needs a model that is not here",
    "needs a package that is not here",
    "waits for input",
    "installs",
    "removes",
)
"""How the reason begins for which a block is not run."""

FENCE = re.compile(
    r"^(?P<marks>(?:<!--[^\n]*-->\n+)*)"
    r"```(?P<language>[\w-]+)(?: title=\"(?P<file>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"<!-- (.*?) -->")


@dataclass(frozen=True)
class Block:
    """A code block. place: PAGE:LINE of its first line; file: what it is saved as, or ""."""

    place: str
    language: str
    file: str
    text: str
    marks: tuple[str, ...]

    @property
    def reason(self) -> str | None:
        """Why it is not run; None where it is."""
        found = [mark.removeprefix("not run: ") for mark in self.marks if mark.startswith("not run")]
        return found[0] if found else None

    @property
    def needs_smollm2(self) -> bool:
        return "smollm2" in self.marks

    @property
    def is_slow(self) -> bool:
        return "slow" in self.marks

    @property
    def ignores_numbers(self) -> bool:
        return "numbers aside" in self.marks

    @property
    def session(self) -> Iterator[tuple[str, str]]:
        """The commands of a console block, each with what it prints."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, expected = _split(part)
            yield command, expected


def _split(part: str) -> tuple[str, str]:
    """A command, whose lines but the last end in a backslash, and its output."""
    found = re.match(r"(?:[^\n]*\\\n)*[^\n]*\n?", part)
    assert found
    return found[0].rstrip("\n"), part[found.end() :]


def page_marks(text: str) -> tuple[str, ...]:
    """The mark of a whole page, before its title."""
    return tuple(MARK.findall(text[: text.index("# ")] if "# " in text else ""))


def blocks(page: Path) -> list[Block]:
    """Every code block that names a language, in order."""
    text = page.read_text()
    name = page.relative_to(PROJECT)
    return [
        Block(
            place=f"{name}:{text[: found.start('text')].count(chr(10)) + 1}",
            language=found["language"],
            file=found["file"] or "",
            text=found["text"],
            marks=(*page_marks(text), *MARK.findall(found["marks"])),
        )
        for found in FENCE.finditer(text)
    ]


def table(page: Path, *heading: str) -> list[tuple[str, ...]]:
    """The rows of the table with this heading; cells without their backticks."""
    text = page.read_text()
    start = text.index("| " + " | ".join(heading) + " |\n")
    rows = text[start:].partition("\n\n")[0].splitlines()[2:]
    return [tuple(cell.strip().replace("`", "") for cell in row.strip("|").split(" | ")) for row in rows]


def prose(text: str) -> str:
    """A page without its code blocks and comments."""
    return MARK.sub("", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL))
