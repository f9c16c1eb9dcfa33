"""One process at a time on the NPU.

Contexts made by two processes at once can time a command out, which takes the firmware's mailbox down for
every process until the machine is powered off (mlir-air python/test/lit.cfg.py). So the lock is held from
opening the device until it is closed. The operating system frees it when its process ends, however that ends;
what is written beside it about the owner is for people who wait, and decides nothing.

mlir-air's tests and runners lock `npu.lock` in the temporary folder for the same reason, and wrap commands in
`flock`. That lock is taken too, and first, so that both kinds of program stay apart; unless whoever started
this process holds it and passed it on open: taking it once more would wait for ourselves. Our own file has
another name, and keeps apart what runs below one such wrapper.
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

TOLD_EVERY = 10.0
"""Seconds between two lines while waiting."""

COMMAND_WORDS = 4
"""At most so many words of the owner's command are told, as `python -m aerie run`."""


def _is_told(word: str) -> bool:
    """An option is not, and nothing after it: it may hold a prompt, or a program after -c."""
    return word == "-m" or not word.startswith("-")


Report = Callable[[str], None]


@dataclass(frozen=True)
class Owner:
    """Who holds the device: process id, the first words of its command, and since when (UTC)."""

    pid: int
    command: str
    since: str

    @staticmethod
    def this_process() -> Owner:
        """This process, as an owner from now on."""
        program, *words = sys.orig_argv[:COMMAND_WORDS]
        told = itertools.takewhile(_is_told, words)
        return Owner(
            os.getpid(),
            shlex.join([Path(program).name, *told]),
            time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        )

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}), since {self.since}"


class DeviceLock:
    """The lock of this machine's NPU; within one process it may be held several times."""

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

    def acquire(self, report: Report) -> None:
        """Take the lock, telling `report` who holds it as long as that takes. Ctrl-C ends the waiting.

        Raises RunError where the lock file cannot be used.
        """
        try:
            if not _is_inherited(self._upstream):
                self._take(self._upstream, report)
            self._take(self.path, report)
            self._write_note()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Free the lock; without effect where it is not held."""
        own = self._held[-1] if self._noted else None
        if own and own.lock_counter == self._held.count(own):  # before the next owner writes its own
            with contextlib.suppress(OSError):
                self._note.unlink()
        self._noted = False
        while self._held:
            self._held.pop().release()

    def owner(self) -> Owner | None:
        """Who holds it, as far as is written; None for a note that a killed process left."""
        try:
            owner = Owner(**json.loads(self._note.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return owner if _is_running(owner.pid) else None

    def _write_note(self) -> None:
        with contextlib.suppress(OSError):  # another user's, left behind; it decides nothing
            self._note.write_text(json.dumps(asdict(Owner.this_process())))
            self._noted = True

    def _take(self, path: Path, report: Report) -> None:
        from filelock import FileLock, Timeout

        lock = FileLock(path, mode=0o666, is_singleton=True, thread_local=False)
        started, wait = time.monotonic(), 0.0
        while True:
            try:
                lock.acquire(timeout=wait, poll_interval=0.1)
            except Timeout:
                report(self._waiting(path, time.monotonic() - started))
                wait = TOLD_EVERY
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
    """Whether this process was started with that file open, as `flock FILE COMMAND` starts one."""
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
        f"the NPU's lock {path} cannot be used ({error.strerror}); it keeps two processes off the device, so "
        f"nothing is run without it: make it writable for all who use the NPU (chmod a+rw)"
    )
