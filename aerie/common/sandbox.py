"""Calls on untrusted text in a child process, with limits of time, memory, stack and output.

A checkpoint's chat template or a request's grammar may loop, allocate a terabyte, or end its process, and no
thread can be stopped from outside. So a `BoundedProcess` calls functions of a module in a child process. The
child ends at its limit and is replaced at the next call. Both ends exchange only JSON, so a child can give
its parent nothing but data.

The child is this file, run as a module: a new interpreter. Unlike a forked one it shares neither locks nor
threads with its parent.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from aerie import rooms
from aerie.common.errors import UserError

LENGTH = struct.Struct("<Q")
"""The length of a message in bytes, before each message."""

MAX_REASON_LENGTH, MAX_TRACE_LENGTH = 200, 4000
"""Maximum characters of an exception's message, and of its traceback."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call in the child process.

    cpu_s: CPU seconds. wait_s: wall-clock seconds. memory_bytes: memory beside that before the first call.
    stack_bytes: stack of the thread of the call. output_bytes: size of the result as JSON.
    begin_s: wall-clock seconds of the initialization, which has no other limit.
    """

    cpu_s: float = 2.0
    wait_s: float = 30.0
    memory_bytes: int = 512 << 20
    stack_bytes: int = 8 << 20
    output_bytes: int = 16 << 20
    begin_s: float = 120.0


class BoundedError(UserError):
    """A call without a result. The message is one line with the reason, without a full stop."""


class BeginningError(BoundedError):
    """The child's initialization failed, so the call did not run."""


class OverLimitError(BoundedError):
    """A call reached a limit, or ended its process."""


class InterruptedCallError(OverLimitError):
    """A call was stopped, perhaps not by its own fault: it took more than wait_s on a machine that may be
    busy, or its process was killed."""


class RaisedError(BoundedError):
    """The function raised an exception, of the class `kind`. trace: the end of its traceback, for a log."""

    def __init__(self, kind: str, message: str, trace: str) -> None:
        super().__init__(message or kind)
        self.kind, self.trace = kind, trace


class BoundedProcess:
    """Calls functions of a module in child processes. Any thread may call; `most` calls run side by side, so
    that one that takes all of its time holds no other.

    module: by its name, imported in the child alone. Its functions take and give what JSON can say.
    beginning: a function of the module and its arguments, called once in each child, before its first call;
    what it gives stays there, and has the functions that are called, in place of the module.
    """

    def __init__(
        self,
        module: str,
        limits: Limits = Limits(),
        most: int = 4,
        initialization: tuple[str, list[Any]] | None = None,
    ) -> None:
        self._module, self._limits = module, limits
        self._initialization = _packed(initialization) if initialization else b""
        self._turns = threading.BoundedSemaphore(most)
        self._idle: list[_Child] = []

    def warm(self) -> None:
        """Start a child now, in the background, so that the first call does not wait for it."""
        if not self._idle:
            self._idle.append(_Child(self._module, self._limits, self._initialization))

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the module; returns its result.

        Raises RaisedError if the function raises, OverLimitError if it reaches a limit, BeginningError if the
        child's initialization fails.
        """
        try:
            message = _packed([function, arguments])
        except RecursionError:
            raise OverLimitError("its input is nested too deeply") from None
        except (TypeError, ValueError) as error:
            raise OverLimitError(f"its input has a value that JSON cannot represent: {error}") from None
        with self._turns, self._child() as child:
            return child.call(message)

    @contextlib.contextmanager
    def _child(self) -> Iterator[_Child]:
        """An idle child. It is reused after the call unless the call ended it."""
        child = None
        with contextlib.suppress(IndexError):
            while child is None or child.is_over:
                child = self._idle.pop()
        if child is None or child.is_over:
            child = _Child(self._module, self._limits, self._initialization)
        try:
            yield child
        except RaisedError:
            self._idle.append(child)
            raise
        except BaseException:
            child.end()
            raise
        self._idle.append(child)


class _Child:
    """The parent's end of a child. beginning: the message that it is first sent, if any."""

    def __init__(self, module: str, limits: Limits, initialization: bytes) -> None:
        self._limits, self._initialization = limits, initialization
        self._socket, theirs = socket.socketpair()
        paths = filter(None, [str(rooms.SEARCH_PATH), os.environ.get("PYTHONPATH")])
        with theirs:
            # A session of its own: Ctrl-C at the terminal is the parent's. -P: nothing is imported from the
            # current folder.
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    __name__,
                    str(theirs.fileno()),
                    json.dumps([module, asdict(limits), bool(initialization)]),
                ],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MALLOC_ARENA_MAX": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.end = weakref.finalize(self, _end, self._process, self._socket)

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def call(self, message: bytes) -> Any:
        if self._initialization:
            try:
                self._ask(self._initialization, self._limits.begin_s)
            except BoundedError as error:
                raise BeginningError(f"its process could not begin: {error}") from None
            self._initialization = b""
        return self._ask(message, self._limits.wait_s)

    def _ask(self, message: bytes, wait_s: float) -> Any:
        deadline = time.monotonic() + wait_s
        try:
            self._send(message, deadline)
            (length,) = LENGTH.unpack(self._receive(LENGTH.size, deadline))
            reply = json.loads(self._receive(length, deadline).decode("utf-8", "surrogatepass"))
        except TimeoutError:
            raise InterruptedCallError(f"it took more than {wait_s:g} s") from None
        except OSError:
            raise self._why_it_ended() from None
        if "over" in reply:
            raise OverLimitError(reply["over"])
        if "raised" in reply:
            raise RaisedError(*reply["raised"])
        return reply["result"]

    def _send(self, message: bytes, deadline: float) -> None:
        self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
        self._socket.sendall(message)

    def _receive(self, count: int, deadline: float) -> bytes:
        """Receive `count` bytes. Raises ConnectionError if the child ends first."""
        parts = bytearray()
        while len(parts) < count:
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            part = self._socket.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise ConnectionError
            parts += part
        return bytes(parts)

    def _why_it_ended(self) -> OverLimitError:
        status = self._process.wait()
        if status == -signal.SIGPROF:
            return OverLimitError(f"it took more than {self._limits.cpu_s:g} s of processor time")
        if status == -signal.SIGKILL:
            return InterruptedCallError("the process that it ran in was killed")
        name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return OverLimitError(f"it ended the process that it ran in ({name})")


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    process.kill()
    process.wait()


def _packed(message: Any) -> bytes:
    text = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return LENGTH.pack(len(text)) + text


def one_line(reason: str) -> str:
    """The message of an exception in one line, cut at MAX_REASON_LENGTH characters."""
    line = " ".join(reason.split())
    return line if len(line) <= MAX_REASON_LENGTH else f"{line[:MAX_REASON_LENGTH]} ..."


def run_child(connection: socket.socket, module: str, limits: Limits, has_initialization: bool) -> None:
    """Run the child: its initialization, then calls in order, until its parent closes the connection."""
    functions = importlib.import_module(module)
    messages = _messages(connection.makefile("rb"))
    if has_initialization:
        functions = _initialized(functions, next(messages), connection)
    _limit_memory(limits.memory_bytes)
    threading.stack_size(limits.stack_bytes)
    calls = threading.Thread(target=_serve, args=(functions, messages, connection, limits))
    calls.start()
    calls.join()


def _messages(file: BufferedReader) -> Iterator[bytes]:
    while length := file.read(LENGTH.size):
        yield file.read(*LENGTH.unpack(length))


def _initialized(module: Any, message: bytes, connection: socket.socket) -> Any:
    """The object that the initialization returns, which has the functions to call."""
    try:
        value = _call_function(module, message)
    except Exception as error:
        connection.sendall(_raised(error))
        raise
    connection.sendall(_packed({"result": None}))
    return value


def _serve(functions: Any, messages: Iterator[bytes], connection: socket.socket, limits: Limits) -> None:
    for message in messages:
        # The signal ends the process wherever it is, in C code too.
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
        try:
            reply = _answer(functions, message, limits)
        except MemoryError:  # what is left of the process may be anything
            reason = f"it took more than {limits.memory_bytes >> 20} MiB of memory"
            connection.sendall(_packed({"over": reason}))
            return
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.sendall(reply)


def _answer(functions: Any, message: bytes, limits: Limits) -> bytes:
    try:
        result = _call_function(functions, message)
        is_long = isinstance(result, str) and len(result) > limits.output_bytes
        reply = b"" if is_long else _packed({"result": result})
    except MemoryError:
        raise
    except Exception as error:
        return _raised(error)
    if is_long or len(reply) > limits.output_bytes:
        return _packed({"over": f"it made more than {limits.output_bytes >> 20} MiB"})
    return reply


def _call_function(functions: Any, message: bytes) -> Any:
    function, arguments = json.loads(message.decode("utf-8", "surrogatepass"))
    return getattr(functions, function)(*arguments)


def _raised(error: Exception) -> bytes:
    trace = "".join(traceback.format_exception(error))[-MAX_TRACE_LENGTH:]
    return _packed({"raised": [type(error).__name__, one_line(str(error)), trace]})


def _limit_memory(more_bytes: int) -> None:
    """Limit this process to `more_bytes` more bytes of address space, and to no files."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(kind, (0, 0))


if __name__ == "__main__":
    worked_on, bounds, has_beginning = json.loads(sys.argv[2])
    run_child(socket.socket(fileno=int(sys.argv[1])), worked_on, Limits(**bounds), has_beginning)
