"""The package `anthropic`: messages, streams, tools, structured output, counts, errors, cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.clients.conftest import CITY, FRANCE, PARIS, PIXEL, TOO_LONG
from tests.serve.conftest import Serving

anthropic = pytest.importorskip("anthropic", reason="the extra clients is not installed: no anthropic")

pytestmark = pytest.mark.slow
USER = [{"role": "user", "content": FRANCE}]
ASK: dict[str, Any] = {"model": "demo", "max_tokens": 150, "extra_body": {"temperature": 0}}
TOOL = {"name": "weather", "input_schema": CITY}


class City(BaseModel):
    """A structured output that ends soon."""

    city: Literal["Paris", "Rome"]


@pytest.fixture
def client(serving: Serving) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=serving.url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_whole_and_streamed(client: Any) -> None:
    made = client.messages.create(messages=USER, **ASK)
    assert (made.content[0].text, made.stop_reason) == (PARIS, "end_turn")
    with client.messages.stream(messages=USER, **ASK) as stream:
        assert "".join(stream.text_stream) == PARIS
        assert stream.get_final_message().usage.output_tokens == made.usage.output_tokens


def test_a_tool_s_round_trip(client: Any) -> None:
    asked = [{"role": "user", "content": "Is it raining in Paris?"}]
    made = client.messages.create(messages=asked, tools=[TOOL], tool_choice={"type": "any"}, **ASK)
    (use,) = made.content
    assert (made.stop_reason, use.name, use.input["city"] in ("Paris", "Rome")) == (
        "tool_use",
        "weather",
        True,
    )
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain"}
    history = [*asked, {"role": "assistant", "content": made.content}, {"role": "user", "content": [result]}]
    done = client.messages.create(messages=history, tools=[TOOL], **ASK)
    read = done.usage.input_tokens + done.usage.cache_read_input_tokens
    assert read > made.usage.input_tokens
    with client.messages.stream(
        messages=asked, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}, **ASK
    ) as stream:
        assert stream.get_final_message().content[0].input["city"] in ("Paris", "Rome")


def test_structured_output(client: Any) -> None:
    made = client.messages.parse(messages=USER, output_format=City, **ASK)
    assert isinstance(made.parsed_output, City)


def test_counts_and_models(client: Any) -> None:
    made = client.messages.create(messages=USER, **ASK)
    counted = client.messages.count_tokens(model="demo", messages=USER)
    assert counted.input_tokens == made.usage.input_tokens
    assert [each.id for each in client.models.list()] == ["demo"]
    model = client.models.retrieve("demo")
    assert (model.display_name, model.type, model.created_at.year > 2025) == ("demo", "model", True)


def test_errors_have_their_types(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(messages=[{"role": "user", "content": TOO_LONG}], **ASK)
    with pytest.raises(anthropic.NotFoundError, match="no model 'other'"):
        client.messages.create(messages=USER, **ASK | {"model": "other"})
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    picture = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    with pytest.raises(anthropic.BadRequestError, match="models here read text"):
        client.messages.create(messages=picture, **ASK)


def test_a_stream_that_is_closed_ends_the_answer(client: Any, serving: Serving) -> None:
    long = ASK | {"max_tokens": 400, "extra_body": {"temperature": 1}}
    with client.messages.stream(messages=USER, **long) as stream:
        next(iter(stream))
    serving.wait_until(lambda: serving.running() == 0)


def test_answers_at_once(serving: Serving) -> None:
    async def ask() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=serving.url, api_key="none") as client:
            create = client.messages.create
            made = await asyncio.gather(*(create(messages=USER, **ASK) for _ in "abc"))
            return [each.content[0].text for each in made]

    assert asyncio.run(ask()) == [PARIS] * 3
