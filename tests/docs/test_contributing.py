"""CONTRIBUTING.md: its glossary says each term once, and its commands exist."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.docs.pages import DOCS

PROJECT = DOCS.parent
PAGE = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
GROUPS = ("Device", "Programs", "Engine", "Weights and numbers", "Verification")


def _rows(heading: str) -> list[tuple[str, str]]:
    """The rows of the table under a heading, without the table's head."""
    section = PAGE.split(f"### {heading}\n", 1)[1].split("\n### ", 1)[0]
    return [
        row for row in re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)[1:] if row[0] != "---"
    ]


def test_each_term_has_one_meaning() -> None:
    terms = [term for group in GROUPS for term, _ in _rows(group)]
    assert [term for term, count in Counter(terms).items() if count > 1] == []
    assert 50 <= len(terms) <= 90


def test_a_meaning_is_one_short_line() -> None:
    rows = [row for group in GROUPS for row in _rows(group)]
    assert [term for term, meaning in rows if len(meaning) > 120 or meaning.endswith(".")] == []


def test_words_that_never_stand_alone_are_no_terms() -> None:
    terms = {term for group in GROUPS for term, _ in _rows(group)}
    words = {word for word, _ in _rows("Words that never stand alone")}
    assert len(words) >= 8
    assert terms & words == set()


def test_make_targets_exist() -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", PAGE)) | set(
        re.findall(r"^make ([a-z-]+)", PAGE, re.MULTILINE)
    )
    assert named
    assert named <= targets


def test_markers_exist() -> None:
    pyproject = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    markers = re.findall(r"marked `(\w+)`", PAGE)
    assert markers
    assert [marker for marker in markers if f'"{marker}: ' not in pyproject] == []


def test_the_example_of_an_error(command_line: Callable[..., Any]) -> None:
    (example,) = re.findall(r"^```\n(seq_len=.*)\n```$", PAGE, re.MULTILINE)
    finished = command_line("cli", "run --seq-len 100 --prompt hi --backend virtual")
    assert finished.status == 2
    assert f"error: {example}" in finished.err
