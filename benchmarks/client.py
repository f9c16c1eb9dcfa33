"""Clients of a server, all in one process that does nothing else: streamed outputs and their arrival times.

Nothing is parsed while the clock runs. The CPU time of this process is returned too, so that it can be
subtracted: on few cores a client takes time from the server that it measures.
"""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from aerie.common.errors import UserError

ADDRESS = "/v1/chat/completions"
LAST_CHUNK = b"0\r\n\r\n"
"""The last chunk of a chunked response."""
DELTA = re.compile(rb'"content": ?"[^"]')
"""Matches the first event with a text."""
SILENCE_S = 120.0
"""Seconds without a byte after which the server counts as dead."""


class Arrival(NamedTuple):
    """Bytes of a response: wall-clock and CPU seconds of this process since the request was sent."""

    wall_s: float
    cpu_s: float
    bytes: bytes


class Client:
    """A client of the server at `port` of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port

    def streamed(self, prompts: Sequence[str], tokens: int) -> dict[str, Any]:
        """Request one output of `tokens` tokens for each prompt, all at once, on connections that are open
        before.

        Returns texts; seconds until the last output was complete; first_seconds until the first text of the
        first output, both less the CPU time of this process. Raises UserError if the server refuses, or an
        output has another length.
        """
        requests = [self._request(prompt, tokens) for prompt in prompts]
        with contextlib.ExitStack() as stack:
            connections = [
                stack.enter_context(socket.create_connection(("127.0.0.1", self._port))) for _ in requests
            ]
            arrivals = _exchange(connections, requests)
        texts = [_text(b"".join(part.bytes for part in parts), tokens) for parts in arrivals]
        ends = [parts[-1] for parts in arrivals]
        last, first = max(ends, key=lambda part: part.wall_s), _first_delta(arrivals[0])
        return {
            "texts": texts,
            "seconds": last.wall_s - last.cpu_s,
            "first_seconds": first.wall_s - first.cpu_s,
            "cpu_seconds": last.cpu_s,
        }

    def _request(self, prompt: str, tokens: int) -> bytes:
        messages = [{"role": "user", "content": prompt}]
        fields = {"messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}
        body = json.dumps(fields).encode()
        lines = (
            f"POST {ADDRESS} HTTP/1.1",
            f"Host: 127.0.0.1:{self._port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        return "\r\n".join([*lines, "", ""]).encode() + body


def _exchange(connections: Sequence[socket.socket], requests: Sequence[bytes]) -> list[list[Arrival]]:
    """Send a request on each connection, and read each response to its end. Raises UserError if none
    comes."""
    arrivals: dict[socket.socket, list[Arrival]] = {connection: [] for connection in connections}
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        began, computed = time.perf_counter(), time.process_time()
        for connection, request in zip(connections, requests, strict=True):
            connection.sendall(request)
        while selector.get_map():
            ready = selector.select(SILENCE_S)
            if not ready:
                raise UserError(f"the server sent nothing for {SILENCE_S:g} s; its log has more")
            for key, _ in ready:
                data = _read(ready_socket := key.fileobj)  # type: ignore[arg-type]
                arrival = Arrival(time.perf_counter() - began, time.process_time() - computed, data)
                parts = arrivals[ready_socket]  # type: ignore[index]
                parts.append(arrival)
                if _is_complete(parts):
                    selector.unregister(ready_socket)
    return list(arrivals.values())


def _read(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        data = connection.recv(1 << 16)
    if not data:
        raise UserError("the server ended in the middle of an answer; its log has the reason")
    return data


def _is_complete(parts: Sequence[Arrival]) -> bool:
    """Whether a response is complete: a chunked one by its last chunk, a refusal by its length."""
    if parts[0].bytes.startswith(b"HTTP/1.1 200 "):
        last = parts[-1].bytes
        return (parts[-2].bytes + last if len(parts) > 1 else last).endswith(LAST_CHUNK)
    head, _, body = b"".join(part.bytes for part in parts).partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    return length is None or len(body) >= int(length[1])


def _first_delta(parts: Sequence[Arrival]) -> Arrival:
    """The arrival with the first text. Raises UserError if there is none."""
    response = b""
    for part in parts:
        response += part.bytes
        if DELTA.search(response):
            return part
    raise UserError(f"the server's answer has no text: {response[:200]!r}")


def _text(response: bytes, tokens: int) -> str:
    """The text in the events of a response."""
    head, _, rest = response.partition(b"\r\n\r\n")
    status, _, _ = head.partition(b"\r\n")
    if not status.startswith(b"HTTP/1.1 200 "):
        raise UserError(f"the server refused ({status.decode()}): {rest[:300].decode(errors='replace')}")
    events = [
        json.loads(line[6:]) for line in decode_chunked(rest).split(b"\n") if line.startswith(b"data: {")
    ]
    if errors := [event["error"]["message"] for event in events if "error" in event]:
        raise UserError(f"the server's answer failed: {errors[0]}")
    choices = [choice for event in events for choice in event["choices"]]
    tokens_made = events[-1].get("timings", {}).get("predicted_n")
    if tokens_made != tokens:
        raise UserError(f"an answer over HTTP has {tokens_made} tokens, and {tokens} were asked for")
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def decode_chunked(body: bytes) -> bytes:
    """Decode the chunked transfer coding (RFC 9112, section 7.1)."""
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(body[:length])
        body = body[length + 2 :]
    return b"".join(parts)
