"""The front server: what it forwards to replicas, and its response if a replica is lost."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest
from starlette.types import Message, Scope

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.tokenizer import Tokenizer, load_tokenizer
from aerie.serve.app import with_guards
from aerie.serve.cli import main
from aerie.serve.prefix_affinity import prefix_keys
from aerie.serve.replica_proxy import (
    COMPLETIONS,
    CONVERSATIONS,
    LOG_MESSAGE_TYPE,
    REPLICA_LOST,
    SERVER_STOPPED,
    ReplicaProxy,
    SendToReplica,
    request_prefix_keys,
)
from aerie.serve.service import ServerLimits

JSON, SSE = b"application/json", b"text/event-stream; charset=utf-8"
LONG = "How many legs has a spider, and how many has an ant? " * 8
USER = [{"role": "user", "content": LONG}]


class FullError(Exception):
    """No replica takes more."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(DEMO_FOLDER)


def begun(kind: bytes) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}


def part(body: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def giving(*messages: Message | Exception) -> SendToReplica:
    """A replica that answers so; an exception is its end."""

    async def ask(scope: Scope, body: bytes, keys: Sequence[bytes]) -> AsyncGenerator[Message]:
        for message in messages:
            if isinstance(message, Exception):
                raise message
            yield message

    return ask


def asked(
    front: ReplicaProxy, path: str, body: bytes, meanwhile: Callable[[], Any] | None = None
) -> list[Message]:
    """All that a client is sent."""
    return asyncio.run(_asked(front, path, body, meanwhile))


async def _asked(
    front: ReplicaProxy, path: str, body: bytes, meanwhile: Callable[[], Any] | None
) -> list[Message]:
    sent: list[Message] = []
    coming: list[Message] = [{"type": "http.request", "body": body}]

    async def receive() -> Message:
        return coming.pop() if coming else await asyncio.Future[Message]()

    async def send(message: Message) -> None:
        sent.append(message)
        if meanwhile:
            meanwhile()

    headers = [(b"host", b"localhost"), (b"content-type", JSON)]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    await with_guards(front, front)(scope, receive, send)
    return sent


def front_of(tokenizer: Tokenizer, ask: SendToReplica, **limits: Any) -> ReplicaProxy:
    return ReplicaProxy(ask, tokenizer, ServerLimits(**limits), FullError)


def status_and_body(messages: Sequence[Message]) -> tuple[int, Any]:
    """The status and the body of a response."""
    return messages[0]["status"], json.loads(b"".join(each.get("body", b"") for each in messages[1:]))


def test_the_output_of_a_replica_is_forwarded_and_counted(tokenizer: Tokenizer) -> None:
    line = {
        "type": LOG_MESSAGE_TYPE,
        "model": "demo",
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "cached_tokens": 0,
        "first_token_s": 0.1,
        "finish_reasons": [],
    }
    messages = [begun(JSON), part(b"{"), line, part(b"}", more=False)]
    front = front_of(tokenizer, giving(*messages))
    assert asked(front, "/v1/completions", b"{}") == [messages[0], messages[1], messages[3]]
    text = front.metrics.text().decode()
    assert 'aerie_tokens_total{kind="made",model="demo"} 3.0' in text
    assert 'aerie_requests_total{path="/v1/completions",status="200"} 1.0' in text
    assert b"aerie_requests_total" in asked(front, "/metrics", b"")[1]["body"]


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/chat/completions", REPLICA_LOST.body),
        ("/v1/responses", REPLICA_LOST.body),
        ("/v1/messages", REPLICA_LOST.anthropic_body),
    ],
)
def test_a_replica_lost_before_its_response(tokenizer: Tokenizer, path: str, shape: Any) -> None:
    sent = asked(front_of(tokenizer, giving(RuntimeError("died"))), path, b"{}")
    assert status_and_body(sent) == (503, shape)
    assert (b"retry-after", b"1") in sent[0]["headers"]


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/chat/completions", REPLICA_LOST.body),
        ("/v1/messages", REPLICA_LOST.anthropic_body),
        (
            "/v1/responses",
            {
                "type": "error",
                "sequence_number": 1,
                "code": "replica_lost",
                "message": REPLICA_LOST.message,
                "param": None,
            },
        ),
    ],
)
def test_a_replica_lost_in_the_middle_of_a_stream(tokenizer: Tokenizer, path: str, event: Any) -> None:
    first = part(b"event: a\ndata: {}\n\n")
    *sent, last = asked(front_of(tokenizer, giving(begun(SSE), first, RuntimeError("died"))), path, b"{}")
    assert sent == [begun(SSE), first]
    assert json.loads(last["body"].partition(b"data: ")[2]) == event
    assert not last.get("more_body")


def test_a_replica_that_stops_talking_is_lost_too(tokenizer: Tokenizer) -> None:
    sent = asked(front_of(tokenizer, giving(begun(SSE), part(b"data: {}\n\n"))), "/v1/completions", b"{}")
    assert json.loads(sent[-1]["body"].removeprefix(b"data: ")) == REPLICA_LOST.body


def test_half_a_body_closes_the_connection(tokenizer: Tokenizer) -> None:
    front = front_of(tokenizer, giving(begun(JSON), part(b"{"), RuntimeError("died")))
    with pytest.raises(RuntimeError, match="a response was cut off"):
        asked(front, "/v1/completions", b"{}")


def test_no_replica_takes_more(tokenizer: Tokenizer) -> None:
    status, body = status_and_body(
        asked(front_of(tokenizer, giving(FullError()), queue=5), "/v1/completions", b"{}")
    )
    assert (status, body["error"]["code"]) == (429, "queue_full")
    expected = "every replica has as many requests as it takes, and 5 wait; try again in 1 s"
    assert body["error"]["message"] == expected


def test_unfinished_answers_end_with_an_error_when_the_server_stops(tokenizer: Tokenizer) -> None:
    closed = []

    async def ask(scope: Scope, body: bytes, keys: Sequence[bytes]) -> AsyncGenerator[Message]:
        yield begun(SSE)
        try:
            await asyncio.Future[None]()
        finally:
            closed.append(True)

    front = front_of(tokenizer, ask, drain_s=0.05)
    sent = asked(front, "/v1/completions", b"{}", meanwhile=front.drain)
    assert json.loads(sent[-1]["body"].removeprefix(b"data: ")) == SERVER_STOPPED.body
    assert closed == [True]


def test_a_client_that_goes_away_cancels_its_answer(tokenizer: Tokenizer) -> None:
    closed = []
    messages: list[Message] = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"{}"}]

    async def ask(scope: Scope, body: bytes, keys: Sequence[bytes]) -> AsyncGenerator[Message]:
        try:
            yield begun(SSE)
            await asyncio.Future[None]()
        finally:
            closed.append(body)

    async def receive() -> Message:
        if len(messages) == 1:
            await asyncio.sleep(0.05)  # after the response has begun
        return messages.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    sent: list[Message] = []
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
    asyncio.run(front_of(tokenizer, ask)(scope, receive, send))
    assert (sent, closed) == ([begun(SSE)], [b"{}"])


def test_the_request_guard_runs_before_the_replicas(tokenizer: Tokenizer) -> None:
    status, body = status_and_body(
        asked(front_of(tokenizer, giving(), api_key="key"), "/v1/completions", b"{}")
    )
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")


def test_the_keys_are_those_of_the_prompt_that_is_computed(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_chat(USER)
    assert len(prefix_keys(ids)) == 2
    for path, body in (
        ("/v1/chat/completions", {"messages": USER}),
        ("/v1/messages", {"messages": USER, "max_tokens": 5}),
        ("/v1/responses", {"input": LONG}),
        ("/v1/completions", {"prompt": ids}),
        ("/v1/completions", {"prompt": [ids, ids[5:]]}),
    ):
        assert request_prefix_keys(path, json.dumps(body).encode(), tokenizer) == prefix_keys(ids), path
    text = json.dumps({"prompt": LONG}).encode()
    assert request_prefix_keys("/v1/completions", text, tokenizer) == prefix_keys(tokenizer.encode(LONG))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"prompt": []}', b'{"messages": 3}', b"\xff"])
@pytest.mark.parametrize("path", [*CONVERSATIONS, COMPLETIONS, "/health", "/tokenize"])
def test_an_invalid_request_has_no_prefix_keys(tokenizer: Tokenizer, path: str, body: bytes) -> None:
    assert request_prefix_keys(path, body, tokenizer) == []


def test_fewer_at_most_than_at_least(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", "--replicas", "3", "--max-replicas", "2"]) == 2
    expected = "--max-replicas is 2, below --replicas, which is 3; give it more, or leave it out"
    assert expected in capsys.readouterr().err


def test_ray_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ray", "aerie.serve.replicas"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr("aerie.serve.replicas", raising=False)
    assert main(["serve", "--port", "0", "--replicas", "2"]) == 2
    expected = (
        "--replicas is 2, and Ray, which runs them, is not installed; pip install 'ray[serve]', or serve"
    )
    assert expected in capsys.readouterr().err
