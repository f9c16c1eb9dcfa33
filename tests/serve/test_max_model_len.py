"""--max-model-len: fewer positions for a request than the model has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common import folders
from aerie.engine.config import load_config
from aerie.engine.reporter import Reporter
from aerie.serve.model_spec import ModelFlags, ModelSpec
from aerie.serve.service import ServerLimits
from tests.serve.conftest import VARIANTS, Serving, start

LIMIT = 24
FLAGS = ModelFlags("virtual", None, VARIANTS, 64 * 256, folders.programs_folder(), max_positions=LIMIT)


@pytest.fixture(scope="module")
def short() -> Iterator[Serving]:
    spec = ModelSpec("demo", FLAGS.runtime_options(), Reporter(quiet=True))
    serving, stop = start(ServerLimits(), spec.open)
    try:
        serving.wait_until(lambda: serving.server.started and serving.service.opened)
        yield serving
    finally:
        stop()


def test_a_prompt_that_is_longer(short: Serving) -> None:
    with short.http as http:
        answer = http.post("/v1/completions", json={"prompt": [5] * (LIMIT + 1)})
        assert http.get("/v1/models").json()["data"][0]["max_model_len"] == LIMIT
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert f"{LIMIT + 1} tokens long and the model has {LIMIT} positions" in error["message"]
    assert "--max-model-len" in error["message"]


def test_an_answer_ends_there(short: Serving) -> None:
    body = {"prompt": [5] * (LIMIT - 4), "ignore_eos": True, "temperature": 0}
    with short.http as http:
        made = http.post("/completion", json=body).json()
    assert (made["tokens_evaluated"], made["stop_type"]) == (LIMIT - 4, "limit")
    assert made["tokens_predicted"] in (4, 5)  # the last token takes no position
    settings = made["generation_settings"]
    assert (settings["mirostat"], settings["adaptive_target"]) == (0, -1)


def test_more_than_the_model_has_changes_nothing() -> None:
    config = load_config(DEMO_FOLDER)
    options = FLAGS.runtime_options()
    assert options.limited(config).context == LIMIT
    assert options.limited(config).context_reason == "as many as the flag allows"
    larger = FLAGS._replace(max_positions=config.context + 1).runtime_options()
    assert larger.limited(config).context == config.context
