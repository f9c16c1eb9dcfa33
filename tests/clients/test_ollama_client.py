"""The package `ollama`: chats, prompts, tools, structured output, embeddings, models, errors, cancelling."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.conftest import CITY, FRANCE, PARIS, PIXEL, TOO_LONG
from tests.serve.conftest import Serving

ollama = pytest.importorskip("ollama", reason="the extra clients is not installed: no ollama")

pytestmark = pytest.mark.slow
USER = [{"role": "user", "content": FRANCE}]
GREEDY = {"temperature": 0}


def weather(city: str) -> str:
    """What the weather is like.

    Args:
      city: The city.
    """
    return f"rain in {city}"


@pytest.fixture
def client(serving: Serving) -> Iterator[Any]:
    with ollama.Client(host=serving.url) as client:
        yield client


def test_a_chat_and_a_prompt_whole_and_streamed(client: Any) -> None:
    made = client.chat("demo", messages=USER, options=GREEDY)
    assert (made.message.content, made.done_reason) == (PARIS, "stop")
    parts = list(client.chat("demo", messages=USER, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == PARIS
    assert parts[-1].eval_count == made.eval_count
    assert client.generate("demo", FRANCE, options=GREEDY).response == PARIS


def test_a_tool_s_round_trip(client: Any) -> None:
    """A function is a tool. The API cannot require a call, so the history has one."""
    asked = [{"role": "user", "content": "Is it raining in Paris?"}]
    few = {"num_predict": 8}
    assert client.chat("demo", messages=asked, tools=[weather], options=few).done
    call = ollama.Message.ToolCall(function={"name": "weather", "arguments": {"city": "Paris"}})
    history = [
        *asked,
        ollama.Message(role="assistant", content="", tool_calls=[call]),
        {"role": "tool", "tool_name": "weather", "content": weather("Paris")},
    ]
    assert client.chat("demo", messages=history, tools=[weather], options=few).done


def test_structured_output(client: Any) -> None:
    made = client.chat("demo", messages=USER, format=CITY, options=GREEDY)
    assert json.loads(made.message.content)["city"] in ("Paris", "Rome")


def test_embeddings_and_models(client: Any) -> None:
    one, two = client.embed("demo", ["Oslo", "Rome"]).embeddings
    assert len(one) == len(two) > 0
    assert [each.model for each in client.list().models] == ["demo:latest"]
    assert client.show("demo").modelinfo["general.architecture"] == "llama"


def test_errors_have_their_status(client: Any) -> None:
    for status, words, ask in (
        (
            400,
            "prompt is too long",
            lambda: client.chat("demo", messages=[{"role": "user", "content": TOO_LONG}]),
        ),
        (404, "no model 'other'", lambda: client.chat("other", messages=USER)),
        (400, "models here read text", lambda: client.generate("demo", "x", images=[PIXEL])),
    ):
        with pytest.raises(ollama.ResponseError, match=words) as problem:
            ask()
        assert problem.value.status_code == status


def test_a_stream_that_is_closed_ends_the_answer(client: Any, serving: Serving) -> None:
    stream = client.chat("demo", messages=USER, options={"temperature": 2, "num_predict": 400}, stream=True)
    next(stream)
    stream.close()
    serving.wait_until(lambda: serving.running() == 0)


def test_answers_at_once(serving: Serving) -> None:
    async def ask() -> list[str]:
        async with ollama.AsyncClient(host=serving.url) as client:
            made = await asyncio.gather(*(client.chat("demo", USER, options=GREEDY) for _ in "abc"))
            return [each.message.content for each in made]

    assert asyncio.run(ask()) == [PARIS] * 3
