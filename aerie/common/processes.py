"""Child processes of tools, with a log, a time limit, and the removal of everything that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


class TimeLimitError(Exception):
    """A tool exceeded its time limit. It and everything it started were killed."""


class Children:
    """The running tools. Each leads a process group, so that its children end with it."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._changing = threading.Lock()

    def run(
        self, command: Sequence[str], work: Path, log: Path, environment: Mapping[str, str], seconds: float
    ) -> int:
        """Run a command in the folder `work`; append command line and output to `log`.

        Returns the exit code, negative if a signal killed the tool. Raises OSError if it cannot start, and
        TimeLimitError after `seconds`.
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
