"""Loaded by pytest in another project's tests: what is passed over is skipped, with its reason.

Of llama.cpp's tests five things are changed, none of which is the server's: texts are not compared with what
its model says, nor the tokens of prompts with what its tokenizer makes of them; the settings that its tests
give llama-server at its start go with each request; names of headers are compared without case, as HTTP has
it; and the empty text at the start of a stream, which is OpenAI's, is given to them as null. Of Lemonade's, a
setting of its own is taken to be set.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import pytest

suites = importlib.import_module("suites")
SUITE = os.environ["AERIE_OUTSIDE"]
UNREAD = "text not compared"


class Length(int):
    """A number of tokens of a prompt, which another tokenizer makes another: equal to any. It is compared by
    size like others."""

    def __eq__(self, other: object) -> bool:
        _llama_cpp_read.append("length")
        return True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __add__(self, other: int) -> Length:
        return Length(int(self) + int(other))

    __hash__ = int.__hash__


def uncompared(body: Any) -> Any:
    """A body whose lengths of prompts are equal to any."""
    if isinstance(body, list):
        return [uncompared(each) for each in body]
    if not isinstance(body, dict):
        return body
    return {
        name: Length(value) if name in LENGTHS and isinstance(value, int) else uncompared(value)
        for name, value in body.items()
    }


def from_null(body: Any) -> Any:
    """An event of a stream; where it is the first of a chat, its text is null."""
    for choice in body.get("choices", ()) if isinstance(body, dict) else ():
        delta = choice.get("delta", {})
        if "role" in delta and delta.get("content") == "":
            delta["content"] = None
    return body


def _chunk_from_null(chunk: Any) -> Any:
    """The same of a chunk that the package openai has parsed."""
    for choice in getattr(chunk, "choices", ()):
        delta = getattr(choice, "delta", None)
        if delta and delta.role and delta.content == "":
            delta.content = None
    return chunk


NATIVE = ("/completion", "/completions")
LENGTHS = ("prompt_tokens", "cached_tokens", "prompt_n", "cache_n", "tokens_evaluated", "tokens_cached")
"""Fields that count the tokens of a prompt."""
ASKS = (*NATIVE, "/chat/completions", "/v1/completions", "/v1/chat/completions")


def pytest_configure(config: pytest.Config) -> None:
    (_llama_cpp if SUITE == "llama.cpp" else _lemonade)()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skips = suites.LLAMA_CPP_SKIPS if SUITE == "llama.cpp" else suites.LEMONADE_SKIPS
    for item in items:
        file, _, test = item.nodeid.partition("::")
        why = suites.reason(skips.get(file.rpartition("/")[2], {}), test.removeprefix("LLMTests::"))
        if why:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(autouse=True)
def note_texts(record_property: Callable[[str, object], None]) -> Any:
    """Notes whether a test compared a text."""
    _llama_cpp_read.clear()
    yield
    if _llama_cpp_read:
        record_property(UNREAD, len(_llama_cpp_read))


_llama_cpp_read: list[str] = []


def _llama_cpp() -> None:
    utils: Any = importlib.import_module("utils")
    structures = importlib.import_module("requests.structures")
    process = utils.ServerProcess
    whole, streamed = process.make_request, process.make_stream_request

    def not_compared(regex: str, text: str) -> bool:
        _llama_cpp_read.append(regex)
        return True

    def make_request(self: Any, method: str, path: str, data: Any = None, *more: Any, **named: Any) -> Any:
        made = whole(self, method, path, _settings(self, path, data), *more, **named)
        made.headers = structures.CaseInsensitiveDict(made.headers)
        made.body = uncompared(made.body)
        return made

    def make_stream_request(
        self: Any, method: str, path: str, data: Any = None, *more: Any, **named: Any
    ) -> Any:
        events = streamed(self, method, path, _settings(self, path, data), *more, **named)
        return (from_null(uncompared(each)) for each in events)

    openai = importlib.import_module("openai")
    chunks = openai.Stream.__iter__
    openai.Stream.__iter__ = lambda self: (_chunk_from_null(each) for each in chunks(self))

    utils.match_regex = not_compared
    process.make_request, process.make_stream_request = make_request, make_stream_request


def _settings(server: Any, path: str, data: Any) -> Any:
    """A request with what --temp, --seed and --n-predict of llama-server would add to it."""
    if path not in ASKS or not isinstance(data, dict):
        return data
    made = {"temperature": server.temperature, "seed": server.seed, **data}
    if getattr(server, "debug", None) and "chat" in path:
        made["verbose"] = True
    if server.n_predict and server.n_predict > 0:
        made.setdefault("n_predict" if path in NATIVE else "max_tokens", server.n_predict)
    return made


def _lemonade() -> None:
    capabilities = importlib.import_module("utils.capabilities")
    models = dict.fromkeys(("llm", "embedding"), suites.LEMONADE_MODEL)
    row = {"backends": [], "supports": dict(suites.SUPPORTS), "test_models": models}
    capabilities.CAPABILITIES["llm"]["aerie"] = row
    capabilities.set_current_config("aerie", None, "llm")
    requests: Any = importlib.import_module("requests")
    post = requests.post

    def is_set(url: str, *more: Any, **named: Any) -> Any:
        if not url.endswith("/internal/set"):
            return post(url, *more, **named)
        made = requests.Response()
        made.status_code, made._content = 200, b"{}"
        return made

    requests.post = is_set
