"""Server-sent events: a response that is written as its answers are made."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aerie.serve.asking import unless_gone
from aerie.serve.errors import ApiError, internal

LOG = logging.getLogger("aerie.serve")
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
HEARTBEAT = b": still at work\n\n"
"""A comment, which clients pass over."""
DONE = b"data: [DONE]\n\n"


def event(made: BaseModel | Mapping[str, Any], name: str | None = None) -> bytes:
    """With what was set of it."""
    text = made.model_dump_json(exclude_unset=True) if isinstance(made, BaseModel) else json.dumps(made)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


class EventStream(Response):
    """Writes what `events` gives. Where the client goes away, or takes nothing for `send_s`, it ends; `close`
    is called in any case."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], send_s: float, close: Callable[[], None]) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._events, self._send_s, self._close = events, send_s, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        try:
            await unless_gone(receive, self._written(send))
        except (ApiError, TimeoutError):
            return  # nobody listens
        finally:
            self._close()

    async def _written(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for each in _ended_well(self._events):
            async with asyncio.timeout(self._send_s):
                await send({"type": "http.response.body", "body": each, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _ended_well(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The status is sent long before a defect of ours shows: then the stream ends with what tells of it."""
    try:
        async for each in events:
            yield each
    except Exception:
        LOG.exception("a stream failed")
        yield event(internal().body)
