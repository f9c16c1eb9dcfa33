"""What stands between the guard and the addresses: the model that a request names is loaded before it is
answered, and stays until it is.

Who asks for a stream has comments from the first heartbeat on, so what goes wrong after that is the stream's
last event; others have the status.
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Depends, Request
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aerie.serve.errors import ApiError
from aerie.serve.event_stream import HEADERS, HEARTBEAT, failed_event
from aerie.serve.models import Models
from aerie.serve.request_body import replayed
from aerie.serve.request_outputs import unless_gone
from aerie.serve.service import Service

MODELLESS = ("/models/", "/npu/", "/v1/load", "/v1/unload", "/v1/conversations", "/v1/responses/resp_")
"""Addresses that begin so are about models, or about what is kept, and want no model that is loaded."""


class Loading:
    """ASGI between what reads bodies (reading.py) and the app. router: the app's, by which it is known what
    there is."""

    def __init__(self, app: ASGIApp, models: Models, router: Router) -> None:
        self._app, self._models, self._router = app, models, router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._wants_model(scope):
            await self._app(scope, receive, send)
            return
        body = (await receive())["body"]
        read = scope["state"].get("read")
        service = self._models.named(_name(scope, read))
        scope["state"]["service"] = service
        reply = Reply(scope["path"], send, streams=getattr(read, "stream", False))
        self._models.hold(service)
        try:
            if service.opened is None:
                await unless_gone(receive, self._loaded(service, reply))
            await self._app(scope, replayed(body, receive), reply.send)
        except ApiError as error:
            await reply.fail(error)
        finally:
            self._models.let_go(service)

    def _wants_model(self, scope: Scope) -> bool:
        if scope["method"] != "POST" or scope["path"].startswith(MODELLESS):
            return False
        return any(route.matches(scope)[0] is Match.FULL for route in self._router.routes)

    async def _loaded(self, service: Service, reply: Reply) -> None:
        """Wait until it is loaded, with heartbeats."""
        loading = asyncio.ensure_future(self._models.loaded(service))
        try:
            while not (await asyncio.wait({loading}, timeout=self._models.limits.heartbeat_s))[0]:
                await reply.beat()
            loading.result()
        finally:
            loading.cancel()


class Reply:
    """What a client was sent. Into a stream that a heartbeat began, what the app makes is written."""

    def __init__(self, path: str, send: Send, streams: bool) -> None:
        self._path, self._send, self._streams = path, send, streams
        self._is_begun = False
        self._status, self._refusal = 0, b""

    async def beat(self) -> None:
        """Of a stream alone."""
        if not self._streams:
            return
        if not self._is_begun:
            headers = {"Content-Type": "text/event-stream; charset=utf-8", **HEADERS}
            raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
            self._is_begun = True
        await self._write(HEARTBEAT, more=True)

    async def send(self, message: Message) -> None:
        """What the app sends."""
        if not self._is_begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._status = message["status"]
        elif self._status == 200:
            await self._send(message)
        else:
            self._refusal += message.get("body", b"")
            if not message.get("more_body"):
                await self._write(failed_event(self._path, _told(self._status, self._refusal), 0))

    async def fail(self, error: ApiError) -> None:
        """End it with an error, which is raised where nothing was sent."""
        if not self._is_begun:
            raise error
        await self._write(failed_event(self._path, error, 0))

    async def _write(self, body: bytes, more: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _told(status: int, refusal: bytes) -> ApiError:
    """The error that the body of a response tells."""
    told = json.loads(refusal)["error"]
    return ApiError(status, told["message"], told.get("param"), told.get("code"))


def _name(scope: Scope, read: Any) -> str | None:
    """The model that is meant; None where none is named."""
    named: str | None = getattr(read, "model", None)
    if named is not None:
        return named
    asked = parse_qs(scope["query_string"].decode("latin-1")).get("model")
    return asked[0] if asked else None


async def _held(request: Request) -> Service:  # async, or FastAPI takes a thread to call it
    service: Service = request.state.service
    return service


async def _there(request: Request) -> Models:
    models: Models = request.app.state.models
    return models


async def _seen(request: Request, model: str | None = None) -> Service:
    return (await _there(request)).named(model)


Held = Annotated[Service, Depends(_held)]
"""The model that is asked: loaded, until the response is complete."""
Seen = Annotated[Service, Depends(_seen)]
"""The model that ?model= names, else the first, as it is."""
There = Annotated[Models, Depends(_there)]
"""All models, as they are."""
