"""docs/verification.md: its commands run and print what it shows, numbers aside; lit's features."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_transcripts import DOCS, blocks, check_command, matches, session, table

from llama32_1b.cli import default_cache_dir

PAGE = "verification.md"
ROOMS = sorted(path.parent.name for path in DOCS.parent.glob("*/__init__.py"))
NUMBER = re.compile(r"[-+]?\d[\d.]*(e[-+]\d+)?")


def without_numbers(text: str) -> str:
    """Every number as N, and the lines of tables as long as any: other CPUs sum in another order."""
    lines = [line.strip() for line in re.sub(r"-{2,}", "--", NUMBER.sub("N", text)).splitlines()]
    return "\n".join([*lines, ""])


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "expected"),
    [pair for language, _, body in blocks(PAGE) if language == "console" for pair in session(body)],
)
def test_commands(command: str, expected: str, tmp_path: Path) -> None:
    """In a folder like the project's, with the programs that are compiled already."""
    for room in ROOMS:
        (tmp_path / room).symlink_to(DOCS.parent / room)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "programs").symlink_to(default_cache_dir(), target_is_directory=True)
    check_command(PAGE, tmp_path, command, expected, seen_as=without_numbers, VNPU_OPT="3")


def test_transcripts_differ_in_more_than_numbers() -> None:
    """What is compared is still something."""
    gate, floor, diagnosis = (
        without_numbers(expected)
        for language, _, body in blocks(PAGE)
        if language == "console"
        for _, expected in session(body)
    )
    assert matches(gate, gate)
    assert not matches(gate, gate.replace("PASS", "FAIL"))
    assert "[verify] FAIL: teacher-forced, chat turn: rms logit difference" in floor
    assert "[diagnosis] layer N, step attn_norm:" in diagnosis


def test_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS.parent / "tests" / "lit" / "support"))
    import features

    assert dict(table(PAGE, "feature", "what decides it")) == features.FEATURES
