"""Each fault put in on purpose makes the gate fail and diagnosis point at it.

The prompts are those of `make verify`: two, with all their steps, and one that fills the context.
"""

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.forward import decode_step, prefill
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.runtime import select_backend
from aerie.verify.diagnosis import diagnose
from aerie.verify.gate import verify
from aerie.verify.gate_prompts import choose_prompts, full_prompt
from aerie.verify.layer_check import try_layers
from aerie.verify.random_model import open_random_model
from tests.verify.faults import BLOCK_FAULTS, FAULTS, GATE_FAULTS, SUBTLE, Healthy

QUICK = (
    "all logits zero",
    "layer 3 on the buffers of layer 2",
    "no FFN in layer 4",
    "KV cache written one position off in decode",
    "K and V weights swapped in layer 2",
    "attention of an earlier prompt in layer 2",
    "empty answer",
    "answer cut after one token",
    "31 wrong tokens",
)
"""All of them are among the slow tests, with what the page says of each (test_verify_documented.py)."""
quick_faults = pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.name in QUICK], ids=lambda fault: fault.name
)


@pytest.fixture(scope="module")
def prompts(demo_session):
    return choose_prompts(demo_session, full=False)


@quick_faults
def test_a_fault_fails_the_gate(fault, healthy, demo_reference, prompts):
    record = verify(fault.inject(healthy), demo_reference, prompts)
    assert record.failures
    assert record.verdict == "FAIL"


@pytest.fixture(scope="module")
def random_model(demo_checkpoint):
    """As the gate has it beside the demo."""
    options = RuntimeOptions(None, select_backend("virtual"), default_cache_dir())
    with open_random_model(demo_checkpoint.config, options, Reporter()) as (session, reference):
        checkpoint = open_checkpoint(reference.folder)
        yield Healthy(session, checkpoint), reference


@pytest.mark.parametrize("fault", SUBTLE, ids=lambda fault: fault.name)
def test_a_subtle_fault_shows_in_random_weights(fault, random_model):
    """Twice beyond a bound and more, where health uses half."""
    healthy, reference = random_model
    prompt = full_prompt(healthy.session)
    report = try_layers("random", fault.inject(healthy), reference, prompt)
    assert str(report.failures[0]).startswith(f"ladder, random: {fault.place}: ")
    assert max(row.used for row in report.rows if row.place == fault.place) > 2


@pytest.mark.parametrize("fault", BLOCK_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_blocks_fails_the_layer_check(
    fault, few_rows_session, demo_checkpoint, demo_reference, prompts
):
    faulty = fault.inject(Healthy(few_rows_session, demo_checkpoint))
    report = try_layers("in few rows", faulty, demo_reference, prompts[1].token_ids)
    assert str(report.failures[0]).startswith(f"ladder, in few rows: {fault.place}: ")


@pytest.mark.parametrize("fault", GATE_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_outside_of_layer_steps_fails_the_gate(fault, healthy, demo_reference, prompts):
    failures = verify(fault.inject(healthy), demo_reference, prompts).failures
    messages = [str(failure) for failure in failures]
    assert any(one.startswith(fault.place) for one in messages), messages


def test_blocks_pass_in_several_steps(few_rows_session, demo_reference, prompts):
    ids = prompts[1].token_ids
    assert len(few_rows_session.model.variant_set.plan(len(ids), 0)) > 2
    report = try_layers("in few rows", few_rows_session, demo_reference, ids)
    assert report.failures == []
    assert max(row.used for row in report.rows) < 0.7


def test_random_weights_pass_with_margin(random_model):
    healthy, reference = random_model
    report = try_layers("random", healthy.session, reference, full_prompt(healthy.session))
    assert report.failures == []
    assert max(row.used for row in report.rows) < 0.7
    assert {phase: len(rows) for phase, rows in report.phases.items()} == {"prefill": 38, "decode": 38}
    assert report.tokens == healthy.session.model.positions == 512


@quick_faults
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
