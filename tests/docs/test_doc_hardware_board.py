"""board.md, "The board tests and the report", against the code."""

from __future__ import annotations

import re

from doc_transcripts import DOCS, kernels_told_of, table

from aerie.board.compare.records import Status
from aerie.kernel_builder.kernels import registry

PAGE = "explanation/board.md"
OTHERS = ("otherwise checked", "ran on hardware")
ALLOWED = ("kernel", "share", "largest", "why")


def test_allowances() -> None:
    allowed = {name: registry()[name].allowance for name in kernels_told_of(PAGE, 0, *ALLOWED)}
    wanted = {(name, f"{a.share:g}", f"{a.largest:g}", a.reason) for name, a in allowed.items() if a}
    assert set(table(PAGE, *ALLOWED)) == wanted


def test_verdicts() -> None:
    shown = [name for cell, _ in table(PAGE, "verdict", "what it means") for name in cell.split(", ")]
    assert shown == [status.value for status in Status]


def test_every_section_is_listed_at_the_top() -> None:
    text = (DOCS / PAGE).read_text()
    head, sections = text[: text.index("\n## ")], re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [section for section in sections if f"[{section}](#" not in head] == []


def test_nothing_is_said_to_have_run_on_hardware() -> None:
    """Until somebody has: then the row says what, where and when, and this test goes."""
    rows = table(PAGE, "part", "ran on the virtual NPU", "went through upstream's compilers", *OTHERS)
    assert len(rows) >= 7
    assert {ran for *_, ran in rows} == {"**never**"}
