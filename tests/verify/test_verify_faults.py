"""Each fault put in on purpose makes the gate fail and diagnosis point at it.

The prompts are those of `make verify`: two, with all their steps.
"""

import numpy as np
import pytest
from faults import FAULTS, Healthy

from aerie.engine.forward import decode_step, prefill
from aerie.verify.diagnosis import diagnose
from aerie.verify.gate import verify
from aerie.verify.prompts import choose_prompts

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


def test_how_cores_start_to_round_changes_no_bit(healthy, demo_session, prompts):
    """All six programs: kernels tell their cores to round to nearest even, whatever these start with."""
    down = healthy.rebuild(rounding="floor")
    for prompt in prompts:
        for got, want in zip(computed(down, prompt), computed(demo_session, prompt), strict=True):
            np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def computed(session, prompt):
    """The last layer's output for every position of the prompt, and the logits of three decode steps."""
    model, ids = session.model, prompt.token_ids
    cache = model.new_cache(len(ids) + 3)
    hidden = prefill(model, ids, cache)
    return hidden, *(decode_step(model, token, cache) for token in ids[:3])
