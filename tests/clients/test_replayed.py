"""Requests as Open WebUI and Continue send them, made from their documentation and source: neither is run.

Open WebUI: backend/open_webui/routers/ollama.py and openai.py; Continue: core/llm/llms/Ollama.ts. Open WebUI
sends the bodies of /api/show and /api/embed without a Content-Type.
"""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tests.clients.conftest import CITY, FRANCE, PARIS
from tests.serve.conftest import Serving

pytestmark = pytest.mark.slow

USER = [{"role": "user", "content": FRANCE}]
WEB_UI = {
    "Authorization": "Bearer none",
    "X-OpenWebUI-User-Name": "a%20name",
    "X-OpenWebUI-User-Role": "admin",
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": CITY}}


def post(serving: Serving, path: str, body: dict[str, Any], **headers: str) -> httpx2.Response:
    with serving.http as http:
        done = http.post(path, content=json.dumps(body).encode(), headers=headers)
    assert done.status_code == 200, done.text
    return done


OPTIONS = {"temperature": 0, "num_predict": 30, "num_ctx": 8192, "stop": ["<|end|>"]}
"""Of Continue's requests."""


class TestOpenWebUI:
    """Its two kinds of connection."""

    def test_what_it_lists(self, serving: Serving) -> None:
        with serving.http as http:
            (model,) = http.get("/api/tags", headers=WEB_UI).json()["models"]
            assert {"name", "model", "modified_at", "size", "digest", "details"} <= set(model)
            assert http.get("/api/version", headers=WEB_UI).json()["version"].count(".") == 2
            assert http.get("/api/ps", headers=WEB_UI).json()["models"][0]["expires_at"]
            assert http.get("/v1/models", headers=WEB_UI).json()["data"][0]["id"] == "demo"
        assert post(serving, "/api/show", {"name": "demo", "model": "demo:latest"}, **WEB_UI).json()[
            "details"
        ]

    def test_a_chat(self, serving: Serving) -> None:
        options = {"temperature": 0, "num_ctx": 8192, "num_keep": 24, "num_predict": 30, "num_thread": 4}
        body = {
            "model": "demo:latest",
            "messages": USER,
            "options": options,
            "stream": True,
            "keep_alive": "5m",
        }
        done = post(serving, "/api/chat", body, **WEB_UI, **{"Content-Type": "application/json"})
        parts = [json.loads(line) for line in done.text.splitlines()]
        assert "".join(part["message"]["content"] for part in parts) == PARIS
        assert {"total_duration", "eval_count", "eval_duration", "prompt_eval_count"} <= set(parts[-1])

    def test_a_title(self, serving: Serving) -> None:
        body = {"model": "demo:latest", "messages": USER, "stream": False, "options": {"num_predict": 8}}
        done = post(serving, "/api/chat", body, **WEB_UI, **{"Content-Type": "application/json"})
        assert done.json()["done_reason"] in ("stop", "length")

    def test_documents(self, serving: Serving) -> None:
        made = post(
            serving, "/api/embed", {"model": "demo:latest", "input": ["a", "b"], "truncate": True}, **WEB_UI
        )
        assert len(made.json()["embeddings"]) == 2

    def test_openai_s_api(self, serving: Serving) -> None:
        body = {
            "model": "demo",
            "messages": USER,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
        }
        done = post(serving, "/v1/chat/completions", body, **WEB_UI, **{"Content-Type": "application/json"})
        events = [json.loads(line[6:]) for line in done.text.split("\n\n") if line[6:] not in ("", "[DONE]")]
        texts = [choice["delta"].get("content") or "" for each in events for choice in each["choices"]]
        assert ("".join(texts), events[-1]["usage"]["completion_tokens"]) == (PARIS, 9)


class TestContinue:
    """Its provider ollama."""

    def test_what_it_asks_first(self, serving: Serving) -> None:
        """It reads each line of `parameters` as a name and a value, and .Suffix in the template."""
        shown = post(serving, "/api/show", {"name": "demo"}).json()
        for line in filter(None, shown["parameters"].split("\n")):
            assert len(line.split(None, 1)) == 2
        assert ".Suffix" not in shown["template"]

    def test_a_chat(self, serving: Serving) -> None:
        body = {
            "model": "demo",
            "messages": USER,
            "options": OPTIONS,
            "keep_alive": 1800,
            "stream": True,
        }
        parts = [json.loads(line) for line in post(serving, "/api/chat", body).text.splitlines()]
        assert "".join(part["message"]["content"] for part in parts) == PARIS

    def test_a_chat_with_tools_is_not_streamed(self, serving: Serving) -> None:
        body = {"model": "demo", "messages": USER, "tools": [TOOL], "stream": False, "options": OPTIONS}
        assert (
            post(serving, "/api/chat", body | {"keep_alive": 1800}).json()["message"]["role"] == "assistant"
        )

    def test_a_completion_without_a_suffix(self, serving: Serving) -> None:
        body = {
            "model": "demo",
            "prompt": "def add(",
            "raw": True,
            "options": OPTIONS,
            "keep_alive": 1800,
        }
        parts = [json.loads(line) for line in post(serving, "/api/generate", body).text.splitlines()]
        assert parts[-1]["done"]

    def test_embeddings(self, serving: Serving) -> None:
        assert (
            len(post(serving, "/api/embed", {"model": "demo", "input": ["a"] * 64}).json()["embeddings"])
            == 64
        )

    def test_an_image_is_refused_in_words(self, serving: Serving) -> None:
        with serving.http as http:
            asked = [{"role": "user", "content": "What is it?", "images": ["aGk="]}]
            done = http.post("/api/chat", json={"model": "demo", "messages": asked})
        assert (done.status_code, "models here read text" in done.json()["error"]) == (400, True)


@pytest.mark.parametrize("path", ["/api/tags", "/v1/models"])
def test_a_key_that_nobody_asked_for_is_taken(serving: Serving, path: str) -> None:
    with serving.http as http:
        assert http.get(path, headers={"Authorization": "Bearer any"}).status_code == 200
