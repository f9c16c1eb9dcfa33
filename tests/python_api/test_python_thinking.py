"""Thinking in the Python API. The model is the demo with a template that opens the thinking, which a budget
ends."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerie import ChunkedLLM, Event, EventKind, Model, load
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.errors import UserError
from aerie.engine.sampler import Sampler
from aerie.engine.thinking import KNOWN_TAGS, ThinkingStart
from aerie.engine.thinking_plan import ThinkingPlan
from tests.thinking_models import OPENED

FRANCE = "What is the capital of France?"
ASKED: dict[str, Any] = {"max_tokens": 30, "thinking_budget": 5, "json_schema": {"const": "a: b"}}
SAID = '"a: b"'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(DEMO_FOLDER, tmp_path_factory.mktemp("thinking") / "thinking")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": OPENED}))
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with load(folder, backend="virtual", decode="rows") as model:
        yield model


def test_a_result_has_the_thinking_apart(model: Model) -> None:
    made = model.generate(FRANCE, **ASKED)
    assert made.thinking
    assert (made.text, str(made)) == (SAID, SAID)
    assert 5 < made.usage.reasoning_tokens < made.usage.completion_tokens
    ids = made.token_ids
    whole = model.decode(ids)
    assert whole.startswith(made.thinking)
    assert whole.endswith(f"</think>{SAID}")


def test_parts_say_which_is_which_and_pieces_are_the_text(model: Model) -> None:
    made = model.generate(FRANCE, **ASKED)
    stream = model.stream(FRANCE, **ASKED)
    parts = [*stream.parts()]
    assert all(part.thinking or part.text for part in parts)
    assert "".join(part.thinking for part in parts) == stream.thinking == made.thinking
    assert "".join(part.text for part in parts) == stream.text == SAID
    assert "".join(model.stream(FRANCE, **ASKED)) == SAID
    assert stream.result() == made.__class__(**{**vars(made), "kpis": stream.kpis, "usage": stream.usage})


def test_events_have_it(model: Model) -> None:
    events: list[Event] = []
    made = model.generate(FRANCE, on_event=events.append, **ASKED)
    assert "".join(event.thinking for event in events) == made.thinking
    assert "".join(event.text for event in events) == SAID
    assert {event.kind for event in events if event.thinking} == {EventKind.CONTINUE}


def test_asyncio(model: Model) -> None:
    async def collect() -> tuple[list[str], list[str], str]:
        stream = model.astream(FRANCE, **ASKED)
        assert stream.thinking == ""
        parts = [part async for part in stream.parts()]
        pieces = [piece async for piece in model.astream(FRANCE, **ASKED)]
        return [part.thinking for part in parts], pieces, stream.thinking

    thinking, pieces, whole = asyncio.run(collect())
    assert "".join(thinking) == whole == model.generate(FRANCE, **ASKED).thinking
    assert "".join(pieces) == SAID


def test_a_batch(model: Model) -> None:
    alone = model.generate(FRANCE, **ASKED)
    made = model.generate_batch([FRANCE, {"prompt": FRANCE, "thinking_budget": 0}], **ASKED)
    assert [each.text for each in made] == [SAID, SAID]
    assert [each.thinking for each in made] == [alone.thinking, ""]


def test_raw_text_and_what_is_continued_are_not_split(model: Model) -> None:
    made = model.generate("<think>", 6, raw=True)
    assert (made.thinking, made.usage.reasoning_tokens) == ("", 0)
    assert made.text == model.decode(made.token_ids)


def test_a_saved_answer_keeps_its_plan(model: Model, folder: Path, tmp_path: Path) -> None:
    """Cut in its thinking, and continued by another process' model: the same tokens."""
    whole = model.generate(FRANCE, **ASKED)
    with load(folder, backend="virtual") as first:
        cut = first.generate(FRANCE, **{**ASKED, "max_tokens": 3})
        first.save(tmp_path / "saved")
        rest = first.continue_answer(27).result()
        first.restore(tmp_path / "saved")
        assert first.continue_answer(27).result().token_ids == rest.token_ids
    assert cut.text == ""
    assert model.decode((*cut.token_ids, *rest.token_ids)).endswith(f"</think>{SAID}")
    assert len(whole.token_ids) == len(cut.token_ids) + len(rest.token_ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thinking_budget": -1}, "thinking_budget is -1; give a number of tokens, 0 or more, or None"),
        ({"thinking_budget": "5"}, "thinking_budget is '5', of the type str; give a whole number, or None"),
        (
            {"thinking_budget": 5, "raw": True},
            "thinking_budget is for answers in the chat template, which raw",
        ),
    ],
    ids=str,
)
def test_a_budget_that_cannot_be(model: Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        model.generate(FRANCE, **options)


def test_no_budget_for_chunks(model: Model) -> None:
    chunked = ChunkedLLM(model)
    chunk = chunked.register(FRANCE)
    with pytest.raises(
        UserError, match="thinking_budget is for answers in the chat template, and chunks are"
    ):
        chunked.generate_from_chunks([chunk], thinking_budget=5)


def test_no_budget_for_blocks() -> None:
    """A model of block diffusion has no token after which the thinking ends."""
    with load("demo-diffusion", backend="virtual") as blocks:
        session = blocks.session_state.session()
        start = ThinkingStart(KNOWN_TAGS[0], is_open=True)
        plan = ThinkingPlan(start, session.tokenizer, session.model.config.vocab_size, 5)
        with pytest.raises(UserError, match="a thinking budget needs an autoregressive model"):
            session.generate([1, 2], 4, Sampler(thinking=plan))
