"""The server before replicas: it has the socket and the guards, and hands each request to one of them.

It knows no model, but for the tokenizer, by which it finds the first pages of a prompt. What a replica
answers is sent on as it comes. Where a replica ends in the middle, its requests get an error in the shape of
the API that was asked: as a response where none has begun, else as the stream's last event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, Final

from pydantic import TypeAdapter
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from aerie.engine.chat_template import AT_ONCE
from aerie.engine.tokenizer import Tokenizer
from aerie.serve.anthropic import MessagesRequest
from aerie.serve.chat_fields import Chat, ChatRequest
from aerie.serve.common_fields import CompletionRequest
from aerie.serve.errors import ApiError, answer_of
from aerie.serve.event_stream import failed_event
from aerie.serve.metrics import Metrics
from aerie.serve.prefix_affinity import page_keys
from aerie.serve.request_body import LARGE_BYTES, validated
from aerie.serve.request_outputs import unless_gone
from aerie.serve.responses import ResponsesRequest
from aerie.serve.service import Limits

LOG = logging.getLogger("aerie.serve")
LINE: Final = "aerie.line"
"""The type of a replica's last message but one: what it knows for the log and the counts (metrics.Line)."""
Ask = Callable[[Scope, bytes, Sequence[bytes]], AsyncGenerator[Message]]
"""A request, its body and the keys of its prompt's first pages, put to a replica: the response's messages."""
LOST = ApiError(
    503,
    "the replica that made this answer ended; ask again, another takes it",
    code="replica_lost",
    retry_after=1,
)
STOPPED = ApiError(503, "the server was stopped before this answer was complete", code="stopped")

CONVERSATIONS: Final[Mapping[str, TypeAdapter[Any]]] = {
    "/v1/chat/completions": TypeAdapter(ChatRequest),
    "/v1/responses": TypeAdapter(ResponsesRequest),
    "/v1/messages": TypeAdapter(MessagesRequest),
}
COMPLETIONS: Final = "/v1/completions"
COMPLETION: Final = TypeAdapter(CompletionRequest)
MOST: Final = 2**17
"""Tokens of a prompt that is looked at."""


class Front:
    """ASGI, to stand behind a Guard. ask: puts a request to a replica, and is cancelled by closing what it
    gives. full: what `ask` raises where all replicas have as much as they take."""

    def __init__(self, ask: Ask, tokenizer: Tokenizer, limits: Limits, full: type[Exception]) -> None:
        self.limits, self._ask, self._tokenizer, self._full = limits, ask, tokenizer, full
        self._tasks: set[asyncio.Task[None]] = set()
        self._encoding = ThreadPoolExecutor(AT_ONCE, "encoding")
        self._encoding_large = ThreadPoolExecutor(1, "encoding large")
        self._is_draining = self._is_stopped = False
        self.metrics = Metrics()
        self.metrics.watch("", {"running": lambda: len(self._tasks)})

    @property
    def is_over(self) -> bool:
        """Replicas end and are started anew; the front does not end with one."""
        return False

    def drain(self) -> None:
        """Give requests under way `drain_s`; then they end with an error."""
        if not self._is_draining:
            self._is_draining = True
            asyncio.get_running_loop().call_later(self.limits.drain_s, self._stop)

    def _stop(self) -> None:
        self._is_stopped = True
        for task in self._tasks:
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _lifespan(receive, send)
        elif scope["path"] == "/metrics":
            await PlainTextResponse(self.metrics.text())(scope, receive, send)
        else:
            body = (await receive())["body"]  # whole: the guard has read it
            try:
                await unless_gone(receive, self._tracked(scope, body, send))
            except ApiError:
                return  # nobody listens

    async def _tracked(self, scope: Scope, body: bytes, send: Send) -> None:
        task = asyncio.ensure_future(self._answer(scope, body, send))
        self._tasks.add(task)
        try:
            await task
        finally:
            task.cancel()
            self._tasks.discard(task)

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        reply = Reply(scope, send)
        try:
            thread = self._encoding_large if len(body) > LARGE_BYTES else self._encoding
            keys = await asyncio.get_running_loop().run_in_executor(
                thread, keys_of, scope["path"], body, self._tokenizer
            )
            async with aclosing(self._ask(_sendable(scope), body, keys)) as messages:
                async for message in messages:
                    async with asyncio.timeout(self.limits.send_s):
                        await reply.pass_on(message)
            if not reply.is_over:
                raise LOST
        except self._full:
            most = self.limits.queue
            await reply.fail(
                ApiError(
                    429,
                    f"every replica has as many requests as it takes, and {most} wait; ask again in 1 s",
                    code="queue_full",
                    retry_after=1,
                )
            )
        except TimeoutError:
            return  # the client takes nothing
        except asyncio.CancelledError:
            if not self._is_stopped:
                raise
            await reply.fail(STOPPED)
        except Exception as error:
            LOG.warning("a replica was lost (%s)", type(error).__name__)
            await reply.fail(LOST)


class Reply:
    """What a client has been sent of a response."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._is_begun = self.is_over = False
        self._is_stream, self._events = False, 0

    async def pass_on(self, message: Message) -> None:
        """A replica's message."""
        if message["type"] == LINE:
            line = self._scope["state"]["line"]
            for name, value in message.items():
                if name != "type":
                    setattr(line, name, value)
            return
        if message["type"] == "http.response.start":
            self._is_begun = True
            self._is_stream = (b"content-type", b"text/event-stream") in [
                (name, value.partition(b";")[0]) for name, value in map(tuple, message["headers"])
            ]
        else:
            self.is_over = not message.get("more_body", False)
            self._events += message.get("body", b"").startswith(b"event: ")
        await self._send(message)

    async def fail(self, error: ApiError) -> None:
        """End it with an error. RuntimeError, by which the connection is closed, where a response that is no
        stream has begun: what is sent after would be taken for a part of it."""
        if self.is_over:
            return
        path = self._scope["path"]
        if not self._is_begun:
            await answer_of(error, path)(self._scope, _never, self._send)
        elif self._is_stream:
            await self._send({"type": "http.response.body", "body": failed_event(path, error, self._events)})
        else:
            raise RuntimeError("a response was cut off")
        self.is_over = True


def keys_of(path: str, body: bytes, tokenizer: Tokenizer) -> list[bytes]:
    """The keys of the first pages of what a request asks; none where it asks for no answer, or is wrong: the
    replica says what is wrong with it."""
    try:
        if path in CONVERSATIONS:
            chat: Chat = validated(CONVERSATIONS[path], body).chat
            return page_keys(tokenizer.encode_chat(*chat, most=MOST))
        if path == COMPLETIONS:
            (prompt, *_) = validated(COMPLETION, body).prompts
            return page_keys(prompt if isinstance(prompt, list) else tokenizer.encode(prompt, most=MOST))
    except Exception as error:  # whatever it is, the request is put to a replica
        LOG.debug("a prompt has no keys (%s)", type(error).__name__)
    return []


def _sendable(scope: Scope) -> dict[str, Any]:
    """Of a request, what another process can be told."""
    kept = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path")
    told = {name: scope[name] for name in kept if name in scope}
    headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    return {**told, "asgi": {"version": "3.0"}, "headers": headers, "client": scope.get("client")}


async def _never() -> Message:
    return await asyncio.Future[Message]()


async def _lifespan(receive: Receive, send: Send) -> None:
    for stage in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{stage}.complete"})
