"""Tools run as children: output goes to a log, time is limited, and nothing of them stays behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


class TimeLimitError(Exception):
    """A tool that did not end in time. It and everything it started were killed."""


class Children:
    """The tools that run at present. Each leads a process group, so that what it starts ends with it."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._changing = threading.Lock()

    def run(
        self, command: Sequence[str], work: Path, log: Path, environment: Mapping[str, str], seconds: float
    ) -> int:
        """Run in the folder `work`, appending command line and output to `log`; the exit code.

        It is negative for a tool that a signal killed. Raises OSError for one that cannot be started, and
        TimeLimitError after so many seconds.
        """
        with log.open("ab") as output:
            output.write(f"$ {' '.join(command)}\n".encode())
            output.flush()
            with self._started(command, work, output.fileno(), environment) as child:
                try:
                    return child.wait(timeout=seconds)
                except subprocess.TimeoutExpired as error:
                    raise TimeLimitError from error

    def stop(self) -> None:
        """Kill every tool that runs, with all that it started. May be called from another thread."""
        with self._changing:
            for child in self._running:
                _kill_group(child)

    @contextlib.contextmanager
    def _started(
        self, command: Sequence[str], work: Path, output: int, environment: Mapping[str, str]
    ) -> Iterator[subprocess.Popen[bytes]]:
        with self._changing:
            child = subprocess.Popen(
                command,
                cwd=work,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            self._running.add(child)
        try:
            yield child
        finally:
            _kill_group(child)
            child.wait()
            with self._changing:
                self._running.discard(child)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill a tool that has not ended, and its group; one that has ended no longer owns its number."""
    if child.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
