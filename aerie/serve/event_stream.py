"""How answers are sent: whole, or as server-sent events that are written while they are made."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aerie.serve.errors import ApiError, internal
from aerie.serve.output_processor import Ending, Piece
from aerie.serve.request_outputs import Asking, Whole, unless_gone

LOG = logging.getLogger("aerie.serve")
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
NOTE, LONGEST_NOTE = "X-Aerie-Note", 1000
HEARTBEAT = b": still at work\n\n"
"""A comment, which clients pass over."""
DONE = b"data: [DONE]\n\n"

Told = BaseModel | Mapping[str, Any]


class Form(Protocol):
    """How an API writes a response, whole or as events."""

    def whole(self, made: Sequence[Whole]) -> Told: ...

    def events(self, piece: Piece) -> Iterator[bytes]:
        """What is sent of a piece."""
        ...

    def last(self, endings: Mapping[int, Ending]) -> Iterator[bytes]:
        """What is sent when all answers are over."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """What is sent last where one of them failed."""
        ...


def as_json(made: Told) -> str:
    """With what was set of it."""
    if isinstance(made, BaseModel):
        return made.model_dump_json(exclude_unset=True, by_alias=True)
    return json.dumps(made)


def event(made: Told, name: str | None = None) -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {as_json(made)}\n\n".encode()


class Saying:
    """Events that differ in one text alone. They are made of the client's types once, and written with other
    texts after that, which takes a tenth of the time. make: the event of a text."""

    def __init__(self, make: Callable[[str], Told]) -> None:
        mark = secrets.token_hex(8)
        self._before, self._after = event(make(mark)).split(f'"{mark}"'.encode())

    def __call__(self, text: str) -> bytes:
        return self._before + json.dumps(text, ensure_ascii=False).encode() + self._after


def failed_event(path: str, error: ApiError, before: int) -> bytes:
    """The event that ends a stream of this address, after so many events."""
    if path == "/v1/messages":
        return event(error.anthropic, "error")
    if path == "/v1/responses":
        told = {"code": error.code, "message": error.message, "param": error.param}
        return event({"type": "error", "sequence_number": before, **told}, "error")
    return event(error.body)


def json_of(made: Told, headers: Mapping[str, str] | None = None) -> Response:
    return Response(as_json(made), headers=headers, media_type="application/json")


def noted(notes: Sequence[str]) -> dict[str, str]:
    """The header that tells what of its schemas an answer is not held to; none where it is to all."""
    if not notes:
        return {}
    told = f"not held to: {'; '.join(notes)}".encode("ascii", "backslashreplace").decode()
    short = told if len(told) <= LONGEST_NOTE else f"{told[:LONGEST_NOTE]} ..."
    return {NOTE: "".join(sign if sign.isprintable() else " " for sign in short)}


async def answered(request: Request, asking: Asking, form: Form, streams: bool, send_s: float) -> Response:
    """The response, whole or as a stream, which closes what is asked for. An error that is there before the
    first piece is raised, so that it has its status. send_s: as EventStream."""
    headers = noted(asking.notes)
    try:
        if not streams:
            made = form.whole(await unless_gone(request.receive, asking.wholes()))
            asking.close()
            return json_of(made, headers)
        first = await unless_gone(request.receive, asking.next())
        if first and first.ending and first.ending.error:
            raise first.ending.error
    except BaseException:
        asking.close()
        raise
    return EventStream(_events(asking, form, first), send_s, asking.close, headers)


async def _events(asking: Asking, form: Form, first: Piece | None) -> AsyncIterator[bytes]:
    """What is sent of each piece, all its events at once: each part that is sent wakes the client."""
    try:
        if told := b"".join(form.events(first)) if first else b"":
            yield told
        async for piece in asking.pieces():
            if piece is None:
                yield HEARTBEAT
                continue
            if piece.ending and piece.ending.error:
                yield form.failed(piece.ending.error)
                return
            if told := b"".join(form.events(piece)):
                yield told
        if told := b"".join(form.last(asking.endings)):
            yield told
    except Exception:  # the status was sent long before: the stream ends with what tells of it
        LOG.exception("a stream failed")
        yield form.failed(internal())


class EventStream(Response):
    """Writes what `events` gives. Where the client goes away, or takes nothing for `send_s`, it ends; `close`
    is called in any case."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        send_s: float,
        close: Callable[[], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers={**HEADERS, **(headers or {})})
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
        async for each in self._events:
            async with asyncio.timeout(self._send_s):
                await send({"type": "http.response.body", "body": each, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
