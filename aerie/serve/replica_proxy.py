"""The server in front of the replicas: it has the socket and the guard, and forwards each request to one of
them.

It has no model, only the tokenizer, to compute the prefix keys of a prompt. Responses are forwarded as they
come. If a replica ends during a request, the client gets an error in the format of the API: as a response if
none has started, else as the last event of the stream.
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

from aerie.engine.chat_template import MAX_CONCURRENT_RENDERS
from aerie.engine.tokenizer import Tokenizer
from aerie.serve.anthropic import MessagesRequest
from aerie.serve.chat_fields import ChatInput, ChatRequest
from aerie.serve.completion_fields import CompletionRequest
from aerie.serve.errors import ApiError, error_response
from aerie.serve.event_stream import error_event, stream_format
from aerie.serve.metrics import Metrics
from aerie.serve.ollama_fields import OllamaChatRequest
from aerie.serve.prefix_affinity import prefix_keys
from aerie.serve.request_body import LARGE_BYTES, validate_fields
from aerie.serve.request_outputs import run_unless_disconnected
from aerie.serve.responses import ResponsesRequest
from aerie.serve.service import ServerLimits

LOG = logging.getLogger("aerie.serve")
LOG_MESSAGE_TYPE: Final = "aerie.request_log"
"""The type of a replica's last message but one: fields for the log and the metrics (metrics.RequestLog)."""
SendToReplica = Callable[[Scope, bytes, Sequence[bytes]], AsyncGenerator[Message]]
"""Sends a scope, a body and prefix keys to a replica, and yields the messages of the response."""
REPLICA_LOST = ApiError(
    503,
    "the replica that generated this answer ended; send the request again to get another replica",
    code="replica_lost",
    retry_after=1,
)
SERVER_STOPPED = ApiError(503, "the server was stopped before this answer was complete", code="stopped")

CONVERSATIONS: Final[Mapping[str, TypeAdapter[Any]]] = {
    "/v1/chat/completions": TypeAdapter(ChatRequest),
    "/v1/responses": TypeAdapter(ResponsesRequest),
    "/v1/messages": TypeAdapter(MessagesRequest),
    "/api/chat": TypeAdapter(OllamaChatRequest),
}
COMPLETIONS: Final = "/v1/completions"
COMPLETION: Final = TypeAdapter(CompletionRequest)
MAX_KEYED_TOKENS: Final = 2**17
"""Tokens of a prompt that are encoded for its keys."""


class ReplicaProxy:
    """ASGI app, to be put behind a Guard. send_to_replica: cancelled by closing its generator.
    queue_full_error: what it raises if all replicas are full."""

    def __init__(
        self,
        send_to_replica: SendToReplica,
        tokenizer: Tokenizer,
        limits: ServerLimits,
        queue_full_error: type[Exception],
    ) -> None:
        self.limits = limits
        self._send_to_replica = send_to_replica
        self._tokenizer = tokenizer
        self._queue_full_error = queue_full_error
        self._tasks: set[asyncio.Task[None]] = set()
        self._encoding = ThreadPoolExecutor(MAX_CONCURRENT_RENDERS, "encoding")
        self._encoding_large = ThreadPoolExecutor(1, "encoding large")
        self._is_draining = self._is_stopped = False
        self.metrics = Metrics()
        self.metrics.set_gauges("", {"running": lambda: len(self._tasks)})

    @property
    def is_over(self) -> bool:
        """Always False: the proxy outlives its replicas."""
        return False

    def drain(self) -> None:
        """Give running requests `drain_s` seconds; then end them with an error."""
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
            body = (await receive())["body"]  # complete: the guard has read it
            try:
                await run_unless_disconnected(receive, self._tracked(scope, body, send))
            except ApiError:
                return  # the client has disconnected

    async def _tracked(self, scope: Scope, body: bytes, send: Send) -> None:
        task = asyncio.ensure_future(self._answer(scope, body, send))
        self._tasks.add(task)
        try:
            await task
        finally:
            task.cancel()
            self._tasks.discard(task)

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        response = ForwardedResponse(scope, send)
        try:
            thread = self._encoding_large if len(body) > LARGE_BYTES else self._encoding
            keys = await asyncio.get_running_loop().run_in_executor(
                thread, request_prefix_keys, scope["path"], body, self._tokenizer
            )
            async with aclosing(self._send_to_replica(_sendable(scope), body, keys)) as messages:
                async for message in messages:
                    async with asyncio.timeout(self.limits.send_s):
                        await response.forward(message)
            if not response.is_over:
                raise REPLICA_LOST
        except self._queue_full_error:
            queue = self.limits.queue
            await response.fail(
                ApiError(
                    429,
                    f"every replica has as many requests as it takes, and {queue} wait; try again in 1 s",
                    code="queue_full",
                    retry_after=1,
                )
            )
        except TimeoutError:
            return  # the client takes nothing
        except asyncio.CancelledError:
            if not self._is_stopped:
                raise
            await response.fail(SERVER_STOPPED)
        except Exception as error:
            LOG.warning("a replica was lost (%s)", type(error).__name__)
            await response.fail(REPLICA_LOST)


class ForwardedResponse:
    """The response to one client."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._has_started = self.is_over = False
        self._is_stream, self._events = False, 0

    async def forward(self, message: Message) -> None:
        """Forward a message of the replica."""
        if message["type"] == LOG_MESSAGE_TYPE:
            request_log = self._scope["state"]["request_log"]
            for name, value in message.items():
                if name != "type":
                    setattr(request_log, name, value)
            return
        if message["type"] == "http.response.start":
            self._has_started = True
            media_type = stream_format(self._scope["path"]).media_type.encode()
            self._is_stream = (b"content-type", media_type) in [
                (name, value.partition(b";")[0]) for name, value in map(tuple, message["headers"])
            ]
        else:
            self.is_over = not message.get("more_body", False)
            self._events += message.get("body", b"").startswith(b"event: ")
        await self._send(message)

    async def fail(self, error: ApiError) -> None:
        """End the response with an error. Raises RuntimeError, which closes the connection, if a response
        that is no stream has started: the client would take more bytes for a part of it."""
        if self.is_over:
            return
        path = self._scope["path"]
        if not self._has_started:
            await error_response(error, path)(self._scope, _never, self._send)
        elif self._is_stream:
            await self._send({"type": "http.response.body", "body": error_event(path, error, self._events)})
        else:
            raise RuntimeError("a response was cut off")
        self.is_over = True


def request_prefix_keys(path: str, body: bytes, tokenizer: Tokenizer) -> list[bytes]:
    """The prefix keys of the prompt in a request; an empty list if it has none or is invalid, as the replica
    reports what is wrong."""
    try:
        if path in CONVERSATIONS:
            chat: ChatInput = validate_fields(CONVERSATIONS[path], body).chat
            return prefix_keys(tokenizer.encode_chat(*chat, most=MAX_KEYED_TOKENS))
        if path == COMPLETIONS:
            (prompt, *_) = validate_fields(COMPLETION, body).prompts
            return prefix_keys(
                prompt if isinstance(prompt, list) else tokenizer.encode(prompt, most=MAX_KEYED_TOKENS)
            )
    except Exception as error:  # whatever it is, the replica reports it
        LOG.debug("a prompt has no keys (%s)", type(error).__name__)
    return []


def _sendable(scope: Scope) -> dict[str, Any]:
    """The part of a scope that another process can receive."""
    names = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path")
    values = {name: scope[name] for name in names if name in scope}
    headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    return {**values, "asgi": {"version": "3.0"}, "headers": headers, "client": scope.get("client")}


async def _never() -> Message:
    return await asyncio.Future[Message]()


async def _lifespan(receive: Receive, send: Send) -> None:
    for stage in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{stage}.complete"})
