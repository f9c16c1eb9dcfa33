"""Clients of a server, all in one process that does nothing else: streamed answers, and when they came.

Nothing is parsed while the clock runs, and what the process itself computed is told, so that it can be
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
END = b"0\r\n\r\n"
"""Of a response in chunks."""
SAID = re.compile(rb'"content": ?"[^"]')
"""The first event with a text."""
SILENCE_S = 120.0
"""After so long without a byte the server is taken for dead."""


class Came(NamedTuple):
    """Bytes of a response: when they came, and how much this process had computed by then, in seconds since
    the request was sent."""

    wall_s: float
    cpu_s: float
    bytes: bytes


class Client:
    """Of the server at `port` of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port

    def streamed(self, prompts: Sequence[str], tokens: int) -> dict[str, Any]:
        """Answers of `tokens` tokens each, asked for at once, one connection each, which is there before.

        texts: what they say. seconds: until the last one was complete. first_seconds: until the first had its
        first text. Both less what this process computed until then. Raises UserError for a refusal, and for
        an answer of another length.
        """
        requests = [self._request(prompt, tokens) for prompt in prompts]
        with contextlib.ExitStack() as stack:
            connections = [
                stack.enter_context(socket.create_connection(("127.0.0.1", self._port))) for _ in requests
            ]
            came = _exchanged(connections, requests)
        texts = [_text(b"".join(part.bytes for part in parts), tokens) for parts in came]
        ends = [parts[-1] for parts in came]
        last, first = max(ends, key=lambda part: part.wall_s), _first_said(came[0])
        return {
            "texts": texts,
            "seconds": last.wall_s - last.cpu_s,
            "first_seconds": first.wall_s - first.cpu_s,
            "cpu_seconds": last.cpu_s,
        }

    def _request(self, prompt: str, tokens: int) -> bytes:
        messages = [{"role": "user", "content": prompt}]
        asked = {"messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}
        body = json.dumps(asked).encode()
        lines = (
            f"POST {ADDRESS} HTTP/1.1",
            f"Host: 127.0.0.1:{self._port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        return "\r\n".join([*lines, "", ""]).encode() + body


def _exchanged(connections: Sequence[socket.socket], requests: Sequence[bytes]) -> list[list[Came]]:
    """Send a request on each connection, and read each response to its end. UserError where none comes."""
    came: dict[socket.socket, list[Came]] = {each: [] for each in connections}
    with selectors.DefaultSelector() as selector:
        for each in connections:
            selector.register(each, selectors.EVENT_READ)
        began, computed = time.perf_counter(), time.process_time()
        for each, request in zip(connections, requests, strict=True):
            each.sendall(request)
        while selector.get_map():
            ready = selector.select(SILENCE_S)
            if not ready:
                raise UserError(f"the server said nothing for {SILENCE_S:g} s; its log says more")
            for key, _ in ready:
                got = _read(connection := key.fileobj)  # type: ignore[arg-type]
                at = Came(time.perf_counter() - began, time.process_time() - computed, got)
                parts = came[connection]  # type: ignore[index]
                parts.append(at)
                if _is_whole(parts):
                    selector.unregister(connection)
    return list(came.values())


def _read(connection: socket.socket) -> bytes:
    got = b""
    with contextlib.suppress(ConnectionError):
        got = connection.recv(1 << 16)
    if not got:
        raise UserError("the server ended in the middle of an answer; its log says why")
    return got


def _is_whole(parts: Sequence[Came]) -> bool:
    """Whether a response is over: one in chunks by its last, a refusal by its length."""
    if parts[0].bytes.startswith(b"HTTP/1.1 200 "):
        last = parts[-1].bytes
        return (parts[-2].bytes + last if len(parts) > 1 else last).endswith(END)
    head, _, body = b"".join(part.bytes for part in parts).partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    return length is None or len(body) >= int(length[1])


def _first_said(parts: Sequence[Came]) -> Came:
    """What brought the first text. UserError where there is none."""
    whole = b""
    for part in parts:
        whole += part.bytes
        if SAID.search(whole):
            return part
    raise UserError(f"the server's answer has no text: {whole[:200]!r}")


def _text(response: bytes, tokens: int) -> str:
    """The answer that a response tells, event by event."""
    head, _, rest = response.partition(b"\r\n\r\n")
    status, _, _ = head.partition(b"\r\n")
    if not status.startswith(b"HTTP/1.1 200 "):
        raise UserError(f"the server refused ({status.decode()}): {rest[:300].decode(errors='replace')}")
    events = [json.loads(line[6:]) for line in unchunked(rest).split(b"\n") if line.startswith(b"data: {")]
    if failed := [each["error"]["message"] for each in events if "error" in each]:
        raise UserError(f"the server's answer failed: {failed[0]}")
    choices = [choice for each in events for choice in each["choices"]]
    made = events[-1].get("timings", {}).get("predicted_n")
    if made != tokens:
        raise UserError(f"an answer over HTTP has {made} tokens, and {tokens} were asked for")
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def unchunked(body: bytes) -> bytes:
    """What a body in chunks carries (RFC 9112, section 7.1)."""
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(body[:length])
        body = body[length + 2 :]
    return b"".join(parts)
