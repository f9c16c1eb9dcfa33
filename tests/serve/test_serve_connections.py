"""Connections: who keeps one does something with it, and there are never more than there is room for."""

from __future__ import annotations

import json
import logging
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from aerie.common.errors import UserError
from aerie.serve import connections
from aerie.serve.service import ServerLimits
from tests.serve.conftest import PATIENCE_S, demo, start

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def quick() -> Iterator[Any]:
    """A server with short limits, which needs no model."""
    limits = ServerLimits(head_s=0.4, body_s=0.4, send_s=1.2, connections=8)
    serving, stop = start(limits, demo)
    serving.wait_until(lambda: serving.server.started and serving.service.opened)
    yield serving
    stop()


def connected(serving: Any) -> socket.socket:
    host, port = urlsplit(serving.url).netloc.split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def heard(connection: socket.socket) -> bytes:
    """All until the server closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        parts.append(b"<reset>")
    connection.close()
    return b"".join(parts)


def dripping(connection: socket.socket, more: Callable[[], bytes]) -> bytes:
    """What comes while a byte is sent now and then, until the server closes."""
    connection.settimeout(0.05)
    parts, limit = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < limit:
        try:
            connection.sendall(more())
            part = connection.recv(65536)
            if not part:
                break
            parts += part
        except TimeoutError:
            continue
        except (ConnectionResetError, BrokenPipeError):
            break
    else:
        raise AssertionError("the connection is not closed")
    connection.close()
    return parts


def test_a_head_that_does_not_come(quick: Any) -> None:
    assert heard(connected(quick)) == b""  # no request, no response
    reply = dripping(connected(quick), lambda: b"G")
    assert reply.startswith(b"HTTP/1.1 408")
    assert b"the head of the request was not there after 0.4 s" in reply


def test_a_body_that_does_not_come(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "DISCARD_S", 0.4)
    slow = connected(quick)
    slow.sendall(POST + b"Content-Length: 100\r\n\r\n")
    reply = dripping(slow, lambda: b" ")
    assert reply.startswith(b"HTTP/1.1 408")
    assert b"the body was not there after 0.4 s" in reply


def test_a_client_that_disconnects_in_a_body_sends_no_request(quick: Any, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "aerie.serve")
    gone = connected(quick)
    gone.sendall(POST + b'Content-Length: 100\r\n\r\n{"content": "x"}')
    gone.close()
    quick.wait_until(lambda: "POST /tokenize 499" in caplog.text)


def test_a_reader_of_nothing_is_dropped(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick.service, "name", "x" * 30_000_000)  # which /health tells, whole
    reader, began = connected(quick), time.monotonic()
    reader.sendall(HEAD + b"\r\n")
    there = quick.server.server_state.connections
    quick.wait_until(lambda: any(each.transport.get_write_buffer_size() for each in list(there)))
    quick.wait_until(lambda: not there)
    assert time.monotonic() - began > 1  # send_s is 1.2
    reader.close()


def test_a_reader_that_is_slow_is_not(quick: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a second, of 1.2, whenever the client takes some of the response."""
    clock, real = [0.0], connections.Connection.check_timeouts
    checked: list[tuple[float, float]] = []

    def check(connection: connections.Connection, _: float) -> None:
        real(connection, clock[0])
        if connection.transport.get_write_buffer_size():
            checked.append((clock[0], connection._taken_s))

    monkeypatch.setattr(connections.Connection, "check_timeouts", check)
    monkeypatch.setattr(quick.service, "name", "x" * 30_000_000)
    reader, received = connected(quick), bytearray()
    reader.sendall(HEAD + b"Connection: close\r\n\r\n")
    for megabytes in (2, 6, 10):  # the system's own buffers hold less than the rest
        while len(received) < megabytes * 1_000_000:
            received += reader.recv(65536)
        quick.wait_until(lambda: checked and checked[-1] == (clock[0], clock[0]))
        clock[0] += 1
    assert (received + heard(reader)).endswith(b"}")


def test_idle_connections_make_room(quick: Any) -> None:
    idle = [connected(quick) for _ in range(30)]
    with quick.http as http:
        assert http.get("/health").status_code == 200
    assert len(quick.server.server_state.connections) <= 8
    assert sum(heard(each) in (b"", b"<reset>") for each in idle) == 30


def test_where_there_are_no_descriptors_it_waits(
    quick: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(connections, "ACCEPT_RETRY_S", 0.1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [socket.socket() for _ in range(2)]
    host, port = urlsplit(quick.url).netloc.split(":")
    highest = max(each.fileno() for each in waiting)
    spare = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        with suppress(OSError):
            while True:
                spare.append(socket.socket())
        waiting[0].connect((host, int(port)))
        waiting[0].sendall(HEAD + b"Connection: close\r\n\r\n")
        quick.wait_until(lambda: "no connection can be taken now (Too many open files)" in caplog.text)
        time.sleep(0.3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    waiting[0].settimeout(PATIENCE_S)
    assert heard(waiting[0]).startswith(b"HTTP/1.1 200")
    assert caplog.text.count("no connection can be taken") == 1
    assert "Traceback" not in caplog.text
    for each in (*spare, *waiting):
        each.close()


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        (b"no HTTP\r\n\r\n", 400, "this is no request of HTTP/1.1"),
        (HEAD + b"X: " + b"x" * 70_000 + b"\r\n\r\n", 431, "32768"),
        (HEAD + b"Origin: http://[\r\n\r\n", 403, "pages of 'http://[' is not allowed"),
        (b"GET /health HTTP/1.1\r\nHost: [\r\n\r\n", 403, "Host is '['"),
        (b"GET http://localhost/health HTTP/1.1\r\nHost: other\r\n\r\n", 200, '"status":"ok"'),
        (b"GET HTTP://localhost?x=1 HTTP/1.1\r\nHost: other\r\n\r\n", 200, "<title>Aerie</title>"),
        (b"GET http://other/health HTTP/1.1\r\nHost: localhost\r\n\r\n", 403, "Host is 'other'"),
        (
            POST + b"Content-Length: 9000000\r\n\r\n" + b"x" * 9_000_000,
            413,
            "the body has 9000000 bytes or more",
        ),
    ],
)
def test_a_bad_request_gets_json(quick: Any, sent: bytes, status: int, words: str) -> None:
    connection = connected(quick)
    connection.sendall(
        sent.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) if b"HTTP/1.1" in sent else sent
    )
    head, _, body = heard(connection).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert words in (json.loads(body)["error"]["message"] if status >= 400 else body.decode())


def test_a_body_in_chunks_of_a_byte_blocks_no_other_request(quick: Any) -> None:
    chunked = connected(quick)
    body = json.dumps({"content": "x" * 60_000}).encode()
    parts = b"".join(b"1\r\n%c\r\n" % each for each in body)
    chunked.sendall(POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
    worst = 0.0
    with quick.http as http:
        for begin in range(0, len(parts), 60_000):
            chunked.sendall(parts[begin : begin + 60_000])
            began = time.process_time()  # a busy machine stretches the time on the clock, and not this
            assert http.get("/health").status_code == 200
            worst = max(worst, time.process_time() - began)
    chunked.close()
    assert worst < 1


def test_room_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    def allowed(most: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))

    allowed(resource.RLIM_INFINITY)
    assert connections.max_connections(1000) == 1000
    allowed(100_000)
    assert connections.max_connections(1000) == 1000
    allowed(1024)
    assert 400 < connections.max_connections(1000) < 1024 - 256
    allowed(10)
    with pytest.raises(
        UserError, match=r"this process may have 10 descriptors \(ulimit -n\), and \d+ are for"
    ):
        connections.max_connections(1000)
