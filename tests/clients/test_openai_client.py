"""The package `openai`: chats, streams, tools, structured output, embeddings, responses, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import CITY, FRANCE, PARIS, PIXEL, TOO_LONG
from tests.serve.conftest import Serving

pytestmark = pytest.mark.slow

USER: Any = [{"role": "user", "content": FRANCE}]
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY}}


class City(BaseModel):
    """A structured output that ends soon."""

    city: Literal["Paris", "Rome"]


@pytest.fixture
def client(serving: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(model="demo", messages=USER, temperature=0)
    assert (made.choices[0].message.content, made.choices[0].finish_reason) == (PARIS, "stop")
    with client.chat.completions.stream(model="demo", messages=USER, temperature=0) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        assert "".join(pieces) == stream.get_final_completion().choices[0].message.content == PARIS
    assert len(pieces) > 2


def test_a_tool_s_round_trip(client: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "Is it raining in Paris?"}]
    body: Any = {"model": "demo", "tools": [TOOL], "temperature": 0}
    made = client.chat.completions.create(messages=asked, tool_choice="required", **body)
    assert made.choices[0].message.tool_calls
    (call,) = made.choices[0].message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    history = [*asked, made.choices[0].message, result]
    done = client.chat.completions.create(messages=history, max_tokens=4, **body)
    assert done.usage
    assert made.usage
    assert done.usage.prompt_tokens > made.usage.prompt_tokens


def test_structured_output(client: openai.OpenAI) -> None:
    chat = client.chat.completions.parse(model="demo", messages=USER, response_format=City)
    response = client.responses.parse(model="demo", input=FRANCE, text_format=City)
    assert isinstance(chat.choices[0].message.parsed, City)
    assert isinstance(response.output_parsed, City)


def test_responses(client: openai.OpenAI) -> None:
    made = client.responses.create(model="demo", input=FRANCE, temperature=0)
    assert made.output_text == PARIS
    more = client.responses.create(
        model="demo", input="And of Spain?", previous_response_id=made.id, max_output_tokens=16
    )
    assert more.usage
    assert made.usage
    assert more.usage.input_tokens > made.usage.input_tokens
    with client.responses.stream(model="demo", input=FRANCE, temperature=0) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(pieces) == stream.get_final_response().output_text == PARIS


def test_embeddings_and_models(client: openai.OpenAI) -> None:
    made = client.embeddings.create(model="demo", input=["Oslo", "Rome"])  # asks for base64
    assert [len(each.embedding) for each in made.data] == [len(made.data[0].embedding)] * 2
    assert [each.id for each in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"


def test_errors_have_their_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt is too long") as long:
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": TOO_LONG}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="no model 'other'") as missing:
        client.chat.completions.create(model="other", messages=USER)
    assert missing.value.code == "model_not_found"
    picture: Any = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    with pytest.raises(openai.BadRequestError, match="models here read text"):
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": [picture]}])
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="demo", messages=USER, temperature=-1)


def test_a_stream_that_is_closed_ends_the_answer(client: openai.OpenAI, serving: Serving) -> None:
    stream = client.chat.completions.create(
        model="demo", messages=USER, logit_bias=serving.endless, max_tokens=400, stream=True
    )
    next(iter(stream))
    stream.close()
    serving.wait_until(lambda: serving.running() == 0)


def test_a_time_limit_ends_the_answer(client: openai.OpenAI, serving: Serving) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.05).chat.completions.create(
            model="demo", messages=USER, logit_bias=serving.endless, max_tokens=400
        )
    serving.wait_until(lambda: serving.running() == 0)


def test_answers_at_once(serving: Serving) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key="none") as client:
            create = client.chat.completions.create
            made = await asyncio.gather(*(create(model="demo", messages=USER, temperature=0) for _ in "abc"))
            return [each.choices[0].message.content for each in made]

    assert asyncio.run(ask()) == [PARIS] * 3
