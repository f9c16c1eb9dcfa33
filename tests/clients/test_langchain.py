"""LangChain's models of three APIs: chats, streams, tools, structured output, embeddings, errors."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.clients.conftest import FRANCE, PARIS, PIXEL, TOO_LONG
from tests.serve.conftest import Serving

WHY = "the extra clients is not installed: no LangChain"
exceptions = pytest.importorskip("langchain_core.exceptions", reason=WHY)
messages = pytest.importorskip("langchain_core.messages", reason=WHY)
openai = pytest.importorskip("langchain_openai", reason=WHY)
anthropic = pytest.importorskip("langchain_anthropic", reason=WHY)
ollama = pytest.importorskip("langchain_ollama", reason=WHY)

pytestmark = pytest.mark.slow
APIS = ["openai", "responses", "anthropic", "ollama"]


class City(BaseModel):
    """The city that is asked about."""

    city: Literal["Paris", "Rome"]


def weather(city: Literal["Paris", "Rome"]) -> str:
    """What the weather is like."""
    return f"rain in {city}"


def chat_model(api: str, url: str, model: str = "demo", most: int = 150) -> Any:
    if api == "ollama":
        return ollama.ChatOllama(model=model, base_url=url, temperature=0, num_predict=most)
    if api == "anthropic":
        more = {"base_url": url, "model_kwargs": {"extra_body": {"temperature": 0}}}
        return anthropic.ChatAnthropic(model=model, api_key="none", max_tokens=most, max_retries=0, **more)
    responses = {"use_responses_api": api == "responses"}
    return openai.ChatOpenAI(
        model=model,
        base_url=f"{url}/v1",
        api_key="none",
        temperature=0,
        max_tokens=most,
        max_retries=0,
        **responses,
    )


@pytest.mark.parametrize("api", APIS)
class TestApi:
    """The same of each API."""

    def test_a_chat_whole_and_streamed(self, serving: Serving, api: str) -> None:
        chat = chat_model(api, serving.url)
        made = chat.invoke(FRANCE)
        assert made.text == PARIS
        assert made.usage_metadata["output_tokens"] == 9
        assert "".join(piece.text for piece in chat.stream(FRANCE)) == PARIS

    def test_a_tool_s_round_trip(self, serving: Serving, api: str) -> None:
        """Ollama's API cannot require a call."""
        chat = chat_model(api, serving.url)
        choice = {} if api == "ollama" else {"tool_choice": "weather", "strict": True}
        made = chat.bind_tools([weather], **choice).invoke("Is it raining in Paris?")
        call = {"name": "weather", "args": {"city": "Paris"}, "id": "call_1", "type": "tool_call"}
        if api != "ollama":
            (call,) = made.tool_calls
            assert call["args"]["city"] in ("Paris", "Rome")
        history = [
            messages.HumanMessage("Is it raining in Paris?"),
            made if made.tool_calls else messages.AIMessage("", tool_calls=[call]),
            messages.ToolMessage("rain", tool_call_id=call["id"]),
        ]
        done = chat.bind_tools([weather]).invoke(history)
        assert done.usage_metadata["input_tokens"] > made.usage_metadata["input_tokens"]

    def test_structured_output(self, serving: Serving, api: str) -> None:
        chat = chat_model(api, serving.url)
        assert isinstance(chat.with_structured_output(City, method="json_schema").invoke(FRANCE), City)

    def test_errors(self, serving: Serving, api: str) -> None:
        picture = {"type": "image", "base64": PIXEL, "mime_type": "image/png"}
        asked = [messages.HumanMessage([{"type": "text", "text": "What is it?"}, picture])]
        with pytest.raises(Exception, match="models here read text"):
            chat_model(api, serving.url).invoke(asked)
        overflow = ollama_error() if api == "ollama" else exceptions.ContextOverflowError
        with pytest.raises(overflow, match="prompt is too long"):
            chat_model(api, serving.url).invoke(TOO_LONG)
        missing = ollama_error() if api == "ollama" else exceptions.ModelNotFoundError
        with pytest.raises(missing, match="no model 'other'"):
            chat_model(api, serving.url, "other").invoke(FRANCE)


def test_at_once(serving: Serving) -> None:
    """In one loop: LangChain keeps its connections for the next model with the same address."""

    async def ask() -> list[str]:
        texts = []
        for chat in (chat_model(api, serving.url) for api in APIS):
            whole = await chat.abatch([FRANCE, FRANCE])
            texts += [each.text for each in whole] + ["".join([p.text async for p in chat.astream(FRANCE)])]
        return texts

    assert asyncio.run(ask()) == [PARIS] * 3 * len(APIS)


def ollama_error() -> Any:
    return pytest.importorskip("ollama", reason=WHY).ResponseError


def test_embeddings(serving: Serving) -> None:
    """LangChain counts tokens with OpenAI's own vocabulary unless it is told not to."""
    own = openai.OpenAIEmbeddings(
        model="demo", base_url=f"{serving.url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    other = ollama.OllamaEmbeddings(model="demo", base_url=serving.url)
    vectors = own.embed_documents(["Oslo", "Rome"])
    assert other.embed_documents(["Oslo", "Rome"]) == vectors
    assert own.embed_query("Oslo") == vectors[0]


def test_a_stream_that_is_left_ends_the_answer(serving: Serving) -> None:
    chat = chat_model("openai", serving.url, most=400).bind(logit_bias=serving.endless)
    stream = chat.stream(FRANCE)
    next(stream)
    stream.close()
    serving.wait_until(lambda: serving.running() == 0)
