"""The fingerprint of a model's weights: a hash of all their bytes.

It is computed at its first use, not at start: sha256 of pieces, in parallel, as fast as the files are read.
It is stored beside the compiled programs under the files' stat data (device, inode, size, times of change in
nanoseconds), so each checkpoint is hashed once. Any write to a file changes these, since nobody can set the
inode's change time. A file that was changed in the last seconds is hashed again, because clocks of file
systems are coarse.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from aerie.common.cpu_count import cpu_count
from aerie.common.errors import UserError
from aerie.common.store import Store
from aerie.runtime.artifacts import artifact_store

FORM = "1: sha256 of pieces of 16 MiB, 16 digits"
"""Version of the method. Another method gives other fingerprints, and needs another number here."""
PIECE_BYTES = 16 << 20
"""Bytes that a thread reads and hashes at a time."""
READ_BYTES = 1 << 20
"""Bytes of that in memory at a time."""
COARSE_S = 2.0
"""Seconds within which a second change may leave the same times."""


class FileStat(NamedTuple):
    """The stat data of a file. Times are in nanoseconds."""

    path: str
    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @staticmethod
    def from_path(path: Path) -> FileStat:
        stat = path.stat()
        times = stat.st_mtime_ns, stat.st_ctime_ns
        return FileStat(str(path.resolve()), stat.st_dev, stat.st_ino, stat.st_size, *times)


class Fingerprint:
    """The fingerprint of these files as they are at construction; a call returns it. folder: of compiled
    programs, where it is stored; None means nowhere. Any thread may call it. Raises UserError if a file has
    changed since, or cannot be read."""

    def __init__(self, files: Iterable[Path], folder: Path | None = None) -> None:
        self._files = sorted(files)
        self._known = self._stat_files()
        self._store = artifact_store(folder) if folder else None
        self._lock = threading.Lock()
        self._made: str | None = None

    def __call__(self) -> str:
        with self._lock:
            if self._made is None:
                self._check()
                self._made = self._stored() or self._make()
            self._check()
            return self._made

    def _stat_files(self) -> list[FileStat]:
        try:
            return [FileStat.from_path(path) for path in self._files]
        except OSError as error:
            raise UserError(
                f"{error.filename} of the model's weights cannot be read any more ({error.strerror}): what "
                "was computed with it is neither saved nor restored; load the model again"
            ) from None

    def _check(self) -> None:
        for before, now in zip(self._known, self._stat_files(), strict=True):
            if before != now:
                raise UserError(
                    f"{before.path} was changed after the model was loaded: what was computed with the "
                    "former weights is neither saved nor restored; load the model again"
                )

    @property
    def _key(self) -> str:
        return hashlib.sha256(json.dumps([FORM, self._known]).encode()).hexdigest()

    def _stored(self) -> str | None:
        """The stored fingerprint, if there is one."""
        content = self._store and self._store.read(_entry(self._key))
        with contextlib.suppress(ValueError, TypeError, KeyError):
            about = json.loads(content or b"")
            return str(about["weights"]) if about["key"] == self._key else None
        return None

    def _make(self) -> str:
        fingerprint = weights_fingerprint(self._files)
        youngest = max((one.changed for one in self._known), default=0)
        if self._store and time.time() - youngest / 1e9 > COARSE_S:
            with contextlib.suppress(OSError):  # it is made again then
                _keep(self._store, self._key, fingerprint)
        return fingerprint


def _entry(key: str) -> str:
    return f"weights-{key[:16]}.json"


def _keep(store: Store, key: str, fingerprint: str) -> None:
    def make(folder: Path) -> Path:
        path = folder / "mark"
        path.write_text(json.dumps({"key": key, "weights": fingerprint}))
        return path

    store.get_or_make(_entry(key), make)


def weights_fingerprint(files: Iterable[Path]) -> str:
    """16 hexadecimal digits of a sha256 of the files' names, sizes and bytes. Raises UserError if one cannot
    be read."""
    pieces = [(path, first) for path in files for first in range(0, max(1, path.stat().st_size), PIECE_BYTES)]
    with ThreadPoolExecutor(min(8, cpu_count()), "weights") as threads:
        digests = list(threads.map(_piece, pieces))
    return hashlib.sha256(json.dumps(_named(pieces, digests)).encode()).hexdigest()[:16]


def _named(pieces: Sequence[tuple[Path, int]], digests: Sequence[str]) -> list[tuple[str, int, str]]:
    return [(path.name, first, digest) for (path, first), digest in zip(pieces, digests, strict=True)]


def _piece(piece: tuple[Path, int]) -> str:
    path, first = piece
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(first)
            remaining = PIECE_BYTES
            while remaining and (read := file.read(min(remaining, READ_BYTES))):
                digest.update(read)
                remaining -= len(read)
    except OSError as error:
        raise UserError(f"cannot read the weights in {path} ({error.strerror})") from None
    return digest.hexdigest()
