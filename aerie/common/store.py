"""The content store: files under the hash of all that they depend on, complete or absent, shared by
processes.

    FOLDER/NAME           an entry: its name holds its key, and it ends with the sha256 of all before it
    FOLDER/locks/NAME     locked while a process makes that entry; a second process waits, then finds it
    FOLDER/unfinished/    a work folder for each entry in progress; folders of killed processes are removed

An entry appears in one step (`os.replace`) once it is complete. One that is damaged counts as missing. What
was not used for MAX_UNUSED_DAYS is removed, and the least recently used beyond MAX_BYTES.
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
_SUFFIXES = frozenset({".elf", ".mlir", ".log", ".o", ".so", ".gch", ".json"})
_KEYED = re.compile(r"(^|-)[0-9a-f]{16}\.[a-z]+$")
"""The names of entries: NAME-KEY.suffix or KEY.suffix. No other file is ever removed: the user may keep own
files in the folder."""


def _wait_silently() -> None:
    """The default `waiting`: waits without a message."""


class Store:
    """The entries of one folder, which must be writable to make one.

    inner: names of subfolders that have entries too.
    """

    def __init__(self, folder: Path, inner: Sequence[str] = ()) -> None:
        self.folder = folder
        self._inner = inner
        self._locks = folder / "locks"
        self._unfinished = folder / "unfinished"

    def read(self, name: str) -> bytes | None:
        """The content of an entry; None if it is missing, damaged or writable by others. Counts as a use."""
        path = self.folder / name
        if not folders.is_private(path):
            return None
        mark_used(path)
        return read_checked(path)

    def find(self, name: str) -> Path | None:
        """The file of an entry, with its checksum (32 bytes) at the end, which ELF linkers and loaders
        ignore. None if it is missing or damaged. Counts as a use."""
        return None if self.read(name) is None else self.folder / name

    def get_or_make(
        self, name: str, make: Callable[[Path], Path], waiting: Callable[[], None] = _wait_silently
    ) -> Path:
        """The file of an entry; if it is missing, `make` makes it in an empty work folder.

        waiting: called if another process or thread is making the entry. Raises OSError (InterruptedError
        after `interrupt_lock_waits`), and the errors of `make`.
        """
        entry = self.find(name)
        if entry is None:
            with self.locked_work_folder(name, waiting) as work:
                entry = self.find(name) or self.move_in(append_checksum(make(work)), name)
            self.prune_when_due()
        return entry

    @contextlib.contextmanager
    def locked_work_folder(self, name: str, waiting: Callable[[], None] = _wait_silently) -> Iterator[Path]:
        """Hold the lock of an entry, and yield an empty folder that is removed afterwards. Raises OSError."""
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
        """Move a complete file of this file system into the store, atomically. Returns its path."""
        target = self.folder / name
        folders.make_folder(target.parent)
        os.chmod(path, path.stat().st_mode & ~0o022)
        os.replace(path, target)
        return target

    def _remove_unfinished(self) -> None:
        """Remove the work folders without a lock: their processes are gone."""
        ours = (left for left in self._unfinished.iterdir() if left.suffix in _SUFFIXES and left.is_dir())
        for left in ours:
            lock = _try_lock(self._locks / left.name)
            if lock is not None:
                shutil.rmtree(left, ignore_errors=True)
                _unlock(self._locks / left.name, lock)

    def prune_when_due(self) -> bool:
        """Prune unless that was done within the last hour. Returns whether it pruned."""
        stamp = self._locks / "pruned"
        due = time.time() - _used(stamp) > _HOUR
        if due:
            stamp.touch()
            self.prune()
        return due

    def prune(self, max_bytes: int = MAX_BYTES, max_unused_days: float = MAX_UNUSED_DAYS) -> None:
        """Remove entries unused for `max_unused_days`, then the least recently used ones beyond `max_bytes`.

        Entries used within a day stay: another process may be about to open them.
        """
        now, kept_bytes = time.time(), 0
        for group in sorted(self.groups(), key=lambda group: -group.used):
            kept_bytes += group.nbytes
            idle = now - group.used
            if idle > max_unused_days * _DAY or (kept_bytes > max_bytes and idle > _DAY):
                kept_bytes -= group.nbytes
                group.remove()

    def groups(self) -> list[EntryGroup]:
        """The entries, grouped by folder and name without suffix; [] if the folder does not exist."""
        groups: dict[Path, EntryGroup] = {}
        for folder in (self.folder, *(self.folder / name for name in self._inner)):
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.suffix in _SUFFIXES and _KEYED.search(path.name) and path.is_file():
                    groups.setdefault(path.with_suffix(""), EntryGroup([])).paths.append(path)
        return list(groups.values())

    def remove_empty(self) -> None:
        """Remove the empty folders and the stamp of a store without entries, but not the store's folder."""
        if self._unfinished.is_dir():
            self._remove_unfinished()
        if self._locks.is_dir() and {path.name for path in self._locks.iterdir()} <= {"pruned"}:
            (self._locks / "pruned").unlink(missing_ok=True)
        for folder in (self._locks, self._unfinished, *(self.folder / name for name in self._inner)):
            with contextlib.suppress(OSError):  # somebody else's files are in there
                folder.rmdir()


@dataclass(frozen=True)
class EntryGroup:
    """An entry and its companion files, such as a program's text and log."""

    paths: list[Path]

    @property
    def used(self) -> float:
        """The time of the last use of any file, in seconds since 1970."""
        return max(map(_used, self.paths))

    @property
    def nbytes(self) -> int:
        return sum(_nbytes(path) for path in self.paths)

    def remove(self) -> None:
        for path in self.paths:
            path.unlink(missing_ok=True)


def _used(path: Path) -> float:
    """The time of a file's last use, in seconds since 1970; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _nbytes(path: Path) -> int:
    """The size of a file in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def mark_used(path: Path) -> None:
    """Record a use of a file, at most once an hour, so that reading seldom writes."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _HOUR:
            os.utime(path)


def programs_store() -> Store | None:
    """The store of the virtual NPU's builds; None if VNPU_CACHE is off or the folder is not writable.

    Raises KnobError for a folder that others can write to.
    """
    folder = folders.vnpu_folder()
    if folder is None:
        return None
    folders.check_private(folder)
    return Store(folder) if folders.is_usable(folder) else None


# one lock

_interrupts = 0


def interrupt_lock_waits() -> None:
    """Raise InterruptedError (an OSError) in every thread that waits for a lock now."""
    global _interrupts
    _interrupts += 1


@contextlib.contextmanager
def _locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock. It ends with the process, and its file exists only while it is held."""
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
    """The file descriptor of the lock; None if another process or thread holds it.

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
    """Release a lock. Its file is removed first, so that a process that opened it meanwhile tries again."""
    path.unlink(missing_ok=True)
    os.close(lock)


# whole files


def append_checksum(path: Path) -> Path:
    """Append the file's sha256 to the file. Returns the path."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    with path.open("ab") as file:
        file.write(digest)
    return path


def read_checked(path: Path) -> bytes | None:
    """The content of a file without its checksum; None if the file is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return body if body and hashlib.sha256(body).digest() == digest else None


def read_content(path: Path) -> bytes:
    """The content of a file, without a checksum if it has one. Raises OSError."""
    return read_checked(path) or path.read_bytes()


def write_atomic(path: Path, fill: Callable[[BinaryIO], object], mode: int = 0o644) -> None:
    """Write a file atomically: `fill` writes a temporary file, which then replaces it. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            fill(cast(BinaryIO, file))
            file.close()
            os.chmod(file.name, mode)  # temporary files are their owner's alone
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
