"""Connections: how many there are at once, and how long a client may take for each part of a request.

The rule: whoever keeps a connection does something with it. A request's head has `head_s` and its body
`body_s` (request_guard.py), and a reader takes something of what was sent at least every `send_s`; else the socket
is closed. There are `connections` at most, fewer than the process may have descriptors. When these are used
up, a new one takes the place of the one that has been without a whole request for longest, and where there is
none, it waits.
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
from aerie.serve.event_stream import as_json
from aerie.serve.service import Limits

LOG = logging.getLogger("aerie.serve")
READ_BYTES: Final = 8 * 2**10
"""That are read at once. A body in chunks of a byte is a thousand events of HTTP in so many."""
SLOW_S, REST = 0.005, 3
"""Who sends what takes longer to read is heard again after `REST` times as long: others come between."""
REST_S: Final = 5.0
"""That the rest of a body has which nobody reads any more: a client that still sends it sees the response."""
AGAIN_S, WAIT_S = 1.0, 0.05
"""After which it is tried again to take a connection, where there are no descriptors, and where there is no
room."""
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
FEWEST: Final = 4
STARTUP_FAILURE: Final = 3
"""The exit code where the app could not be started; uvicorn's."""


def room_for(wanted: int) -> int:
    """As many connections as are wanted, or as the descriptors of this process allow beside what else it
    opens: programs, files of slots, compilers. UserError where these are too few."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return wanted
    beside = len(os.listdir("/proc/self/fd")) + min(256, max(24, most // 4))
    if most - beside < FEWEST:
        raise UserError(
            f"this process may have {most} descriptors (ulimit -n), and {beside} are for other things than "
            f"connections; allow {beside + FEWEST} or more"
        )
    return min(wanted, most - beside)


class Written:
    """A transport that counts what was written to it. ends: called where it is to be closed; whether it is
    now."""

    def __init__(self, transport: asyncio.Transport, ends: Callable[[], bool]) -> None:
        self._transport, self._ends, self._written = transport, ends, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)

    def close(self) -> None:
        if self._ends():
            self._transport.close()

    @property
    def taken(self) -> int:
        """Bytes that the client's side has taken."""
        return self._written - self._transport.get_write_buffer_size()


class Http(h11.Connection):
    """h11's, which keeps what was wrong with what came."""

    wrong: h11.RemoteProtocolError | None = None

    def next_event(self) -> Any:
        try:
            return super().next_event()
        except h11.RemoteProtocolError as error:
            self.wrong = error
            raise


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """uvicorn's, with the time limits of the module. buffer: for what is read, shared by all of a loop."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, app_state: Any, limits: Limits, buffer: bytearray
    ) -> None:
        super().__init__(config, state, app_state)
        self.conn: Http = Http(h11.SERVER, limits.header_bytes)
        self._limits, self._buffer = limits, buffer
        self._phase = ""  # what the client is waited for: head, rest, or nothing
        self._timer: asyncio.TimerHandle | None = None
        self._has_begun = self._lingers = False
        self._taken, self._taken_s = 0, self.loop.time()
        self.quiet_s = self.loop.time()
        """When it last had a whole request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(Written(transport, self._ends))  # type: ignore[arg-type]
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_for("")
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        began_s = self.loop.time()
        self.data_received(bytes(self._buffer[:nbytes]))
        if (took_s := self.loop.time() - began_s) > SLOW_S and not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_later(REST * took_s, self._read_on)

    def _read_on(self) -> None:
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _ends(self) -> bool:
        """Whether the socket can be closed. A client that still sends would be reset, and would not see the
        response: what it sends is passed over for a while."""
        if self._lingers or self.conn.their_state not in (h11.SEND_BODY, h11.ERROR):
            return True
        self._lingers = True
        self.transport.write_eof()
        self._wait_for("rest")
        return False

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            return
        self._has_begun = True
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # no HTTP, while a response is on its way
            self.transport.abort()
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.quiet_s = self.loop.time()
        self._watch()

    @property
    def waits(self) -> bool:
        """Whether there is no whole request that is being answered."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def look(self, now_s: float) -> None:
        """Drop a client that takes nothing of what was sent. Called about once a second."""
        taken = self.transport.taken  # type: ignore[attr-defined]
        if not self.transport.get_write_buffer_size() or taken != self._taken:
            self._taken, self._taken_s = taken, now_s
        elif now_s - self._taken_s > self._limits.send_s:
            self.transport.abort()

    def _watch(self) -> None:
        """Give the client time for what it owes."""
        if self._lingers:
            return
        if self.conn.their_state is h11.IDLE:
            self._wait_for("head")
        elif self.conn.their_state is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE):
            self._wait_for("rest")
        else:
            self._wait_for("")

    def _wait_for(self, phase: str) -> None:
        if phase == self._phase:
            return
        if self._timer:
            self._timer.cancel()
        self._phase, self._timer = phase, None
        if phase:
            self._has_begun = self._has_begun and phase != "head"
            limit_s = self._limits.head_s if phase == "head" else REST_S
            self._timer = self.loop.call_later(limit_s, self._late)

    def _late(self) -> None:
        if self.transport.is_closing():
            return
        if self._phase == "head" and self._has_begun:
            limit_s = self._limits.head_s
            self._refuse(ApiError(408, f"the head of the request was not there after {limit_s:g} s"))
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn where what came is no HTTP."""
        wrong = self.conn.wrong
        most, status = self._limits.header_bytes, wrong.error_status_hint if wrong else 400
        if status == 431:
            self._refuse(ApiError(431, f"the headers have more than {most} bytes; send fewer"))
        else:
            self._refuse(ApiError(400, f"this is no request of HTTP/1.1 ({str(wrong or msg)[:200]})"))

    def _refuse(self, error: ApiError) -> None:
        """Tell it, and close: what comes next on this connection has no beginning."""
        body = as_json(error.body).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        try:
            head = h11.Response(status_code=error.status_code, headers=[*headers.items()])
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # a response was on its way
            self.transport.abort()
        self.transport.close()


class Door:
    """Takes connections from a socket that listens; to be closed as asyncio's servers are. make: a protocol
    for each. there: those that there are."""

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], Connection],
        there: Collection[Any],
        most: int,
    ) -> None:
        listening.setblocking(False)
        self._listening, self._make, self._there, self._most = listening, make, there, most
        self._is_told = False
        self._task = asyncio.create_task(self._take_all())

    def close(self) -> None:
        """Take no more."""
        self._task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._task, return_exceptions=True)

    async def _take_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                taken, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                await self._failed(error)
                continue
            try:
                await self._room()
                await loop.connect_accepted_socket(self._make, taken)
            except OSError:  # it is gone already
                taken.close()
            except BaseException:
                taken.close()
                raise

    async def _failed(self, error: OSError) -> None:
        if error.errno not in NO_ROOM:
            return  # the client went away before it was taken
        if not self._is_told:
            self._is_told = True
            LOG.warning("no connection can be taken now (%s); it is tried every second", error.strerror)
        await asyncio.sleep(AGAIN_S)

    async def _room(self) -> None:
        """Wait until there is room for one more, and make it where one waits for nothing but its client."""
        while len(self._there) >= self._most:
            quiet = [each for each in self._there if each.waits]
            if quiet:
                min(quiet, key=lambda each: each.quiet_s).transport.abort()
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(WAIT_S)


class Listening(uvicorn.Server):
    """uvicorn's server, with connections as above."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
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
        """As uvicorn's, which takes all that wait at once, however many descriptors there are."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        buffer = bytearray(READ_BYTES)

        def make() -> Connection:
            return Connection(self.config, self.server_state, self.lifespan.state, self._limits, buffer)

        there, most = self.server_state.connections, self._limits.connections
        self.servers = [Door(each, make, there, most) for each in sockets or ()]  # type: ignore[misc]
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % 10 == 0:
            now_s = asyncio.get_running_loop().time()
            for each in list(self.server_state.connections):
                each.look(now_s)  # type: ignore[union-attr]
        return await super().on_tick(counter)
