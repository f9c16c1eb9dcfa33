"""Connections: how many there are at once, and how long a client may take for each part of a request.

A client has `head_s` seconds for the head of a request and `body_s` for its body (request_guard.py), and must
take some of the response at least every `send_s` seconds; else the server closes the socket. There are at
most `connections` connections, fewer than the file descriptors of the process. When all are in use, the
server closes the connection that has been idle longest for a new one. If none is idle, the new client waits.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Collection
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from aerie.common.errors import UserError
from aerie.serve.errors import ApiError
from aerie.serve.event_stream import to_json_text
from aerie.serve.service import ServerLimits

LOG = logging.getLogger("aerie.serve")
READ_BYTES: Final = 8 * 2**10
"""Bytes of one read. A body in chunks of one byte has a thousand HTTP events in so many bytes."""
SLOW_READ_S, PAUSE_FACTOR = 0.005, 3
"""A client whose data took longer to parse is read again after PAUSE_FACTOR times as long, so that others get
their turn."""
DISCARD_S: Final = 5.0
"""Seconds in which the rest of an unread body is discarded, so that a client that still sends sees the
response."""
ACCEPT_RETRY_S, ROOM_POLL_S = 1.0, 0.05
"""Seconds until the next try to accept a connection, without file descriptors; and without room."""
RESOURCE_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
MIN_CONNECTIONS: Final = 4
STARTUP_FAILURE: Final = 3
"""The exit status if the app could not start; uvicorn's."""


def max_connections(requested: int) -> int:
    """The requested number of connections, or as many as the file descriptors of this process allow besides
    programs, slot files and compilers. Raises UserError if these are too few."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        return requested
    reserved = len(os.listdir("/proc/self/fd")) + min(256, max(24, descriptors // 4))
    if descriptors - reserved < MIN_CONNECTIONS:
        raise UserError(
            f"this process may have {descriptors} descriptors (ulimit -n), and {reserved} are for other "
            f"things than connections; allow {reserved + MIN_CONNECTIONS} or more"
        )
    return min(requested, descriptors - reserved)


class CountingTransport:
    """A transport that counts the bytes written. can_close: called before it is closed; False postpones
    that."""

    def __init__(self, transport: asyncio.Transport, can_close: Callable[[], bool]) -> None:
        self._transport, self._can_close, self._written = transport, can_close, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)

    def close(self) -> None:
        if self._can_close():
            self._transport.close()

    @property
    def bytes_taken(self) -> int:
        """Bytes that have left the write buffer."""
        return self._written - self._transport.get_write_buffer_size()


class H11Connection(h11.Connection):
    """An h11 connection that keeps the protocol error of the client."""

    error: h11.RemoteProtocolError | None = None

    def next_event(self) -> Any:
        try:
            return super().next_event()
        except h11.RemoteProtocolError as error:
            self.error = error
            raise


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """uvicorn's HTTP protocol with the time limits of this module. buffer: for reads, shared by all
    connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        app_state: Any,
        limits: ServerLimits,
        buffer: bytearray,
    ) -> None:
        super().__init__(config, state, app_state)
        self.conn: H11Connection = H11Connection(h11.SERVER, limits.header_bytes)
        self._limits, self._buffer = limits, buffer
        self._phase = ""  # what the client has to send: "head", "rest", or "" for nothing
        self._timer: asyncio.TimerHandle | None = None
        self._has_begun = self._lingers = False
        self._taken, self._taken_s = 0, self.loop.time()
        self.idle_since_s = self.loop.time()
        """When its last response was complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(CountingTransport(transport, self._can_close))  # type: ignore[arg-type]
        self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_phase("")
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        began_s = self.loop.time()
        self.data_received(bytes(self._buffer[:nbytes]))
        if (spent_s := self.loop.time() - began_s) > SLOW_READ_S and not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_later(PAUSE_FACTOR * spent_s, self._resume_reading)

    def _resume_reading(self) -> None:
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _can_close(self) -> bool:
        """Whether the socket can be closed now. A client that still sends would be reset and not see the
        response, so its data is discarded for a while first."""
        if self._lingers or self.conn.their_state not in (h11.SEND_BODY, h11.ERROR):
            return True
        self._lingers = True
        self.transport.write_eof()
        self._set_phase("rest")
        return False

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            return
        self._has_begun = True
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # invalid HTTP while a response is being sent
            self.transport.abort()
        self._update_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.idle_since_s = self.loop.time()
        self._update_timer()

    @property
    def is_idle(self) -> bool:
        """Whether no complete request is being answered."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def check_timeouts(self, now_s: float) -> None:
        """Close the connection if the client takes nothing of the response. Called about once a second."""
        taken = self.transport.bytes_taken  # type: ignore[attr-defined]
        if not self.transport.get_write_buffer_size() or taken != self._taken:
            self._taken, self._taken_s = taken, now_s
        elif now_s - self._taken_s > self._limits.send_s:
            self.transport.abort()

    def _update_timer(self) -> None:
        """Start or stop the timer for what the client has to send."""
        if self._lingers:
            return
        if self.conn.their_state is h11.IDLE:
            self._set_phase("head")
        elif self.conn.their_state is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE):
            self._set_phase("rest")
        else:
            self._set_phase("")

    def _set_phase(self, phase: str) -> None:
        if phase == self._phase:
            return
        if self._timer:
            self._timer.cancel()
        self._phase, self._timer = phase, None
        if phase:
            self._has_begun = self._has_begun and phase != "head"
            limit_s = self._limits.head_s if phase == "head" else DISCARD_S
            self._timer = self.loop.call_later(limit_s, self._on_timeout)

    def _on_timeout(self) -> None:
        if self.transport.is_closing():
            return
        if self._phase == "head" and self._has_begun:
            limit_s = self._limits.head_s
            self._refuse(ApiError(408, f"the head of the request was not there after {limit_s:g} s"))
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn if the client sent invalid HTTP."""
        error = self.conn.error
        limit, status = self._limits.header_bytes, error.error_status_hint if error else 400
        if status == 431:
            self._refuse(ApiError(431, f"the headers have more than {limit} bytes; send fewer"))
        else:
            self._refuse(ApiError(400, f"this is no request of HTTP/1.1 ({str(error or msg)[:200]})"))

    def _refuse(self, error: ApiError) -> None:
        """Send an error and close the connection: what follows on it cannot be parsed."""
        body = to_json_text(error.body).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        try:
            head = h11.Response(status_code=error.status_code, headers=[*headers.items()])
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # a response was being sent
            self.transport.abort()
        self.transport.close()


class Listener:
    """Accepts connections from a listening socket; has the interface of asyncio's servers. make: makes the
    protocol of a connection. connections: the open ones."""

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], Connection],
        connections: Collection[Any],
        limit: int,
    ) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._make = make
        self._connections = connections
        self._max_connections = limit
        self._was_logged = False
        self._task = asyncio.create_task(self._accept_all())

    def close(self) -> None:
        """Accept no more connections."""
        self._task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._task, return_exceptions=True)

    async def _accept_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                await self._on_accept_error(error)
                continue
            try:
                await self._make_room()
                await loop.connect_accepted_socket(self._make, client)
            except OSError:  # the client has disconnected
                client.close()
            except BaseException:
                client.close()
                raise

    async def _on_accept_error(self, error: OSError) -> None:
        if error.errno not in RESOURCE_ERRORS:
            return  # the client disconnected before it was accepted
        if not self._was_logged:
            self._was_logged = True
            LOG.warning("no connection can be taken now (%s); it is tried every second", error.strerror)
        await asyncio.sleep(ACCEPT_RETRY_S)

    async def _make_room(self) -> None:
        """Wait until one more connection is allowed. Closes the connection that has been idle longest, if any
        is idle."""
        while len(self._connections) >= self._max_connections:
            idle = [connection for connection in self._connections if connection.is_idle]
            if idle:
                min(idle, key=lambda connection: connection.idle_since_s).transport.abort()
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(ROOM_POLL_S)


class ListeningServer(uvicorn.Server):
    """uvicorn's server with the connections of this module."""

    def __init__(self, app: ASGIApp, limits: ServerLimits) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=round(limits.drain_s + 2),
        )
        super().__init__(config)
        self._limits = limits

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Replaces uvicorn's startup, which accepts all waiting connections at once, whatever the number of
        file descriptors."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        buffer = bytearray(READ_BYTES)

        def make() -> Connection:
            return Connection(self.config, self.server_state, self.lifespan.state, self._limits, buffer)

        connections, limit = self.server_state.connections, self._limits.connections
        self.servers = [Listener(listening, make, connections, limit) for listening in sockets or ()]  # type: ignore[misc]
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second."""
        if counter % 10 == 0:
            now_s = asyncio.get_running_loop().time()
            for each in list(self.server_state.connections):
                each.check_timeouts(now_s)  # type: ignore[union-attr]
        return await super().on_tick(counter)
