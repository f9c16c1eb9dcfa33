"""Compiles programs before they are needed, in a child process that gets only processor time that is idle.

The child puts programs into the cache of compiled programs, where the session finds them. `want` says which,
and returns at once. If a program is needed before that, `make_way` ends the child, whose work has the lowest
priority, and the program is compiled in the foreground. There a program that failed here fails again, with
its message, so a failure here is only noted.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

from aerie import rooms
from aerie.common.shown_names import one_line
from aerie.multi_launch_builder import ModelShape
from aerie.runtime import Backend

COMMAND = (
    sys.executable,
    "-c",
    f"import sys; sys.path[0] = {str(rooms.SEARCH_PATH)!r}; "
    "from aerie.engine.compile_ahead_child import main; sys.exit(main())",
)
"""The child imports this very package, whatever the current folder has."""
END_S = 2.0
"""Seconds that a child has to stop its compilers, before it is killed."""
MAX_REASON = 160
"""Letters of a failure's reason that are shown."""


class CompileAhead:
    """Compiles programs of one model in the background, in one process at a time.

    cache_dir: of compiled programs. note: gets one line if compiling fails, in the thread of a later call.
    """

    def __init__(
        self,
        shape: ModelShape,
        cache_dir: Path,
        note: Callable[[str], None],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._shape, self._cache_dir, self._note = shape, cache_dir, note
        self._lock = threading.Lock()
        self._wanted: dict[str, None] = {}
        self._compiled: set[str] = set()
        self._child = _Child(command)
        self._thread: threading.Thread | None = None
        self._failure = ""
        self._is_off = False
        weakref.finalize(self, self._child.end)

    def want(self, names: Iterable[str], backend: Backend) -> None:
        """Compile these programs for a backend, in this order, unless they are compiled. Returns at once."""
        self._note_failure()
        with self._lock:
            new = [name for name in names if name not in self._compiled and name not in self._wanted]
            if self._is_off or not new:
                return
            self._wanted |= dict.fromkeys(new)
            if self._thread is None:
                self._child.allow()
                self._thread = threading.Thread(target=self._run, args=(backend,), daemon=True)
                self._thread.start()

    def make_way(self, names: Iterable[str]) -> None:
        """End the child unless it has compiled all of these programs, which are needed now."""
        self._note_failure()
        if not self._compiled.issuperset(names):
            self.stop()

    def stop(self) -> None:
        """End the child and its compilers. What it has compiled stays."""
        with self._lock:
            self._wanted.clear()
        self._child.end()
        self.wait()

    def wait(self) -> None:
        """Wait until nothing is compiled in the background."""
        if thread := self._thread:
            thread.join()

    def _run(self, backend: Backend) -> None:
        """Compile what is wanted, until nothing is."""
        request = {
            "shape": asdict(self._shape),
            "cache_dir": str(self._cache_dir.absolute()),
            "backend": backend.name,
            "numerics": backend.numerics if backend.name == "virtual" else None,
        }
        while names := self._next_names():
            failure = self._child.compile({**request, "names": names}, self._mark_compiled)
            with self._lock:
                self._failure, self._is_off = failure, bool(failure)
                if failure:
                    self._wanted.clear()

    def _next_names(self) -> list[str]:
        """The programs for the next child. If there are none, the thread ends."""
        with self._lock:
            if not self._wanted:
                self._thread = None
            return list(self._wanted)

    def _mark_compiled(self, name: str) -> None:
        with self._lock:
            self._wanted.pop(name, None)
            self._compiled.add(name)

    def _note_failure(self) -> None:
        failure, self._failure = self._failure, ""
        if failure:
            self._note(
                "note: programs that a longer context needs could not be compiled in the background "
                f"({failure}); each is compiled when it is needed"
            )


class _Child:
    """The child process, if there is one. Another thread may end it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._is_allowed = True

    def allow(self) -> None:
        """Let a child start again after `end`."""
        with self._lock:
            self._is_allowed = True

    def end(self) -> None:
        """End the child. None starts afterwards."""
        with self._lock:
            self._is_allowed, process = False, self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()

    def compile(self, request: dict[str, object], on_compiled: Callable[[str], None]) -> str:
        """Compile the programs of a request. Returns the reason of a failure; "" if there is none."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            try:
                process = self._start(errors)
            except OSError as error:
                return error.strerror or str(error)
            if process is None:
                return ""
            assert process.stdin is not None
            assert process.stdout is not None
            with process, contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()  # it stays open: its end is the parent's
                for line in process.stdout:
                    on_compiled(line.strip())
            errors.seek(0)
            return self._ended(process.returncode, errors.read())

    def _start(self, errors: IO[str]) -> subprocess.Popen[str] | None:
        with self._lock:
            if not self._is_allowed:
                return None
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
            return self._process

    def _ended(self, status: int, errors: str) -> str:
        with self._lock:
            self._process = None
            if not self._is_allowed or status == 0:
                return ""
        lines = errors.strip().splitlines()
        return one_line(lines[-1], MAX_REASON) if lines else f"its process ended with status {status}"
