"""A word for all the bytes of a model's weights, by which what was computed with them is known again.

It is made when it is first asked for, which a start does not do: sha256 of pieces, side by side, as fast as
the files are read. It is kept beside the compiled programs under what the system knows of the files (device,
inode, size, times of change, to the nanosecond), so it is made once for a checkpoint. Whoever writes to a
file changes these, as nobody can set the time of the inode's change; a file that was changed in the last
seconds is looked at anew, since clocks of file systems are coarse.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from aerie.common.errors import UserError
from aerie.common.store import Store
from aerie.runtime.artifacts import artifact_store

FORM = "1: sha256 of pieces of 16 MiB, 16 digits"
"""How it is made: another way makes other words, and asks for another number here."""
PIECE_BYTES = 16 << 20
"""What a thread reads and hashes at a time."""
READ_BYTES = 1 << 20
"""What it holds of that in memory."""
COARSE_S = 2.0
"""Within so many seconds of a change another one may leave the same times."""


class FileStat(NamedTuple):
    """What the system knows of a file. Times are in nanoseconds."""

    path: str
    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @staticmethod
    def of(path: Path) -> FileStat:
        found = path.stat()
        times = found.st_mtime_ns, found.st_ctime_ns
        return FileStat(str(path.resolve()), found.st_dev, found.st_ino, found.st_size, *times)


class Fingerprint:
    """Of these files as they are when this is made; a call gives it. folder: of compiled programs, where it
    is kept; None: nowhere. Any thread may call it. UserError where a file was changed meanwhile, of which no
    word tells with what the model was loaded, and where one cannot be read."""

    def __init__(self, files: Iterable[Path], folder: Path | None = None) -> None:
        self._files = sorted(files)
        self._known = self._looked_at()
        self._store = artifact_store(folder) if folder else None
        self._lock = threading.Lock()
        self._made: str | None = None

    def __call__(self) -> str:
        with self._lock:
            if self._made is None:
                self._check()
                self._made = self._kept() or self._make()
            self._check()
            return self._made

    def _looked_at(self) -> list[FileStat]:
        try:
            return [FileStat.of(path) for path in self._files]
        except OSError as error:
            raise UserError(
                f"{error.filename} of the model's weights cannot be read any more ({error.strerror}): what "
                "was computed with it is neither saved nor restored; load the model again"
            ) from None

    def _check(self) -> None:
        for before, now in zip(self._known, self._looked_at(), strict=True):
            if before != now:
                raise UserError(
                    f"{before.path} was changed after the model was loaded: what was computed with the "
                    "former weights is neither saved nor restored; load the model again"
                )

    @property
    def _key(self) -> str:
        return hashlib.sha256(json.dumps([FORM, self._known]).encode()).hexdigest()

    def _kept(self) -> str | None:
        """The word, where it was made before."""
        found = self._store and self._store.read(_entry(self._key))
        with contextlib.suppress(ValueError, TypeError, KeyError):
            about = json.loads(found or b"")
            return str(about["weights"]) if about["key"] == self._key else None
        return None

    def _make(self) -> str:
        made = weights_fingerprint(self._files)
        youngest = max((one.changed for one in self._known), default=0)
        if self._store and time.time() - youngest / 1e9 > COARSE_S:
            with contextlib.suppress(OSError):  # it is made again then
                _keep(self._store, self._key, made)
        return made


def _entry(key: str) -> str:
    return f"weights-{key[:16]}.json"


def _keep(store: Store, key: str, made: str) -> None:
    def make(folder: Path) -> Path:
        path = folder / "mark"
        path.write_text(json.dumps({"key": key, "weights": made}))
        return path

    store.get_or_make(_entry(key), make)


def weights_fingerprint(files: Iterable[Path]) -> str:
    """A word for the weights in these files: 16 hexadecimal digits of a sha256 of their names, sizes and all
    of their bytes. UserError where one cannot be read."""
    pieces = [(path, first) for path in files for first in range(0, max(1, path.stat().st_size), PIECE_BYTES)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "weights") as threads:
        found = list(threads.map(_piece, pieces))
    return hashlib.sha256(json.dumps(_named(pieces, found)).encode()).hexdigest()[:16]


def _named(pieces: Sequence[tuple[Path, int]], found: Sequence[str]) -> list[tuple[str, int, str]]:
    return [(path.name, first, digest) for (path, first), digest in zip(pieces, found, strict=True)]


def _piece(piece: tuple[Path, int]) -> str:
    path, first = piece
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(first)
            left = PIECE_BYTES
            while left and (read := file.read(min(left, READ_BYTES))):
                digest.update(read)
                left -= len(read)
    except OSError as error:
        raise UserError(f"cannot read the weights in {path} ({error.strerror})") from None
    return digest.hexdigest()
