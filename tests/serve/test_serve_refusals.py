"""Errors of a request in OpenAI's format: status, type, field, the value and the legal values."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import httpx2
import openai
import pytest

from aerie.serve.app import make_app
from aerie.serve.models import ModelManager
from aerie.serve.service import ServedModel, ServerLimits
from tests.serve.conftest import PATIENCE_S, demo

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "Hello"}]
BODIES: list[tuple[str, dict[str, Any], str | None, str]] = [
    (CHAT, {}, "messages", "messages is missing"),
    (CHAT, {"messages": []}, "messages", "at least 1 item"),
    (CHAT, {"messages": "Hello"}, "messages", "messages is 'Hello': Input should be a valid list"),
    (
        CHAT,
        {"messages": [{"role": "robot", "content": "x"}]},
        "messages[0].role",
        "'robot': Input should be 'system'",
    ),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'robot': Input should be"),
    (
        CHAT,
        {"messages": [{"role": "user"}]},
        "messages[0]",
        "a message of the user has a content; give a text",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": 5}]},
        "messages[0].content",
        "5: Input should be a valid string",
    ),
    (CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", "lone surrogate"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content",
        "image_url",
    ),
    (
        CHAT,
        {"messages": USER, "temperature": -1},
        "temperature",
        "temperature is -1.0; it must be 0 (greedy) or more",
    ),
    (CHAT, {"messages": USER, "temperature": "hot"}, "temperature", "'hot': Input should be a valid number"),
    (CHAT, {"messages": USER, "top_p": 0}, "top_p", "top-p is 0.0; it must be above 0 and at most 1"),
    (CHAT, {"messages": USER, "top_k": -2}, "top_k", "top-k is -2; it must be 0 (all tokens) or more"),
    (CHAT, {"messages": USER, "min_p": 2}, "min_p", "min-p is 2.0; it must be from 0 (all tokens) to 1"),
    (CHAT, {"messages": USER, "presence_penalty": 3}, "presence_penalty", "it must be from -2 to 2"),
    (CHAT, {"messages": USER, "frequency_penalty": -3}, "frequency_penalty", "it must be from -2 to 2"),
    (CHAT, {"messages": USER, "repetition_penalty": 0}, "repetition_penalty", "it must be from 0.01 to 100"),
    (CHAT, {"messages": USER, "logit_bias": {"5": 101}}, "logit_bias", "it must be from -100 to 100"),
    (
        CHAT,
        {"messages": USER, "logit_bias": {"99999": 1}},
        "logit_bias",
        "the model's vocabulary has 0 to 1499",
    ),
    (
        CHAT,
        {"messages": USER, "logit_bias": {"Paris": 1}},
        None,
        "logit_bias names 'Paris'; name a token by its id",
    ),
    (
        CHAT,
        {"messages": USER, "max_tokens": 0},
        "max_tokens",
        "0: give 1 or more, or -1 for as many as the context has room for",
    ),
    (
        CHAT,
        {"messages": USER, "continue_final_message": True},
        None,
        "an answer can go on with a text of the assistant, and the last message is none; end with one",
    ),
    (
        CHAT,
        {"messages": USER, "continue_final_message": True, "add_generation_prompt": True},
        None,
        "add_generation_prompt begins a new one; give one of them",
    ),
    (
        CHAT,
        {"messages": USER, "add_generation_prompt": False},
        None,
        "answers begin where the template has the assistant begin; leave it out, or give continue",
    ),
    (CHAT, {"messages": USER, "min_tokens": 3}, "min_tokens", "take ignore_eos, or logit_bias; leave it out"),
    (
        CHAT,
        {"messages": USER, "web_search_options": {}},
        "web_search_options",
        "nothing is searched here; leave it out",
    ),
    (
        CHAT,
        {"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]},
        "messages[0].audio",
        "messages are text; leave it out",
    ),
    (
        CHAT,
        {"messages": USER, "stop_token_ids": [1500]},
        "stop_token_ids",
        "the model's tokens are 0 to 1499",
    ),
    (
        CHAT,
        {"messages": USER, "max_completion_tokens": 1.5},
        "max_completion_tokens",
        "1.5: Input should be a valid int",
    ),
    (CHAT, {"messages": USER, "n": 33}, "n", "33: Input should be less than or equal to 32"),
    (CHAT, {"messages": USER, "stop": ""}, "stop", "at least 1 character"),
    (CHAT, {"messages": USER, "stop": "x" * 1001}, "stop", "at most 1000 characters"),
    (CHAT, {"messages": USER, "logit_bias": {"9" * 5000: 1}}, None, "name a token by its id, a whole number"),
    (CHAT, {"messages": USER, "stop": ["x"] * 17}, "stop", "at most 16 items"),
    (CHAT, {"messages": USER, "top_logprobs": 3}, None, "top_logprobs is for logprobs=true; set it"),
    (
        CHAT,
        {"messages": USER, "logprobs": True, "top_logprobs": 21},
        "top_logprobs",
        "less than or equal to 20",
    ),
    (
        CHAT,
        {"messages": USER, "stream_options": {"include_usage": True}},
        None,
        "stream_options is for stream=true",
    ),
    (
        CHAT,
        {"messages": USER, "stream": True, "prompt_logprobs": 1},
        None,
        "prompt_logprobs cannot be streamed",
    ),
    (CHAT, {"messages": USER, "tools": [{"type": "function"}]}, "tools[0].function", "is missing; give it"),
    (CHAT, {"messages": USER, "modalities": ["audio"]}, "modalities", "answers are text; leave it out"),
    (CHAT, {"messages": USER, "audio": {}}, "audio", "answers are text; leave it out"),
    (CHAT, {"messages": USER, "prediction": {}}, "prediction.type", "prediction.type is missing; give it"),
    (
        CHAT,
        {"messages": USER, "prediction": {"type": "patch", "content": "x"}},
        "prediction.type",
        "'patch': Input should be 'content'",
    ),
    (CHAT, {"messages": USER, "draft": "demo"}, "draft", "'demo': Input should be 'lookup' or 'none'"),
    (
        CHAT,
        {"messages": USER, "rule": "sequential"},
        "rule",
        "rule is 'sequential', which is for models of block diffusion, and this model is autoregressive;",
    ),
    (CHAT, {"messages": USER, "threshold": "x"}, "threshold", "'x': Input should be a valid number"),
    (
        CHAT,
        {"messages": USER, "verbose": True, "stream": True},
        None,
        "verbose cannot be streamed; remove stream, or ask /apply-template",
    ),
    (CHAT, {"messages": USER, "verbosity": "low"}, "verbosity", "takes a verbosity; leave it out"),
    (
        CHAT,
        {"messages": USER, "mirostat": 2},
        "mirostat",
        "mirostat is not a field that is taken here; leave it out",
    ),
    (CHAT, {"messages": [{"role": "user", "content": "word " * 600}]}, None, "the model has 512 positions"),
    (COMPLETIONS, {}, "prompt", "prompt is missing"),
    (COMPLETIONS, {"prompt": []}, "prompt", "at least 1 item"),
    (
        COMPLETIONS,
        {"prompt": [5000]},
        "prompt",
        "prompt has 5000, and the model's tokens are 0 to 1499; send ids of its own tokenizer, from POST",
    ),
    ("/v1/embeddings", {"input": [[15339, 1917]]}, "input", "input has 15339, and the model's tokens are"),
    ("/completion", {"prompt": ["x", 1500]}, "prompt", "prompt has 1500, and the model's tokens are"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": -2}, "max_tokens", "greater than or equal to -1"),
    (
        COMPLETIONS,
        {"prompt": "x", "suffix": "y"},
        "suffix",
        "no model here fills in a gap before a suffix; leave it out",
    ),
    (
        COMPLETIONS,
        {"prompt": "x", "best_of": 3},
        None,
        "best_of is 3 and n 1; answers are not ranked: leave it out",
    ),
    (
        COMPLETIONS,
        {"prompt": ["x"] * 17, "n": 2},
        None,
        "17 prompts with n 2 are more than 32 answers; send several",
    ),
    (COMPLETIONS, {"prompt": "x", "logprobs": 21}, "logprobs", "less than or equal to 20"),
    ("/tokenize", {}, None, "give one of content, prompt and messages"),
    ("/tokenize", {"content": "a", "prompt": "b"}, None, "give one of content, prompt and messages"),
    ("/detokenize", {"tokens": [1500]}, "tokens", "tokens has 1500, and the model's tokens are 0 to 1499"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]", "-1: Input should be greater than or equal to 0"),
    ("/apply-template", {"messages": []}, "messages", "at least 1 item"),
]


def error_in(response: httpx2.Response) -> dict[str, Any]:
    """The error, whose shape is OpenAI's."""
    body = response.json()
    assert set(body) - {"models", "progress"} == {"error"}  # /health says how loading goes
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert not re.search(r"/(work|root|home|tmp|usr)/|\.py", body["error"]["message"])
    made: dict[str, Any] = body["error"]
    return made


@pytest.mark.parametrize(("path", "body", "param", "words"), BODIES)
def test_wrong_fields(serving: Any, path: str, body: dict[str, Any], param: str | None, words: str) -> None:
    import json

    with serving.http as http:
        response = http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    error = error_in(response)
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert words in error["message"]
    if param is not None:
        assert error["param"].startswith(param)


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "words"),
    [
        (
            "POST",
            CHAT,
            {"content": b"{", "headers": {"Content-Type": "application/json"}},
            400,
            "the body is no JSON",
        ),
        (
            "POST",
            CHAT,
            {"content": b"[]", "headers": {"Content-Type": "application/json"}},
            400,
            "the body is []",
        ),
        (
            "POST",
            CHAT,
            {"content": b"", "headers": {"Content-Type": "application/json"}},
            400,
            "is missing; give it",
        ),
        (
            "POST",
            CHAT,
            {"content": b"x", "headers": {"Content-Type": "text/plain"}},
            415,
            "send application/json",
        ),
        ("GET", CHAT, {}, 405, "this method is not allowed at '/v1/chat/completions'; take POST"),
        ("GET", "/v1/nothing", {}, 404, "there is no '/v1/nothing'"),
        ("GET", "/v1/models/gpt", {}, 404, "there is no model 'gpt' here; there is 'demo'"),
        ("POST", CHAT, {"json": {"model": "gpt", "messages": USER}}, 404, "there is no model 'gpt' here"),
        ("POST", COMPLETIONS, {"json": {"model": "", "prompt": "x"}}, 404, "model is empty"),
        (
            "POST",
            "/tokenize",
            {"json": {"model": "gpt", "content": "x"}},
            404,
            "there is no model 'gpt' here",
        ),
        ("GET", "/health", {"headers": {"Host": "evil.example"}}, 403, "Host is 'evil.example'"),
        (
            "GET",
            "/health",
            {"headers": {"Origin": "http://evil.example"}},
            403,
            "pages of 'http://evil.example'",
        ),
    ],
)
def test_wrong_requests(
    serving: Any, method: str, path: str, sent: dict[str, Any], status: int, words: str
) -> None:
    with serving.http as http:
        response = http.request(method, path, **sent)
    assert response.status_code == status
    assert words in error_in(response)["message"]


def test_logprobs_of_a_model_that_fills_blocks_in(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = serving.service.worker.opened.session.model.config
    monkeypatch.setitem(config.__dict__, "diffusion", object())
    with serving.http as http:
        response = http.post(CHAT, json={"messages": USER, "logprobs": True})
    assert (response.status_code, error_in(response)["param"]) == (400, "logprobs")
    assert "this model is a block diffusion model; leave it out" in error_in(response)["message"]


def test_the_official_client_knows_the_errors(serving: Any) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        serving.openai.chat.completions.create(model="gpt", messages=USER)
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.BadRequestError) as wrong:
        serving.openai.chat.completions.create(model="demo", messages=USER, temperature=-1)
    assert (wrong.value.param, wrong.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.BadRequestError) as long:
        serving.openai.completions.create(model="demo", prompt="word " * 600)
    assert long.value.code == "context_length_exceeded"


def test_a_body_that_is_too_large(serving: Any, limit: Any) -> None:
    limit(body_bytes=100)
    with serving.http as http:
        response = http.post(COMPLETIONS, json={"prompt": "x" * 100})
        assert response.status_code == 413
        assert "and 100 is the limit; send less" in error_in(response)["message"]
        parts = http.post(
            COMPLETIONS, content=iter([b"x" * 60, b"x" * 60]), headers={"Content-Type": "application/json"}
        )
        assert parts.status_code == 413
        assert http.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_headers_that_are_too_large(serving: Any) -> None:
    with serving.http as http:
        assert http.get("/health", headers={"X-Long": "x" * 100_000}).status_code == 431
    with serving.http as http:
        assert http.get("/health").status_code == 200


def test_an_api_key(serving: Any, limit: Any) -> None:
    limit(api_key="correct")
    with serving.http as http:
        for headers, words in (
            ({}, "there is no API key; send the server's"),
            ({"Authorization": "Bearer wrong"}, "the API key is wrong"),
            ({"Authorization": "Bearer correc"}, "the API key is wrong"),
            ({"X-Api-Key": "Ünsinn".encode()}, "the API key is wrong"),
        ):
            response = http.get("/v1/models", headers=headers)
            assert response.status_code == 401
            assert words in error_in(response)["message"]
            assert error_in(response)["type"] == "authentication_error"
        for headers in ({"Authorization": "Bearer correct"}, {"x-api-key": "correct"}):
            assert http.get("/v1/models", headers=headers).status_code == 200
        assert http.get("/health").status_code == 200
        assert http.get("/metrics").status_code == 401


def test_pages_of_named_origins_may_ask(serving: Any, limit: Any) -> None:
    limit(origins=("http://ours.example",))
    with serving.http as http:
        assert http.get("/health", headers={"Origin": "http://ours.example"}).status_code == 200
        assert http.get("/health", headers={"Origin": serving.url}).status_code == 200
        assert http.get("/health", headers={"Origin": "http://evil.example"}).status_code == 403


def test_cross_origin_headers() -> None:
    asked = {
        "Origin": "http://ours.example",
        "Access-Control-Request-Method": "DELETE",
        "Access-Control-Request-Headers": "authorization,x-stainless-lang",  # as OpenAI's client in browsers
    }

    async def preflight(origins: tuple[str, ...]) -> httpx2.Response:
        app = make_app(ModelManager([ServedModel("demo", demo)], ServerLimits(origins=origins)))
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.options(CHAT, headers=asked)

    allowed = asyncio.run(preflight(("http://ours.example",)))
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (
        200,
        "http://ours.example",
    )
    assert "x-stainless-lang" in allowed.headers["access-control-allow-headers"]
    assert "DELETE" in allowed.headers["access-control-allow-methods"]
    refused = asyncio.run(preflight(()))
    assert "access-control-allow-origin" not in refused.headers
    assert refused.status_code == 403


def test_while_the_model_is_loaded(starting: Any) -> None:
    go_on = threading.Event()

    def opening() -> Any:
        assert go_on.wait(PATIENCE_S)
        raise RuntimeError("cannot be read: /home/somebody/model")

    serving = starting(ServerLimits(load_wait_s=0.1), opening)
    with serving.http as http:
        for path, sent in (("/health", {}), (COMPLETIONS, {"json": {"prompt": "x"}}), ("/props", {})):
            response = http.request("POST" if sent else "GET", path, **sent)
            assert (response.status_code, error_in(response)["code"]) == (503, "loading")
            assert response.headers["retry-after"] == "2"
        assert http.get("/v1/models").json()["data"][0]["status"] == {"value": "loading"}
        go_on.set()
        serving.wait_until(lambda: serving.models.error)
    assert "cannot be read" in str(serving.models.error)
    serving.wait_until(lambda: serving.server.should_exit)
