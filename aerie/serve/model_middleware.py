"""ASGI middleware between the guard and the routes: it loads the model that a request names, and keeps it
loaded until the response is complete.

A client that asked for a stream gets comments while the model loads, from the first heartbeat on. An error
after that is the last event of the stream; before it, and without a stream, the response has the error's
status.
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
from aerie.serve.event_stream import HEADERS, error_event, stream_format
from aerie.serve.models import ModelManager
from aerie.serve.request_body import replay_body
from aerie.serve.request_outputs import run_unless_disconnected
from aerie.serve.service import ModelService

PATHS_WITHOUT_MODEL = (
    "/models/",
    "/npu/",
    "/v1/load",
    "/v1/unload",
    "/v1/conversations",
    "/v1/responses/resp_",
    *(f"/api/{name}" for name in ("show", "pull", "push", "create", "copy", "delete")),
)
"""Paths with these prefixes need no loaded model: they manage models or stored responses, or are refused."""


class ModelMiddleware:
    """ASGI middleware between BodyMiddleware (request_body.py) and the app. router: the routes of the app."""

    def __init__(self, app: ASGIApp, models: ModelManager, router: Router) -> None:
        self._app, self._models, self._router = app, models, router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._needs_model(scope):
            await self._app(scope, receive, send)
            return
        body = (await receive())["body"]
        read = scope["state"].get("fields")
        service = self._models.find(_model_name(scope, read))
        scope["state"]["service"] = service
        response = StreamedResponse(scope["path"], send, streams=getattr(read, "stream", False))
        self._models.acquire(service)
        try:
            if service.opened is None:
                await run_unless_disconnected(receive, self._wait_loaded(service, response))
                scope["state"]["request_log"].note_loaded()
            await self._app(scope, replay_body(body, receive), response.send)
        except ApiError as error:
            await response.fail(error)
        finally:
            self._models.release(service)

    def _needs_model(self, scope: Scope) -> bool:
        if scope["method"] != "POST" or scope["path"].startswith(PATHS_WITHOUT_MODEL):
            return False
        if getattr(scope["state"].get("fields"), "needs_no_model", False):
            return False
        return any(route.matches(scope)[0] is Match.FULL for route in self._router.routes)

    async def _wait_loaded(self, service: ModelService, response: StreamedResponse) -> None:
        """Wait until the model is loaded, with heartbeats."""
        loading = asyncio.ensure_future(self._models.wait_loaded(service))
        try:
            while not (await asyncio.wait({loading}, timeout=self._models.limits.heartbeat_s))[0]:
                await response.send_heartbeat()
            loading.result()
        finally:
            loading.cancel()


class StreamedResponse:
    """The response to one client. If a heartbeat started the stream, the app's response continues it."""

    def __init__(self, path: str, send: Send, streams: bool) -> None:
        self._path, self._send, self._streams = path, send, streams
        self._format = stream_format(path)
        self._has_started = False
        self._status, self._refusal = 0, b""

    async def send_heartbeat(self) -> None:
        """Send a comment. Does nothing unless the client asked for a stream."""
        if not self._streams:
            return
        if not self._has_started:
            headers = {"Content-Type": f"{self._format.media_type}; charset=utf-8", **HEADERS}
            raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
            self._has_started = True
        await self._write(self._format.heartbeat, more=True)

    async def send(self, message: Message) -> None:
        """Forward a message of the app. An error response becomes the last event of a started stream."""
        if not self._has_started:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._status = message["status"]
        elif self._status == 200:
            await self._send(message)
        else:
            self._refusal += message.get("body", b"")
            if not message.get("more_body"):
                await self._write(error_event(self._path, _parse_error(self._status, self._refusal), 0))

    async def fail(self, error: ApiError) -> None:
        """End the stream with an error event. Raises the error if nothing was sent yet."""
        if not self._has_started:
            raise error
        await self._write(error_event(self._path, error, 0))

    async def _write(self, body: bytes, more: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _parse_error(status: int, body: bytes) -> ApiError:
    """The ApiError in the body of an error response."""
    error = json.loads(body)["error"]
    if isinstance(error, str):
        return ApiError(status, error)
    return ApiError(status, error["message"], error.get("param"), error.get("code"))


def _model_name(scope: Scope, read: Any) -> str | None:
    """The model that the body or the query names; None if neither does."""
    name: str | None = getattr(read, "model", None)
    if name is not None:
        return name
    query = parse_qs(scope["query_string"].decode("latin-1")).get("model")
    return query[0] if query else None


async def _loaded_service(request: Request) -> ModelService:  # async, or FastAPI takes a thread to call it
    service: ModelService = request.state.service
    return service


async def _all_models(request: Request) -> ModelManager:
    models: ModelManager = request.app.state.models
    return models


async def _named_service(request: Request, model: str | None = None) -> ModelService:
    return (await _all_models(request)).find(model)


LoadedService = Annotated[ModelService, Depends(_loaded_service)]
"""The model of the request. It stays loaded until the response is complete."""
NamedService = Annotated[ModelService, Depends(_named_service)]
"""The model that ?model= names, else the default model, loaded or not."""
AllModels = Annotated[ModelManager, Depends(_all_models)]
"""The manager of all models."""
