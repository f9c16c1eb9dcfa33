"""Ways through blocks of rows: the same bits, in two families of models, and none that was not gone."""

from dataclasses import replace

import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.engine.families import FAMILIES
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.llama32_1b.synthetic.shape import in_family
from aerie.runtime import select_backend
from aerie.verify.gate_prompts import text_of_length
from aerie.verify.random_model import random_checkpoint, random_model_config, with_longer_context
from aerie.verify.schedule_identity import (
    SCHEDULES,
    SEVERAL_CALLS,
    TWO_CONTEXTS,
    ReferenceSchedule,
    Schedule,
    schedule_identities,
)
from tests.verify.family_faults import FAMILY_CHANGES
from tests.verify.fault_runners import Giving

OPTIONS = RuntimeOptions(None, select_backend("virtual"), default_cache_dir())


@pytest.mark.parametrize("family", ["qwen3", "smollm3", "olmo2", "lfm2"])
def test_every_schedule_has_the_same_bits_in_another_family(family, demo_checkpoint):
    """And each was gone, or it would say so. Norms of heads, layers with tables of their own, norms after,
    states: what other families have besides is a constant of a launch, or a table that the host has."""
    config = replace(in_family(demo_checkpoint.config, FAMILIES[family]), **FAMILY_CHANGES.get(family, {}))
    with random_checkpoint(with_longer_context(random_model_config(config)), Reporter()) as checkpoint:
        found = list(schedule_identities(family, checkpoint, OPTIONS, open_quietly))
    assert [one.name for one in found] == [
        *(schedule.name for schedule in SCHEDULES),
        TWO_CONTEXTS.name,
        SEVERAL_CALLS.name,
    ]
    assert [(str(one.failure), one.skipped) for one in found] == [("None", "")] * len(found)
    assert min(one.compared for one in found) > 100_000
    assert [one.of for one in found[-2:]] == [family, f"{family}, 1 thread"]


def open_quietly(checkpoint, options):
    return prepare_runtime(checkpoint, options, Reporter())


@pytest.fixture(scope="module")
def whole(demo_session):
    ids = text_of_length(demo_session.tokenizer, 40)
    return ReferenceSchedule(demo_session.model, ids, Schedule("at once", (128,), min_calls=1))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (replace(SEVERAL_CALLS, min_calls=99), "took 8 steps, expected 99 or more"),
        (Schedule("in others", (8, 16)), "took programs of (8,) rows, expected (8, 16)"),
        (Schedule("filled", (8,)), "no row was padding"),
        (replace(SEVERAL_CALLS, grows=True, min_calls=8), "stayed in a context of 512 positions"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_schedule_that_was_not_followed_is_a_failure(whole, schedule, message):
    assert whole.judge(schedule, whole.model, "the demo").broken == message


def test_a_way_with_other_bits_is_a_failure(whole):
    """RoPE's rows are half as large in programs of 32 rows."""

    def halved(_kind, _layer, arrays):
        rows = arrays.get("rope_rows")
        return {**arrays, "rope_rows": rows / 2} if rows is not None and len(rows) == 32 else arrays

    faulty = replace(whole.model, runner=Giving(whole.model.runner, halved))
    by_rows = {schedule.rows: schedule for schedule in SCHEDULES}
    assert whole.judge(by_rows[32,], faulty, "the demo").failure
    assert whole.judge(replace(SEVERAL_CALLS, tokens=7, min_calls=6), faulty, "the demo").failure is None
