"""LiteLLM by the providers that it has for such servers: chats, streams, tools, embeddings, typed errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.clients.conftest import CITY, FRANCE, PARIS, PIXEL, TOO_LONG
from tests.serve.conftest import Serving

litellm = pytest.importorskip("litellm", reason="the extra clients is not installed: no LiteLLM")

pytestmark = pytest.mark.slow
USER = [{"role": "user", "content": FRANCE}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
PROVIDERS = {
    "openai": "/v1",
    "hosted_vllm": "/v1",
    "text-completion-openai": "/v1",
    "anthropic": "",
    "ollama_chat": "",
    "ollama": "",
}
CHATS = ["openai", "hosted_vllm", "anthropic", "ollama_chat"]


def ask(serving: Serving, provider: str, model: str = "demo") -> dict[str, Any]:
    base = serving.url + PROVIDERS[provider]
    return {"model": f"{provider}/{model}", "api_base": base, "api_key": "none", "max_retries": 0}


@pytest.mark.parametrize("provider", CHATS)
def test_a_chat_whole_and_streamed(serving: Serving, provider: str) -> None:
    body = ask(serving, provider) | {"messages": USER, "temperature": 0, "max_tokens": 30}
    assert litellm.completion(**body).choices[0].message.content == PARIS
    parts = list(litellm.completion(**body, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == PARIS


@pytest.mark.parametrize("provider", ["text-completion-openai", "ollama"])
def test_a_prompt(serving: Serving, provider: str) -> None:
    made = litellm.completion(**ask(serving, provider), messages=USER, temperature=0, max_tokens=3)
    assert 1 <= made.usage.completion_tokens <= 3


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_tool_s_round_trip(serving: Serving, provider: str) -> None:
    """Not by hosted_vllm, which takes additionalProperties out: the demo then says more than the city."""
    asked = [{"role": "user", "content": "Is it raining in Paris?"}]
    body = ask(serving, provider) | {"tools": [TOOL], "temperature": 0, "max_tokens": 150}
    made = litellm.completion(**body, messages=asked, tool_choice="required")
    (call,) = made.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    done = litellm.completion(**body, messages=[*asked, made.choices[0].message, result])
    assert done.usage.prompt_tokens > made.usage.prompt_tokens


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "ollama_chat"])
def test_structured_output(serving: Serving, provider: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}
    body = ask(serving, provider) | {"messages": USER, "response_format": form}
    made = litellm.completion(**body, temperature=0, max_tokens=150)
    assert json.loads(made.choices[0].message.content)["city"] in ("Paris", "Rome")


def test_embeddings(serving: Serving) -> None:
    one = litellm.embedding(**ask(serving, "openai"), input=["Oslo", "Rome"]).data
    other = litellm.embedding(**ask(serving, "ollama"), input=["Oslo", "Rome"]).data
    assert [each["embedding"] for each in one] == [each["embedding"] for each in other]


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
def test_errors_have_their_types(serving: Serving, provider: str) -> None:
    long = [{"role": "user", "content": TOO_LONG}]
    with pytest.raises(litellm.ContextWindowExceededError, match="prompt is too long"):
        litellm.completion(**ask(serving, provider), messages=long)
    with pytest.raises(litellm.NotFoundError, match="no model 'other'"):
        litellm.completion(**ask(serving, provider, "other"), messages=USER)
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    with pytest.raises(litellm.BadRequestError, match="models here read text"):
        litellm.completion(**ask(serving, provider), messages=[{"role": "user", "content": [picture]}])


def test_a_time_limit_ends_the_answer(serving: Serving) -> None:
    with pytest.raises(litellm.Timeout):
        litellm.completion(
            **ask(serving, "openai"), messages=USER, logit_bias=serving.endless, max_tokens=400, timeout=0.05
        )
    serving.wait_until(lambda: serving.running() == 0)


def test_answers_at_once(serving: Serving) -> None:
    async def both() -> list[str]:
        body = {"messages": USER, "temperature": 0, "max_tokens": 30}
        made = await asyncio.gather(*(litellm.acompletion(**ask(serving, name), **body) for name in CHATS))
        return [each.choices[0].message.content for each in made]

    assert asyncio.run(both()) == [PARIS] * len(CHATS)
