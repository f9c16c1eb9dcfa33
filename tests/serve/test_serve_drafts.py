"""Guesses through the server: the tokens of an answer without them, and how many were right."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aerie import Model, load
from aerie.cli.command_line import main
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.decode_config import DecodeConfig
from aerie.engine.strategies.prefill_only import WantedRows
from aerie.engine.variant_set import ROWS
from aerie.runtime import select_backend
from aerie.serve.model_spec import ModelSpec
from aerie.serve.service import ServerLimits
from tests.serve.conftest import opened

AGAIN = "Say it again: the ant has six legs, the ant has six legs, the ant has six legs, the ant"
FRANCE = "What is the capital of France?"
USER = [{"role": "user", "content": FRANCE}]
CHAT = "/v1/chat/completions"


def details(made: Any) -> tuple[int, int]:
    """Accepted and rejected."""
    usage = made.usage.completion_tokens_details
    return usage.accepted_prediction_tokens, usage.rejected_prediction_tokens


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 0.3, "seed": 3}])
def test_lookup_changes_no_token(serving: Any, alone: Model, settings: dict[str, Any]) -> None:
    asked = {"model": "demo", "prompt": AGAIN, "max_tokens": 40, **settings}
    plain = serving.openai.completions.create(**asked)
    guessed = serving.openai.completions.create(**asked, extra_body={"draft": "lookup"})
    own = alone.generate(AGAIN, 40, raw=True, **settings)
    assert plain.choices[0].text == guessed.choices[0].text == own.text
    assert plain.usage.completion_tokens == guessed.usage.completion_tokens == len(own.token_ids)
    assert details(plain) == (0, 0)
    assert sum(details(guessed)) > 0


def test_a_prediction_is_looked_up(serving: Any, alone: Model) -> None:
    asked = {"model": "demo", "messages": USER, "temperature": 0}
    answer = alone.generate(FRANCE).text
    right = serving.openai.chat.completions.create(**asked, prediction={"type": "content", "content": answer})
    parts = [{"type": "text", "text": "The capital of France is London."}]
    wrong = serving.openai.chat.completions.create(**asked, prediction={"type": "content", "content": parts})
    none = serving.openai.chat.completions.create(
        **asked, prediction={"type": "content", "content": answer}, extra_body={"draft": "none"}
    )
    assert {each.choices[0].message.content for each in (right, wrong, none)} == {answer}
    accepted, rejected = details(right)
    assert accepted >= right.usage.completion_tokens - 3
    assert details(wrong)[1] > rejected
    assert details(none) == (0, 0)


def test_a_stream_and_the_metrics_count_guesses(serving: Any) -> None:
    def counted(kind: str) -> float:
        with serving.http as http:
            lines = http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if f'aerie_tokens_total{{kind="{kind}",' in line)

    before = counted("drafted"), counted("accepted")
    *_, last = serving.openai.completions.create(
        model="demo",
        prompt=AGAIN,
        max_tokens=40,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"draft": "lookup"},
    )
    accepted, rejected = details(last)
    assert accepted + rejected > 0
    # They are counted once the request has ended, which may be after its last byte.
    serving.wait_until(lambda: counted("drafted") - before[0] == accepted + rejected)
    serving.wait_until(lambda: counted("accepted") - before[1] == accepted)


def test_a_model_guesses_for_all_requests(starting: Any, alone: Model) -> None:
    serving = starting(ServerLimits(), partial(opened, "demo", "demo-drafter"))
    serving.wait_until(lambda: serving.service.opened)
    own = alone.generate(FRANCE).text
    for extra, guesses in (({}, True), ({"draft": "none"}, False)):
        made = serving.openai.chat.completions.create(
            model="demo", messages=USER, temperature=0, extra_body=extra
        )
        assert made.choices[0].message.content == own
        assert (details(made)[0] > 0) == guesses


def test_a_model_that_fills_blocks_in(starting: Any) -> None:
    serving = starting(ServerLimits(), partial(opened, "demo-diffusion", "lookup"))
    serving.wait_until(lambda: serving.service.opened)
    with load("demo-diffusion", backend="virtual") as alone:
        for settings in ({}, {"rule": "sequential"}, {"rule": "low_confidence_static", "steps": 2}):
            made = serving.openai.chat.completions.create(
                model="demo", messages=USER, max_tokens=24, temperature=0, extra_body=settings
            )
            assert made.choices[0].message.content == alone.generate(FRANCE, 24, **settings).text
    with serving.http as http:
        for body, param, words in (
            ({"rule": "best"}, "rule", "rule is 'best'"),
            ({"steps": 0}, "steps", "steps is 0"),
            ({"threshold": 2}, "threshold", "threshold is 2"),
            ({"entropy": -1}, "entropy", "entropy is -1"),
            ({"draft": "lookup"}, "draft", "which is for autoregressive models"),
            (
                {"prediction": {"type": "content", "content": "Paris"}},
                "prediction",
                "this model is a block diffusion model; leave it out",
            ),
        ):
            response = http.post(CHAT, json={"messages": USER, **body})
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, param), error
            assert words in error["message"]


@pytest.mark.slow
def test_after_compile_a_server_compiles_nothing(tmp_path: Path) -> None:
    """One command has all ready; a warmed server loads it, and no step of it takes one program more: with
    answers by guesses in every window, by few and many rows, and with what is read."""
    words = ["compile", "--decode", "rows", "--draft", "demo-drafter", "--cache-dir", str(tmp_path)]
    assert main(words) == 0
    output = io.StringIO()
    options = RuntimeOptions(None, select_backend("virtual"), tmp_path, decode=ROWS, kv_pool=64 * 512)
    opened = ModelSpec("demo", options, Reporter(output), "demo-drafter", load_all_programs=True).open()
    lines = [line for line in output.getvalue().splitlines() if line.startswith("programs: ")]
    assert lines
    assert all(line.startswith("programs: 0 compiled") for line in lines)
    before, scheduler, config = output.getvalue(), opened.scheduler, opened.session.model.config
    contexts = set[int]()
    try:
        for many in (1, 2, 5, 12, 32):
            sampler = Sampler(logit_bias=dict.fromkeys(config.eos_token_ids, -100.0))
            maker = DecodeConfig(draft=opened.draft).strategy_factory(config, sampler)
            asked = [
                scheduler.add_request([5 + many + n] * (3 + 37 * n % 450), 20, sampler, strategy=maker)
                for n in range(many)
            ]
            asked += [
                scheduler.add_prefill_only(
                    [5 + n] * 400, lambda rows: None, WantedRows.HIDDEN if n else WantedRows.LOGITS
                )
                for n in range(3)
            ]
            while not all(one.is_finished for one in asked):
                scheduler.step()
                contexts.update(scheduler._executor._cache.contexts)
            assert {one.error for one in asked} == {None}
        assert contexts == {512, 1024, 2048, 4096, 8192}
        assert output.getvalue() == before
    finally:
        opened.close()
