"""A lock that lets one process at a time use the NPU.

Contexts of two processes at once can make a command time out, which stops the firmware's mailbox for every
process until the machine is powered off (mlir-air python/test/lit.cfg.py). So the lock is held from opening
the device until it is closed. The operating system frees the lock when its process ends, however it ends. The
note about the owner beside it is for people who wait; no decision depends on it.

mlir-air's tests and runners lock `npu.lock` in the temporary folder for the same reason, and wrap commands in
`flock`. We take that lock first, so that both kinds of program exclude each other; unless the process that
started us holds it and passed it on open: taking it again would wait for ourselves. Our own file has another
name, and separates the processes below one such wrapper.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.runtime.errors import RunError
from aerie.runtime.knobs import NPU_LOCK

if TYPE_CHECKING:
    from filelock import FileLock

UPSTREAM = "npu.lock"
"""mlir-air python/air/backend/xrt_runner.py, programming_examples/lit.cfg.py."""

REPORT_INTERVAL_S = 10.0
"""Seconds between two lines while waiting."""

COMMAND_WORDS = 4
"""The owner is shown by at most this many words of its command, such as `python -m aerie run`."""


def _is_shown(word: str) -> bool:
    """False for an option and everything after it: that may be a prompt, or a program after -c."""
    return word == "-m" or not word.startswith("-")


Note = Callable[[str], None]


@dataclass(frozen=True)
class LockOwner:
    """The process that holds the device: its id, the first words of its command, and since when (UTC)."""

    pid: int
    command: str
    since: str

    @staticmethod
    def this_process() -> LockOwner:
        """This process as the owner from now on."""
        program, *words = sys.orig_argv[:COMMAND_WORDS]
        shown = itertools.takewhile(_is_shown, words)
        return LockOwner(
            os.getpid(),
            shlex.join([Path(program).name, *shown]),
            time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        )

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}), since {self.since}"


class DeviceLock:
    """The lock of this machine's NPU. One process may hold it several times."""

    def __init__(self, path: Path | None = None) -> None:
        # Not at the top: a virtual NPU needs none. Not later: what filelock does at the interpreter's end
        # would come before what a cache does there, which releases this lock.
        import filelock  # noqa: F401

        folder = Path(tempfile.gettempdir())
        self.path = path or Path(NPU_LOCK.get() or folder / "aerie-npu.lock")
        self._upstream = folder / UPSTREAM
        self._held: list[FileLock] = []
        self._noted = False

    @property
    def _note(self) -> Path:
        return self.path.with_name(f"{self.path.name}.owner")

    def acquire(self, report: Note) -> None:
        """Take the lock; while waiting, report who holds it. Ctrl-C ends the waiting.

        Raises RunError if the lock file cannot be used.
        """
        try:
            if not _is_inherited(self._upstream):
                self._acquire(self._upstream, report)
            self._acquire(self.path, report)
            self._write_note()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Free the lock. Does nothing if it is not held."""
        own = self._held[-1] if self._noted else None
        if own and own.lock_counter == self._held.count(own):  # before the next owner writes its own
            with contextlib.suppress(OSError):
                self._note.unlink()
        self._noted = False
        while self._held:
            self._held.pop().release()

    def owner(self) -> LockOwner | None:
        """The owner that the note names; None if a killed process left the note."""
        try:
            owner = LockOwner(**json.loads(self._note.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return owner if _is_running(owner.pid) else None

    def _write_note(self) -> None:
        with contextlib.suppress(OSError):  # another user's, left behind; it decides nothing
            self._note.write_text(json.dumps(asdict(LockOwner.this_process())))
            self._noted = True

    def _acquire(self, path: Path, report: Note) -> None:
        from filelock import FileLock, Timeout

        lock = FileLock(path, mode=0o666, is_singleton=True, thread_local=False)
        started, wait = time.monotonic(), 0.0
        while True:
            try:
                lock.acquire(timeout=wait, poll_interval=0.1)
            except Timeout:
                report(self._waiting(path, time.monotonic() - started))
                wait = REPORT_INTERVAL_S
            except OSError as error:
                elsewhere = f", or name another with {NPU_LOCK.name}" if path == self.path else ""
                raise RunError(_unusable(path, error) + elsewhere) from error
            else:
                self._held.append(lock)
                return

    def _waiting(self, path: Path, seconds: float) -> str:
        who = self.owner() or f"a process that locked {path}"
        since = f", for {seconds:.0f} s now" if seconds >= 1 else ""
        return f"the NPU is in use by {who}; waiting for it{since} (Ctrl-C stops)"


@functools.cache  # asked before this process has opened the file itself
def _is_inherited(path: Path) -> bool:
    """Whether this process was started with that file open, as `flock FILE COMMAND` does."""
    folder = Path("/proc/self/fd")
    if not path.exists() or not folder.is_dir():
        return False
    return any(_is_same(path, folder / number) for number in os.listdir(folder))


def _is_same(path: Path, link: Path) -> bool:
    try:
        return path.samefile(link)
    except OSError:  # the folder's own listing, closed by now
        return False


def _is_running(pid: int) -> bool:
    processes = Path("/proc")
    return not (processes / "self").exists() or (processes / str(pid)).exists()


def _unusable(path: Path, error: OSError) -> str:
    return (
        f"the NPU's lock {path} cannot be used ({error.strerror}); it keeps two processes from using "
        "the device together, so nothing runs without it: make it writable for all users of the NPU "
        "(chmod a+rw)"
    )
