"""verification.md: what it shows of a planted fault is what gate and diagnosis print, numbers aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PROJECT, blocks
from tests.docs.sandbox import Sandbox, matches, without_numbers

PAGE = DOCS / "explanation" / "verification.md"
FAULT = "heads 0 and 1 swapped in layer 3"
FAULTY = """
import sys

sys.path.append({faults!r})
from tests.verify.faults import FAULTS, Healthy

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
    return [block.text for block in blocks(PAGE) if block.language == "text"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "arguments"), [(0, "verify"), (1, 'diagnosis --prompt "What is the capital of France?"')]
)
def test_a_fault_looks_as_shown(place: int, arguments: str, tmp_path: Path) -> None:
    faults = str(PROJECT / "tests" / "verify")
    (tmp_path / "faulty.py").write_text(FAULTY.format(faults=faults, name=FAULT))
    found, status = Sandbox(tmp_path).execute(f"python faulty.py {arguments} 2>/dev/null")
    expected = shown_of_the_fault()[place]
    assert status == 1
    if not matches(without_numbers(expected), without_numbers(found)):
        pytest.fail(f"--- expected\n{expected}--- found\n{found}", pytrace=False)


def test_transcripts_differ_in_more_than_numbers() -> None:
    """What is compared is still something."""
    (gate,) = (
        without_numbers(expected)
        for block in blocks(PAGE)
        if block.language == "console"
        for _, expected in block.session
    )
    faulty, diagnosis = map(without_numbers, shown_of_the_fault())
    assert matches(gate, gate)
    assert not matches(gate, gate.replace("PASS", "FAIL"))
    assert not matches(faulty, faulty.replace("step q", "step k"))
    assert "[verify] FAIL: teacher-forced, chat turn: rms logit difference" in faulty
    assert "[diagnosis] layer N, step q:" in diagnosis
