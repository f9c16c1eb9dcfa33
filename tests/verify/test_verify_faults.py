"""Each fault put in on purpose makes the gate fail and diagnosis point at it.

The prompts are those of `make verify`: two, with all their steps.
"""

import os
import subprocess
import sys

import pytest
from faults import FAULTS, Healthy

from verify.gate import verify
from verify.ladder import diagnose
from verify.prompts import choose_prompts

every_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


@pytest.fixture(scope="module")
def healthy(demo_session, demo_checkpoint, open_session):
    built = {}

    def rebuild(**otherwise):
        key = repr(otherwise)
        if key not in built:
            built[key] = open_session(demo_checkpoint, **otherwise)
        return built[key]

    return Healthy(demo_session, demo_checkpoint, rebuild)


@pytest.fixture(scope="module")
def prompts(demo_session):
    return choose_prompts(demo_session, full=False)


@every_fault
def test_a_fault_fails_the_gate(fault, healthy, demo_reference, prompts):
    record = verify(fault.inject(healthy), demo_reference, prompts)
    assert record.failures
    assert record.verdict == "FAIL"


@every_fault
def test_diagnosis_points_at_the_fault(fault, healthy, demo_reference, prompts):
    found = diagnose(fault.inject(healthy), demo_reference, prompts[0].token_ids).first
    assert found is not None, "diagnosis found nothing"
    assert found.place == fault.place, found.problem or found.drift


def test_faults_leave_the_session_as_it_was(healthy, demo_reference, prompts):
    """Otherwise a fault could be found that is not there any more."""
    for fault in FAULTS:
        fault.inject(healthy)
    assert verify(healthy.session, demo_reference, prompts).failures == []
    assert diagnose(healthy.session, demo_reference, prompts[0].token_ids).first is None


def command(*arguments, **environment):
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "verify", *arguments, "--backend", "virtual"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        timeout=600,
    )


def test_a_process_whose_programs_truncate_fails(tmp_path):
    ended = command("gate", "--out", str(tmp_path), VNPU_ROUNDING="floor")
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("[verify] FAIL: teacher-forced, chat turn: ")


def test_diagnosis_in_a_process_names_where_truncation_begins(tmp_path):
    question = ("--prompt", "What is the capital of France?", "--out", str(tmp_path))
    ended = command("diagnosis", *question, VNPU_ROUNDING="floor")
    assert ended.returncode == 1, ended.stderr
    assert "layer 0, step attn_norm" in ended.stdout.splitlines()[-1]
