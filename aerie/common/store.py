"""The content store: files under the hash of all that they depend on, complete or absent, shared by
processes.

    FOLDER/NAME           an entry: its name holds its key, and it ends with the sha256 of all before it
    FOLDER/locks/NAME     locked by whoever makes that entry: a second process waits, and finds it made
    FOLDER/unfinished/    a folder for each entry under way; what killed processes left there is removed

An entry appears in one step (`os.replace`) once it is complete. One that is damaged counts as missing. What
was not used for OLDEST_DAYS is removed, and the least recently used beyond LARGEST_BYTES.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from aerie.common import folders

MAX_BYTES = 1 << 30
MAX_UNUSED_DAYS = 30

_HOUR = 60 * 60
_DAY = 24 * _HOUR
_POLL_SECONDS = 0.01
_DIGEST_BYTES = hashlib.sha256().digest_size
_SUFFIXES = frozenset({".elf", ".mlir", ".log", ".o", ".so", ".json"})
_KEYED = re.compile(r"(^|-)[0-9a-f]{16}\.[a-z]+$")
"""What the name of an entry looks like, NAME-KEY.suffix or KEY.suffix. Nothing else is ever removed:
there may be somebody's own files beside."""


def _wait_silently() -> None:
    """What is made in a moment is waited for without a word."""


class Store:
    """The entries under one folder, which must be writable where something is to be made.

    inner: the folders in there that have entries too.
    """

    def __init__(self, folder: Path, inner: Sequence[str] = ()) -> None:
        self.folder = folder
        self._inner = inner
        self._locks = folder / "locks"
        self._unfinished = folder / "unfinished"

    def read(self, name: str) -> bytes | None:
        """What an entry holds; None where it is missing, damaged or somebody else's. Counts as a use."""
        path = self.folder / name
        if not folders.is_private(path):
            return None
        mark_used(path)
        return read_checked(path)

    def find(self, name: str) -> Path | None:
        """The file of an entry, for readers that do not mind the 32 bytes after its content: linkers and
        loaders of ELF files. None where it is missing or damaged. Counts as a use."""
        return None if self.read(name) is None else self.folder / name

    def get_or_make(
        self, name: str, make: Callable[[Path], Path], waiting: Callable[[], None] = _wait_silently
    ) -> Path:
        """The file of an entry: the one that is there, or what `make` makes now in the empty folder given.

        `waiting` is called where another process or thread is making it. Raises what `make` raises, OSError,
        which is an InterruptedError where `interrupt_lock_waits` ended the waiting.
        """
        entry = self.find(name)
        if entry is None:
            with self.locked_work_folder(name, waiting) as work:
                entry = self.find(name) or self.move_in(append_checksum(make(work)), name)
            self.prune_when_due()
        return entry

    @contextlib.contextmanager
    def locked_work_folder(self, name: str, waiting: Callable[[], None] = _wait_silently) -> Iterator[Path]:
        """Hold the lock of an entry, and give an empty folder that is gone afterwards. Raises OSError."""
        flat = name.replace("/", "-")
        work = self._unfinished / flat
        folders.make_folder(self._locks)
        with _locked(self._locks / flat, waiting):
            folders.make_folder(self._unfinished)
            self._remove_unfinished()
            shutil.rmtree(work, ignore_errors=True)  # left behind by a process that was killed
            work.mkdir(mode=0o700, exist_ok=True)  # a compiler that outlived that one may yet write there
            try:
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)

    def move_in(self, path: Path, name: str) -> Path:
        """Move a complete file of this file system into its place, in one step; gives the place."""
        target = self.folder / name
        folders.make_folder(target.parent)
        os.chmod(path, path.stat().st_mode & ~0o022)
        os.replace(path, target)
        return target

    def _remove_unfinished(self) -> None:
        """What nobody makes any more, since its lock is free. Ours are folders with the name of an entry."""
        ours = (left for left in self._unfinished.iterdir() if left.suffix in _SUFFIXES and left.is_dir())
        for left in ours:
            lock = _try_lock(self._locks / left.name)
            if lock is not None:
                shutil.rmtree(left, ignore_errors=True)
                _unlock(self._locks / left.name, lock)

    def prune_when_due(self) -> bool:
        """Prune, unless that was done within the hour; gives whether it was done now."""
        stamp = self._locks / "pruned"
        due = time.time() - _used(stamp) > _HOUR
        if due:
            stamp.touch()
            self.prune()
        return due

    def prune(self, max_bytes: int = MAX_BYTES, max_unused_days: float = MAX_UNUSED_DAYS) -> None:
        """Remove entries that were not used for so long, and then the least recently used until the rest is
        so small. What was used within a day stays: another process may be about to open it."""
        now, kept_bytes = time.time(), 0
        for group in sorted(self.groups(), key=lambda group: -group.used):
            kept_bytes += group.nbytes
            idle = now - group.used
            if idle > max_unused_days * _DAY or (kept_bytes > max_bytes and idle > _DAY):
                kept_bytes -= group.nbytes
                group.remove()

    def groups(self) -> list[EntryGroup]:
        """Files that lie together and have their name in common but for the suffix; none without a folder."""
        groups: dict[Path, EntryGroup] = {}
        for folder in (self.folder, *(self.folder / name for name in self._inner)):
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.suffix in _SUFFIXES and _KEYED.search(path.name) and path.is_file():
                    groups.setdefault(path.with_suffix(""), EntryGroup([])).paths.append(path)
        return list(groups.values())

    def remove_empty(self) -> None:
        """Remove what a store without entries has of its own, but for its folder, which may be somebody's."""
        if self._unfinished.is_dir():
            self._remove_unfinished()
        if self._locks.is_dir() and {path.name for path in self._locks.iterdir()} <= {"pruned"}:
            (self._locks / "pruned").unlink(missing_ok=True)
        for folder in (self._locks, self._unfinished, *(self.folder / name for name in self._inner)):
            with contextlib.suppress(OSError):  # somebody else's files are in there
                folder.rmdir()


@dataclass(frozen=True)
class EntryGroup:
    """Files that are used together: an entry, and what belongs to it, such as a program's text and log."""

    paths: list[Path]

    @property
    def used(self) -> float:
        """When any of it was used last; asked again before it is removed."""
        return max(map(_used, self.paths))

    @property
    def nbytes(self) -> int:
        return sum(_nbytes(path) for path in self.paths)

    def remove(self) -> None:
        for path in self.paths:
            path.unlink(missing_ok=True)


def _used(path: Path) -> float:
    """When a file was used last, in seconds since 1970; 0 for one that is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _nbytes(path: Path) -> int:
    """The size of a file; 0 for one that another process removed meanwhile."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def mark_used(path: Path) -> None:
    """Keep a file from being pruned; to the hour, so that reading seldom writes."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _HOUR:
            os.utime(path)


def programs_store() -> Store | None:
    """The store of what the virtual NPU builds; None where nothing is kept, or nothing can be. Raises
    KnobError for a folder that others can write to."""
    folder = folders.vnpu_folder()
    if folder is None:
        return None
    folders.check_private(folder)
    return Store(folder) if folders.is_usable(folder) else None


# one lock

_interrupts = 0


def interrupt_lock_waits() -> None:
    """Whoever waits for a lock now, in any thread, gets an InterruptedError, an OSError."""
    global _interrupts
    _interrupts += 1


@contextlib.contextmanager
def _locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock, which ends with the process that holds it. The file is there only while somebody does."""
    lock = _try_lock(path)
    if lock is None:
        waiting()
    interrupts = _interrupts
    while lock is None:
        if _interrupts != interrupts:
            raise InterruptedError(errno.EINTR, "stopped while another process makes it", str(path))
        time.sleep(_POLL_SECONDS)
        lock = _try_lock(path)
    try:
        yield
    finally:
        _unlock(path, lock)


def _try_lock(path: Path) -> int | None:
    """The locked file, open; None where another process or thread has it.

    filelock would do this, as it does for the NPU (aerie/runtime/npu/lock.py); its import alone would be
    a tenth of a second start's time.
    """
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(lock).st_ino:
                return lock
        except BlockingIOError:
            os.close(lock)
            return None
        except FileNotFoundError:
            pass  # who had it has just removed it
        os.close(lock)


def _unlock(path: Path, lock: int) -> None:
    """Give a lock back. Its file goes first: who opened it meanwhile sees that, and tries again."""
    path.unlink(missing_ok=True)
    os.close(lock)


# whole files


def append_checksum(path: Path) -> Path:
    """Append the sha256 of the file to it, so that damage is noticed; gives the path."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    with path.open("ab") as file:
        file.write(digest)
    return path


def read_checked(path: Path) -> bytes | None:
    """What a sealed file holds, without its hash; None where it is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return body if body and hashlib.sha256(body).digest() == digest else None


def read_content(path: Path) -> bytes:
    """What a file holds, without its seal where it has one. Raises OSError."""
    return read_checked(path) or path.read_bytes()


def write_atomic(path: Path, fill: Callable[[BinaryIO], object], mode: int = 0o644) -> None:
    """Write a file in one step: `fill` writes it under another name beside it. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            fill(cast(BinaryIO, file))
            file.close()
            os.chmod(file.name, mode)  # temporary files are their owner's alone
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
