"""Ways through blocks of rows: the same bits, in two families of models, and none that was not gone."""

from dataclasses import replace

import pytest
from faults import Giving

from aerie.cli.arguments import default_cache_dir
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.session import prepare_runtime
from aerie.runtime import select_backend
from aerie.verify.gate_prompts import text_of_length
from aerie.verify.random_model import (
    in_another_family,
    random_checkpoint,
    random_model_config,
    with_longer_context,
)
from aerie.verify.ways import CHUNKS, GROWS, WAYS, Way, Whole, identities_in_blocks

OPTIONS = RuntimeOptions(None, select_backend("virtual"), default_cache_dir())


def test_every_way_has_the_same_bits_in_another_family(demo_checkpoint):
    """And each was gone, or it would say so."""
    config = in_another_family(with_longer_context(random_model_config(demo_checkpoint.config)))
    assert config.family.model_type == "qwen3"
    with random_checkpoint(config, Reporter()) as checkpoint:
        found = list(identities_in_blocks("qwen3", checkpoint, OPTIONS, open_quietly))
    assert [one.name for one in found] == [*(way.name for way in WAYS), GROWS.name, CHUNKS.name]
    assert [(str(one.failure), one.skipped) for one in found] == [("None", "")] * len(found)
    assert min(one.compared for one in found) > 100_000
    assert [one.of for one in found[-2:]] == ["qwen3", "qwen3, 1 thread"]


def open_quietly(checkpoint, options):
    return prepare_runtime(checkpoint, options, Reporter())


@pytest.fixture(scope="module")
def whole(demo_session):
    ids = text_of_length(demo_session.tokenizer, 40)
    return Whole(demo_session.model, ids, Way("at once", (128,), least_steps=1))


@pytest.mark.parametrize(
    ("way", "told"),
    [
        (replace(CHUNKS, least_steps=99), "took 8 steps, and 99 or more are meant"),
        (Way("in others", (8, 16)), "took programs of (8,) rows, and (8, 16) are meant"),
        (Way("filled", (8,)), "no row was padding"),
        (replace(CHUNKS, grows=True, least_steps=8), "stayed in a context of 512 positions"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_way_that_was_not_gone_is_a_failure(whole, way, told):
    assert whole.judge(way, whole.model, "the demo").broken == told


def test_a_way_with_other_bits_is_a_failure(whole):
    """RoPE's rows are half as large in programs of 32 rows."""

    def halved(_kind, _layer, arrays):
        rows = arrays.get("rope_rows")
        return {**arrays, "rope_rows": rows / 2} if rows is not None and len(rows) == 32 else arrays

    faulty = replace(whole.model, runner=Giving(whole.model.runner, halved))
    by_rows = {way.rows: way for way in WAYS}
    assert whole.judge(by_rows[32,], faulty, "the demo").failure
    assert whole.judge(replace(CHUNKS, tokens=7, least_steps=6), faulty, "the demo").failure is None
