"""The faults of the demo in a second family as well: a Qwen3 of the demo's sizes, with random weights."""

import pytest

from aerie.engine.reporter import Reporter
from aerie.verify.gate import verify
from aerie.verify.gate_prompts import choose_prompts, full_prompt
from aerie.verify.layer_check import try_layers
from aerie.verify.random_model import in_another_family, random_checkpoint
from aerie.verify.reference import Reference
from aerie.verify.schedule_identity import with_few_rows
from tests.verify.faults import BLOCK_FAULTS, FAULTS, GATE_FAULTS, ONE_VARIANT, Healthy

pytestmark = pytest.mark.slow

OF_THE_DEMO_ALONE = {f"LM-head partition {part} shifted by one row" for part in range(1, 5)}
"""Faults of which those of the first and the last partition say the same here."""
TRIED = [fault for fault in FAULTS if fault.name not in OF_THE_DEMO_ALONE]


@pytest.fixture(scope="module")
def random_qwen3(demo_checkpoint, open_session):
    config = in_another_family(demo_checkpoint.config)
    with random_checkpoint(config, Reporter()) as checkpoint:
        session, reference = open_session(checkpoint), Reference.open(checkpoint.folder)

        def rebuild(**otherwise):
            return open_session(checkpoint, **otherwise, variants=ONE_VARIANT)

        yield Healthy(session, checkpoint, rebuild), reference, choose_prompts(session, full=False)


def gate_messages(session, reference, prompts):
    """What the gate says of the model: prompts, and where these show nothing the ladder."""
    record = verify(session, reference, prompts)
    if not record.failures:
        report = try_layers("the model", session, reference, full_prompt(session))
        record = record.with_layer_reports([report])
    return [str(failure) for failure in record.failures]


def test_the_healthy_one_passes(random_qwen3):
    healthy, reference, prompts = random_qwen3
    assert healthy.session.model.config.family.model_type == "qwen3"
    assert gate_messages(healthy.session, reference, prompts) == []


@pytest.mark.parametrize("fault", [*TRIED, *GATE_FAULTS], ids=lambda fault: fault.name)
def test_a_fault_fails_the_gate(fault, random_qwen3):
    healthy, reference, prompts = random_qwen3
    failures = gate_messages(fault.inject(healthy), reference, prompts)
    assert failures
    if fault in GATE_FAULTS:
        assert any(one.startswith(fault.place) for one in failures), failures


@pytest.mark.parametrize("fault", BLOCK_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_blocks_fails_the_layer_check(fault, random_qwen3):
    healthy, reference, prompts = random_qwen3
    few = Healthy(with_few_rows(healthy.session), healthy.checkpoint)
    report = try_layers("in few rows", fault.inject(few), reference, prompts[1].token_ids)
    assert str(report.failures[0]).startswith(f"ladder, in few rows: {fault.place}: ")
