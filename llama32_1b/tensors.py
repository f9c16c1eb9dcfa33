"""Tensors of a safetensors file, read without mapping it: into memory that is there, whole or by rows."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llama32_1b.errors import WeightsError
from llama32_1b.numerics import BF16Array, bf16

DTYPES = {"BF16": bf16, "F16": np.dtype(np.float16), "F32": np.dtype(np.float32)}
"""What is read, by safetensors' names; all but bf16 is rounded to bf16."""
CHUNK_BYTES = 4 << 20
"""Read at a time by one thread, and converted at a time where there is something to convert."""
READERS = 2
"""Threads that read a tensor: one copies while another waits for the disk, or for new pages of memory."""


@dataclass(frozen=True)
class Tensor:
    """A tensor in the file `path`, row by row from byte `start` on; `dtype` in safetensors' words."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in the file, of one element where it is a vector."""
        return math.prod(self.shape[1:]) * int(DTYPES[self.dtype].itemsize)

    def __call__(self, out: BF16Array) -> None:
        """Read all of it into `out`, which is bf16, contiguous and of this shape. Raises WeightsError."""
        self.rows_into(out, 0)

    def read(self) -> BF16Array:
        """All of it, in an array of its own."""
        out = np.empty(self.shape, bf16)
        self(out)
        return out

    def rows_into(self, out: BF16Array, first: int) -> None:
        """Read as many rows as `out` has, from row `first` on, into it. Raises WeightsError."""
        with _File(self) as file, ThreadPoolExecutor(READERS) as readers:
            rows = max(1, CHUNK_BYTES // self.row_bytes)
            starts = range(0, len(out), rows)
            parts = (out[start : start + rows] for start in starts)
            list(readers.map(file.read_rows, parts, (first + start for start in starts)))


class Rows:
    """A table in a file, of which single rows are read: `rows[3]`, `rows[[3, 1, 3]]`."""

    def __init__(self, table: Tensor) -> None:
        self.table, self._file = table, _File(table)

    def __getitem__(self, ids: int | Sequence[int]) -> BF16Array:
        """One row, (width,), or as many as there are ids, (ids, width). Raises WeightsError."""
        if isinstance(ids, int | np.integer):
            out = np.empty((1, self.table.shape[1]), bf16)
            self._file.read_rows(out, int(ids))
            return out[0]  # type: ignore[no-any-return]
        once = {token: self[token] for token in set(ids)}  # a prompt is mostly padding
        return np.stack([once[token] for token in ids])


@contextmanager
def reading_ahead(paths: Sequence[Path]) -> Iterator[None]:
    """While this is open, a thread reads the files, so that the system has them in its cache when wanted.

    What cannot be read is left for who wants it to find. The thread has the lowest priority: at that of the
    compilers beside it they took twice as long (2 cores, 2.5 GB from a disk of 280 MB/s). Advice to the
    system alone would fetch one request's worth of a file (Linux mm/readahead.c, force_page_cache_ra).
    """
    ended = threading.Event()
    thread = threading.Thread(target=_read_through, args=(paths, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _read_through(paths: Sequence[Path], ended: threading.Event) -> None:
    chunk = bytearray(CHUNK_BYTES)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread alone
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while not ended.is_set() and file.readinto(chunk):
                    pass


class _File:
    """The open file of a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._dtype = tensor, DTYPES[tensor.dtype]
        try:
            self._number = os.open(tensor.path, os.O_RDONLY)
        except OSError as error:
            raise self._unreadable(error.strerror) from None
        self._close = weakref.finalize(self, os.close, self._number)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read_rows(self, out: BF16Array, first: int) -> None:
        """Rows from `first` on, as many as `out` has; bf16 straight into it."""
        raw = out if self._dtype == bf16 else np.empty(out.shape, self._dtype)
        self._read(memoryview(raw.reshape(-1).view(np.uint8).data), first)
        if raw is not out:
            out[...] = raw.astype(bf16)

    def _read(self, into: memoryview, first: int) -> None:
        at = self._tensor.start + first * self._tensor.row_bytes
        while into:
            try:
                got = os.preadv(self._number, [into], at)
            except OSError as error:
                raise self._unreadable(error.strerror) from None
            if not got:
                raise self._unreadable(f"it ends at byte {at}")
            into, at = into[got:], at + got

    def _unreadable(self, reason: str | None) -> WeightsError:
        tensor = self._tensor
        return WeightsError(f"cannot read tensor {tensor.name} from {tensor.path}: {reason}; fetch it again")
