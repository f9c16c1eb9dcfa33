"""A small random model of every family that has faults of its own: healthy it passes, and the gate finds each
fault where it is."""

from dataclasses import replace
from functools import partial

import pytest

from aerie.engine.families import FAMILIES
from aerie.engine.reporter import Reporter
from aerie.llama32_1b.synthetic.shape import in_family
from aerie.verify.gate_prompts import full_prompt
from aerie.verify.layer_check import try_layers
from aerie.verify.random_model import random_checkpoint, random_model_config
from aerie.verify.reference import Reference
from tests.verify.family_faults import FAMILY_CHANGES, FAMILY_FAULTS
from tests.verify.faults import Healthy

SEQ_LEN = 64


@pytest.fixture(scope="module")
def models(demo_checkpoint, open_session):
    """models(family) -> a healthy model of the demo's sizes, and its reference."""
    opened, contexts = {}, []

    def make(family):
        if family not in opened:
            config = random_model_config(in_family(demo_checkpoint.config, FAMILIES[family]))
            config = replace(config, **FAMILY_CHANGES.get(family, {}))
            contexts.append(random_checkpoint(config, Reporter()))
            checkpoint = contexts[-1].__enter__()
            programs = {"variants": "8,64x512"} if config.delta else {"seq_len": SEQ_LEN}
            session = open_session(checkpoint, **programs)
            rebuild = partial(open_session, checkpoint, **programs)
            opened[family] = Healthy(session, checkpoint, rebuild), Reference.open(checkpoint.folder)
        return opened[family]

    yield make
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.mark.parametrize("family", FAMILY_FAULTS)
def test_the_healthy_one_passes(family, models):
    healthy, reference = models(family)
    report = try_layers(family, healthy.session, reference, full_prompt(healthy.session))
    assert [str(failure) for failure in report.failures] == []
    assert len(report.rows) > 50


@pytest.mark.parametrize(
    ("family", "fault"),
    [
        pytest.param(family, fault, id=f"{family}: {fault.name}")
        for family, faults in FAMILY_FAULTS.items()
        for fault in faults
    ],
)
def test_a_fault_is_found_where_it_is(family, fault, models):
    healthy, reference = models(family)
    faulty = fault.inject(healthy)
    report = try_layers(family, faulty, reference, full_prompt(faulty))
    assert str(report.failures[0]).startswith(f"ladder, {family}: {fault.place}: ")
