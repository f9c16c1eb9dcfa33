"""Send responses, whole or as server-sent events while they are generated."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aerie.serve.errors import ApiError, internal_error, is_ollama
from aerie.serve.output_processor import FinishInfo, OutputDelta
from aerie.serve.request_outputs import CompletedOutput, RequestOutputs, run_unless_disconnected

LOG = logging.getLogger("aerie.serve")
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
NOTE_HEADER, MAX_NOTE_LENGTH = "X-Aerie-Note", 1000
DONE = b"data: [DONE]\n\n"

EventBody = BaseModel | Mapping[str, Any]


class StreamFormat(NamedTuple):
    """How an API streams. heartbeat: sent while there is nothing else; clients skip it."""

    media_type: str
    heartbeat: bytes


SERVER_SENT_EVENTS: Final = StreamFormat("text/event-stream", b": still at work\n\n")
"""Its heartbeat is a comment."""
NDJSON: Final = StreamFormat("application/x-ndjson", b" ")
"""One JSON object a line. Its heartbeat is white space before the next object, as an empty line would be read
as an object that is missing."""


def stream_format(path: str) -> StreamFormat:
    """The stream format of the API at `path`."""
    return NDJSON if is_ollama(path) else SERVER_SENT_EVENTS


class ResponseWriter(Protocol):
    """Writes responses in the format of one API, whole or as events."""

    def write_whole(self, outputs: Sequence[CompletedOutput]) -> EventBody: ...

    def delta_events(self, delta: OutputDelta) -> Iterator[bytes]:
        """The events of one delta."""
        ...

    def final_events(self, finished: Mapping[int, FinishInfo]) -> Iterator[bytes]:
        """The events after all outputs have finished."""
        ...

    def error_event(self, error: ApiError) -> bytes:
        """The last event if an output failed."""
        ...


def to_json_text(body: EventBody) -> str:
    """The body as JSON; of a pydantic model only the fields that were set."""
    if isinstance(body, BaseModel):
        return body.model_dump_json(exclude_unset=True, by_alias=True)
    return json.dumps(body)


def event(body: EventBody, name: str | None = None) -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {to_json_text(body)}\n\n".encode()


def json_line(body: Mapping[str, Any]) -> bytes:
    """A line of NDJSON."""
    return f"{json.dumps(body, ensure_ascii=False)}\n".encode()


class EventTemplate:
    """Events that differ in one text only. The client's types make the first one; the others reuse its JSON,
    which takes a tenth of the time. make: builds the event of a text."""

    def __init__(self, make: Callable[[str], EventBody]) -> None:
        mark = secrets.token_hex(8)
        self._parts = event(make(mark)).split(f'"{mark}"'.encode())

    def __call__(self, text: str) -> bytes:
        return json.dumps(text, ensure_ascii=False).encode().join(self._parts)


def error_event(path: str, error: ApiError, sequence_number: int) -> bytes:
    """The last event of a failed stream of the API at `path`. sequence_number: for /v1/responses."""
    if is_ollama(path):
        return json_line(error.ollama_body)
    if path == "/v1/messages":
        return event(error.anthropic_body, "error")
    if path == "/v1/responses":
        details = {"code": error.code, "message": error.message, "param": error.param}
        return event({"type": "error", "sequence_number": sequence_number, **details}, "error")
    return event(error.body)


def json_response(body: EventBody, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json_text(body), headers=headers, media_type="application/json")


def notes_header(notes: Sequence[str], ignored: Sequence[str] = ()) -> dict[str, str]:
    """The header that names schema keywords which are not enforced, and fields that are ignored; empty if
    there are none."""
    if not notes and not ignored:
        return {}
    parts = [f"not held to: {'; '.join(notes)}"] if notes else []
    parts += [f"ignored: {', '.join(ignored)}"] if ignored else []
    note = ". ".join(parts).encode("ascii", "backslashreplace").decode()
    short = note if len(note) <= MAX_NOTE_LENGTH else f"{note[:MAX_NOTE_LENGTH]} ..."
    return {NOTE_HEADER: "".join(char if char.isprintable() else " " for char in short)}


async def make_response(
    request: Request, outputs: RequestOutputs, writer: ResponseWriter, streams: bool, send_s: float
) -> Response:
    """Return the response, whole or as a stream, and close the outputs afterwards. Raises an error that
    occurs before the first delta, so that the response has its status. send_s: as in EventStream."""
    headers = notes_header(outputs.schema_notes, request.scope["state"].get("ignored", ()))
    kind = stream_format(request.url.path)
    try:
        if not streams:
            body = writer.write_whole(await run_unless_disconnected(request.receive, outputs.collect()))
            outputs.close()
            return json_response(body, headers)
        first = await run_unless_disconnected(request.receive, outputs.next_delta())
        if first and first.finish and first.finish.error:
            raise first.finish.error
    except BaseException:
        outputs.close()
        raise
    events = _events(outputs, writer, first, kind.heartbeat)
    return EventStream(events, send_s, outputs.close, kind.media_type, headers)


async def _events(
    outputs: RequestOutputs, writer: ResponseWriter, first: OutputDelta | None, heartbeat: bytes
) -> AsyncIterator[bytes]:
    """Yield the events of each delta in one piece: each piece that is sent wakes the client."""
    try:
        if events := b"".join(writer.delta_events(first)) if first else b"":
            yield events
        async for delta in outputs.deltas():
            if delta is None:
                yield heartbeat
                continue
            if delta.finish and delta.finish.error:
                yield writer.error_event(delta.finish.error)
                return
            if events := b"".join(writer.delta_events(delta)):
                yield events
        if events := b"".join(writer.final_events(outputs.finished)):
            yield events
    except Exception:  # the status was sent long before: the stream ends with the error
        LOG.exception("a stream failed")
        yield writer.error_event(internal_error())


class EventStream(Response):
    """A streamed response. It stops when the client disconnects or takes nothing for `send_s` seconds.
    `close` is always called."""

    def __init__(
        self,
        events: AsyncIterator[bytes],
        send_s: float,
        close: Callable[[], None],
        media_type: str = SERVER_SENT_EVENTS.media_type,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers={**HEADERS, **(headers or {})}, media_type=media_type)
        del self.headers["content-length"]
        self._events, self._send_s, self._close = events, send_s, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        try:
            await run_unless_disconnected(receive, self._written(send))
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
