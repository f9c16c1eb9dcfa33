"""docs/verification.md: its commands run and print what it shows, numbers aside; lit's features."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_transcripts import DOCS, blocks, check_command, make_project, matches, session, table

from aerie.cli.arguments import default_cache_dir

PAGE = "verification.md"
NUMBER = re.compile(r"[-+]?\d[\d.]*(e[-+]\d+)?")


def without_numbers(text: str) -> str:
    """Every number as N, tables as wide as any, and the step nearest its bound as any where it keeps it.

    Other CPUs sum in another order, so that another step is nearest. One that is beyond its bound is named.
    """
    text = re.sub(r"step \w+(?= .*ok *$)", "step NAME", NUMBER.sub("N", text), flags=re.MULTILINE)
    lines = [re.sub(r" +", " ", line.strip()) for line in re.sub(r"-{2,}", "--", text).splitlines()]
    return "\n".join([*lines, ""])


FAULT = "heads 0 and 1 swapped in layer 3"
FAULTY = """
import sys

sys.path.append({faults!r})
from faults import FAULTS, Healthy

from aerie.verify import __main__ as command_line

prepare_runtime = command_line.prepare_runtime
(fault,) = (fault for fault in FAULTS if fault.name == {name!r})


def faulty(checkpoint, *arguments):
    command_line.prepare_runtime = prepare_runtime  # random weights are healthy
    return fault.inject(Healthy(prepare_runtime(checkpoint, *arguments), checkpoint, prepare_runtime))


command_line.prepare_runtime = faulty
sys.exit(command_line.main())
"""
"""The command line with a fault in the session that it opens first."""


def shown_of_the_fault() -> list[str]:
    """What the page shows of the gate and of the diagnosis where the fault is in."""
    return [body for language, _, body in blocks(PAGE) if language == "text"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder like the project's, with the programs that are compiled already."""
    make_project(tmp_path)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "programs").symlink_to(default_cache_dir(), target_is_directory=True)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "arguments"), [(0, "verify"), (1, 'diagnosis --prompt "What is the capital of France?"')]
)
def test_a_fault_looks_as_shown(place: int, arguments: str, project: Path) -> None:
    tests = str(DOCS.parent / "tests" / "verify")
    (project / "faulty.py").write_text(FAULTY.format(faults=tests, name=FAULT))
    expected = shown_of_the_fault()[place]
    check_command(
        PAGE, project, f"python faulty.py {arguments} 2>/dev/null", expected, without_numbers, VNPU_OPT="3"
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "expected"),
    [pair for language, _, body in blocks(PAGE) if language == "console" for pair in session(body)],
)
def test_commands(command: str, expected: str, project: Path) -> None:
    check_command(PAGE, project, command, expected, seen_as=without_numbers, VNPU_OPT="3")


def test_transcripts_differ_in_more_than_numbers() -> None:
    """What is compared is still something."""
    (gate,) = (
        without_numbers(expected)
        for language, _, body in blocks(PAGE)
        if language == "console"
        for _, expected in session(body)
    )
    faulty, diagnosis = map(without_numbers, shown_of_the_fault())
    assert matches(gate, gate)
    assert not matches(gate, gate.replace("PASS", "FAIL"))
    assert not matches(faulty, faulty.replace("step q", "step k"))
    assert "[verify] FAIL: teacher-forced, chat turn: rms logit difference" in faulty
    assert "[diagnosis] layer N, step q:" in diagnosis


def test_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS.parent / "tests" / "lit" / "support"))
    import features

    assert dict(table(PAGE, "feature", "what decides it")) == features.FEATURES
