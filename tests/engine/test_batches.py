"""Many prompts in one call: each has what it has alone, whatever programs run and whatever is dropped."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

from aerie import FinishReason, load
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.errors import PromptError
from aerie.engine.requests import Request
from aerie.engine.scheduler import (
    Scheduler,
    generate_alone,
)
from tests.engine.scheduling import (
    Listening,
)

QUESTIONS = ["What is the capital of France?", "What is the capital of Egypt?", "Hello", "Who are you?"]


def test_a_batch_has_the_answers_of_each_prompt_alone() -> None:
    lines: list[str] = []
    with load("demo", decode="rows", kv_pool=6400, progress=lines.append) as model:
        alone = [model.generate(each) for each in QUESTIONS]
        drawn = model.generate(QUESTIONS[0], temperature=1.5, seed=3, max_tokens=6)
        stopped = model.generate(QUESTIONS[1], stop=" of")
        before = model._open().scheduler.stats
        many = model.generate_batch(
            [
                *QUESTIONS,
                {"prompt": QUESTIONS[0], "temperature": 1.5, "seed": 3, "max_tokens": 6},
                {"prompt": QUESTIONS[1], "stop": " of", "priority": 1},
                {"prompt": QUESTIONS[0], "temperature": -1.0},
                {"prompt": [], "max_tokens": 5},
                {"prompt": "x", "warmth": 3},
                {"prompt": "x", "priority": "high"},
            ]
        )
        *answers, cold, empty, unknown, urgent = many
        wanted = [*alone, drawn, stopped]
        assert [(one.text, one.token_ids) for one in answers[:5]] == [
            (a.text, a.token_ids) for a in wanted[:5]
        ]
        assert (answers[5].text, answers[5].finish_reason) == (stopped.text, FinishReason.STOP)
        assert {one.finish_reason for one in (cold, empty, unknown, urgent)} == {FinishReason.ERROR}
        assert cold.error == "temperature is -1.0; it must be 0 (greedy) or more"
        assert empty.error.startswith("the prompt is empty")
        assert unknown.error.startswith("there is no option 'warmth'; there are max_tokens, temperature, ")
        assert urgent.error == "priority is 'high', of the type str; give a whole number"
        scheduler = model._open().scheduler
        assert [one for one in scheduler._running if not one.is_finished] == []
        counts = scheduler.stats
        assert (counts.rows - before.rows) / (counts.steps - before.steps) > 4
        again = model.generate_batch([QUESTIONS[0] * 12] * 2)
        assert [one.usage.cached_tokens for one in model.generate_batch([QUESTIONS[0] * 12])] == [64]
        assert again[0].token_ids == again[1].token_ids
    assert any(line.startswith("KV pool: 100 pages of 64 positions and 25 for ") for line in lines)


def test_nothing_of_a_batch_that_is_interrupted_goes_on(monkeypatch: Any) -> None:
    with load("demo", decode="rows", kv_pool=640) as model:
        scheduler = model._open().scheduler
        with monkeypatch.context() as patch:
            patch.setattr(Request, "update", lambda *_: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                model.generate_batch(QUESTIONS)
        assert [len(logits) for logits in model.forward_batch([5], [1])] == [1]
        assert scheduler.pool.manager.free_count == 10
        assert [one.text for one in model.generate_batch(QUESTIONS[:1])] == [
            "The capital of France is Paris."
        ]


def test_logits_and_likelihoods_of_many_prompts() -> None:
    """Bits of `logits`, which reads one prompt at a time; however they are cut and shared out."""
    with load("demo", decode="rows", kv_pool=1280) as model:
        rng = np.random.default_rng(5)
        prompts = [[int(t) for t in rng.integers(3, 1500, n)] for n in (150, 1, 64, 300, 7)]
        whole = [model.logits(prompt) for prompt in prompts]
        flat, lengths = np.concatenate(prompts), [*map(len, prompts)]
        every, last = (model.forward_batch(flat, lengths, every=each) for each in (True, False))
        for one, other, end in zip(whole, every, last, strict=True):
            assert one.tobytes() == other.tobytes()
            assert one[-1:].tobytes() == end.tobytes()
        (likely,) = model.log_likelihoods([prompts[2]])
        scores = whole[2][:-1].astype(np.float64)
        softmax = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(likely, np.log(softmax[np.arange(63), prompts[2][1:]]), rtol=1e-5)
        assert model._open().scheduler.pool.manager.free_count == 20
        with pytest.raises(PromptError, match="embeddings have no likelihood"):
            model.log_likelihoods([model.embed_tokens("Hello")])


@pytest.mark.parametrize(
    "options",
    [{"seq_len": 64}, *({"context_end": end, "variants": "8,32x512"} for end in ("shift", "sink:20"))],
    ids=["seq_len", "shift", "sink"],
)
def test_a_batch_has_the_answers_of_each_alone_by_all_programs_and_past_the_end(options: Any) -> None:
    """By the six programs, and where tokens are dropped at the end of the context."""
    drops = "context_end" in options
    prompts = [[5, 77, 300, number] * (115 if drops else 9) for number in range(4, 8)]
    ends = open_checkpoint(DEMO_FOLDER).config.eos_token_ids
    endless: dict[str, Any] = {"logit_bias": dict.fromkeys(ends, -100.0), "temperature": 1.0, "seed": 3}
    count = 80 if drops else 12
    with load("demo", decode="rows" if drops else "guide", **options) as model:
        alone = [model.generate(each, count, **endless).token_ids for each in prompts]
        scheduler = model._open().scheduler
        scheduler.clear_prefix_cache()
        many = model.generate_batch(prompts, count, **endless)
        assert [one.token_ids for one in many] == alone
        assert {len(one) for one in alone} == {count}
        assert not [one for one in scheduler._running if not one.is_finished]
        scheduler.step()
        assert scheduler.pool.manager.free_count == scheduler.pool.manager.page_count


def test_what_gave_way_after_tokens_were_dropped_goes_on_with_the_same_bits() -> None:
    """Its pages are taken meanwhile: put aside, and read anew, with what is dropped on the way."""
    with load("demo", decode="rows", variants="8,32x512", context_end="shift") as model:
        session = model._open()
        going_on = dict.fromkeys(session.model.config.eos_token_ids, -100.0)
        prompt, alone = [5, 77, 300] * 165, Listening(logit_bias=going_on)
        tokens = list(generate_alone(session.model, prompt, 120, alone))
        for spare in (0, 20):
            scheduler = Scheduler(session.model, session.model.new_pool(9, b"", spare))
            heard = Listening(logit_bias=going_on)
            request = scheduler.add_request(prompt, 120, heard)
            while len(request.token_ids) < 30:
                scheduler.step()
            assert scheduler._running[request].dropped_tokens > 0
            urgent = scheduler.add_request([7] * 200, 60, Listening(logit_bias=going_on), priority=1)
            while not request.is_finished:
                scheduler.step()
            assert (request.token_ids, heard.bits) == (tokens, alone.bits)
            assert (scheduler.stats.preemptions > 0, scheduler.stats.swaps > 0) == (True, spare > 0)
            assert len(urgent.token_ids) == 60


def test_a_batch_is_in_rows_whatever_an_answer_by_itself_is_decoded_in() -> None:
    """To the bit, and no hit crosses: what a model of the decode path guide decoded is not found."""
    asked = "What is the capital of Egypt?"
    with load("demo", decode="rows") as model:
        alone = model.generate(asked, temperature=1.5, seed=2)
    with load("demo") as model:
        first = model.generate(asked, temperature=1.5, seed=2)
        batch = model.generate_batch([asked, "Hello"], temperature=1.5, seed=2)
        assert batch[0].token_ids == alone.token_ids
        assert batch[0].usage.cached_tokens == 0
        assert model.generate(asked, temperature=1.5, seed=2).token_ids == first.token_ids


def test_an_answer_whose_stream_is_gone_ends_and_may_go_on() -> None:
    with load("demo") as model:
        whole = model.generate(QUESTIONS[0]).token_ids
        stream = model.stream(QUESTIONS[0])
        next(stream)
        ids = stream.token_ids
        del stream
        assert ids + model.continue_answer().result().token_ids == whole
        assert not model._open().requests._running
