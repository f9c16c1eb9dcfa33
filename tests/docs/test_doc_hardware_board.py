"""docs/hardware.md, "The board tests and the report", against the code."""

from __future__ import annotations

import re

from doc_transcripts import DOCS, table

from aerie.board.compare.judging import ALLOWANCES
from aerie.board.compare.records import Status

PAGE = "hardware.md"


def test_allowances() -> None:
    shown = table(PAGE, "kernel", "share", "largest", "why")
    assert shown == [
        (name, f"{allowed.share:g}", f"{allowed.largest:g}", allowed.reason)
        for name, allowed in ALLOWANCES.items()
    ]


def test_verdicts() -> None:
    shown = [name for cell, _ in table(PAGE, "verdict", "what it means") for name in cell.split(", ")]
    assert shown == [status.value for status in Status]


def test_every_section_is_listed_at_the_top() -> None:
    text = (DOCS / PAGE).read_text()
    head, sections = text[: text.index("\n## ")], re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [section for section in sections if f"[{section}](#" not in head] == []


def test_nothing_is_said_to_have_run_on_hardware() -> None:
    """Until somebody has: then the row says what, where and when, and this test goes."""
    rows = table(PAGE, "part", "ran on the virtual NPU", "otherwise checked", "ran on hardware")
    assert len(rows) >= 7
    assert {ran for *_, ran in rows} == {"**never**"}
