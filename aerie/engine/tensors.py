"""Tensors of files, read straight into the memory that they are wanted in, whole or by rows.

What comes out is bf16 in Hugging Face's (out, in) layout, however it lies in the file: as a part of a larger
tensor, transposed, in F16, F32 or F64, and in blocks (gguf/block_tensors.py). Nothing is kept here and no
file stays mapped, so that a model takes little more than its buffers.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from aerie.engine.errors import WeightsError
from aerie.engine.numerics import BF16Array, F32Array, bf16, widen

DTYPES = {
    "BF16": bf16,
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
"""What is read, by safetensors' names; all but bf16 is rounded to bf16."""
CHUNK_BYTES = 4 << 20
"""Read at a time by one thread, and converted or transposed at a time where that has to be done."""
CONVERTED = 1 << 16
"""Elements converted at a time, which a core's cache holds in all their forms."""
READERS = 2
"""Threads that read a tensor: one copies while another waits for the disk, or for new pages of memory."""
LEAST_NORMAL = float(np.finfo(np.float32).tiny)
"""Of float32 and of bf16: below it both have fewer digits."""


Wide: TypeAlias = "npt.NDArray[np.float32 | np.float64]"
"""Values as a file has them, but for those of F16, which are widened."""


class Rounding:
    """What was lost where values of F16, F32 and F64 were rounded to bf16: in how many of how many values,
    and the largest loss, relative to the value. Threads may count at once."""

    def __init__(self) -> None:
        self.types: set[str] = set()
        self.values = self.rounded = 0
        self.largest = 0.0
        self._lock = threading.Lock()

    def count(self, dtype: str, given: Wide, kept: npt.NDArray[np.float32]) -> None:
        """`kept` is what became of the values `given`; values that are not finite count as lost."""
        with np.errstate(invalid="ignore"):
            lost = given - kept
            rounded = int(np.count_nonzero(lost))
            lost /= np.maximum(np.abs(given), np.float32(LEAST_NORMAL))
        largest = float(np.fmax.reduce(np.abs(lost), axis=None, initial=0.0))
        with self._lock:
            self.types.add(dtype)
            self.values += given.size
            self.rounded += rounded
            self.largest = max(self.largest, largest)

    def __str__(self) -> str:
        """For a note; empty where nothing was converted."""
        if not self.values:
            return ""
        types = " and ".join(sorted(self.types))
        if not self.rounded:
            return f"weights were {types} and are the same in bf16: no value was rounded"
        share = 100 * self.rounded / self.values
        return (
            f"weights were {types} and are rounded to bf16: {share:.3g} % of the values changed, by at most "
            f"{100 * self.largest:.3f} % of themselves; none overflowed"
        )


@dataclass(frozen=True)
class Tensor:
    """A matrix or vector in the file `path`; `dtype` in safetensors' words, or in GGUF's.

    shape: as it is wanted, (out, in). Its first element is at byte `start` of the file, and a row of the file
    has `pitch` elements. is_transposed: rows of the file are columns of this one. added: what the file has
    added to each element. rounding: counts what is lost where it is converted.
    """

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    pitch: int
    is_transposed: bool = False
    added: float = 0.0
    rounding: Rounding = field(default_factory=Rounding, compare=False)

    @property
    def is_supported(self) -> bool:
        """Whether its type is one that is read."""
        return self.dtype in DTYPES

    @property
    def kind(self) -> str:
        """What it is on the device: `bf16`, or the name of a weight block (`quantised.py`)."""
        return "bf16"

    @property
    def stored_bytes(self) -> int:
        """Bytes that it takes in its file."""
        return math.prod(self.shape) * self.itemsize

    @property
    def device_bytes(self) -> int:
        """Bytes that it takes on the device."""
        return math.prod(self.shape) * bf16.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes from row to row of the file, of one element where it is a vector."""
        return self.pitch * self.itemsize

    @property
    def itemsize(self) -> int:
        return int(DTYPES[self.dtype].itemsize)

    def __call__(self, out: BF16Array) -> None:
        """Read all of it into `out`, which is bf16, contiguous and of this shape. Raises WeightsError."""
        self.rows_into(out, 0)

    def read(self) -> BF16Array:
        """All of it, in an array of its own."""
        out = np.empty(self.shape, bf16)
        self(out)
        return out

    def transposed(self) -> Tensor:
        """The same for one who wants it the other way round."""
        return replace(self, shape=self.shape[::-1], is_transposed=not self.is_transposed)

    def part(self, first: int, rows: int) -> Tensor:
        """`rows` of its rows from `first` on."""
        start = self.start + first * (self.itemsize if self.is_transposed else self.row_bytes)
        return replace(self, shape=(rows, *self.shape[1:]), start=start)

    def columns(self, first: int, count: int) -> Tensor:
        """`count` of its columns from `first` on; it is a matrix."""
        return self.transposed().part(first, count).transposed()

    def rows_into(self, out: BF16Array, first: int) -> None:
        """Read as many rows as `out` has, from row `first` on, into it. Raises WeightsError."""
        with _File(self.part(first, len(out))) as file:
            if self.is_transposed:
                read, length, width = file.read_columns, out.shape[1], len(out) * self.itemsize
            else:
                read, length, width = file.read_rows, len(out), self.row_bytes
            read_in_chunks(partial(read, out), length, width, CHUNK_BYTES)

    def check_scales(self) -> None:
        """Raises WeightsError if a scale of quantised weights is not a finite number. Reads all scales."""

    def opened(self) -> RowReader:
        """Its file, to read single rows of it. Raises WeightsError."""
        return _File(self)


class RowReader(Protocol):
    """An open file of a table."""

    def row(self, out: BF16Array, number: int) -> None:
        """Read row `number` into `out`, which is contiguous. Raises WeightsError."""


def read_in_chunks(
    read: Callable[[slice], None],
    length: int,
    width: int,
    chunk_bytes: int,
    multiple: int = 1,
    threads: int = READERS,
) -> None:
    """Have threads read `length` rows of `width` bytes, each time about `chunk_bytes`, and a multiple of so
    many rows."""
    at_once = max(1, chunk_bytes // max(1, width * multiple)) * multiple  # a part of a small head has no rows
    with ThreadPoolExecutor(threads) as readers:
        list(readers.map(read, (slice(at, min(at + at_once, length)) for at in range(0, length, at_once))))


class Rows:
    """A table in a file, of which single rows are read: `rows[3]`, `rows[[3, 1, 3]]`. factor: what each
    element is multiplied with, and rounded again."""

    def __init__(self, table: Tensor, factor: float = 1.0) -> None:
        self.table, self._file, self._factor = table, table.opened(), np.float32(factor)

    def __getitem__(self, ids: int | Sequence[int]) -> BF16Array:
        """One row, (width,), or as many as there are ids, (ids, width). Raises WeightsError."""
        if isinstance(ids, int | np.integer):
            out = np.empty(self.table.shape[1], bf16)
            self._file.row(out, int(ids))
            return out if self._factor == 1 else (widen(out) * self._factor).astype(bf16)
        once = {token: self[token] for token in set(ids)}  # a prompt is mostly padding
        return np.stack([once[token] for token in ids])


class TensorFile:
    """The open file of a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        try:
            self._number = os.open(tensor.path, os.O_RDONLY)
        except OSError as error:
            raise self._unreadable(error.strerror) from None
        self._close = weakref.finalize(self, os.close, self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def bytes_into(self, into: memoryview, at: int) -> None:
        """Fill `into` with the bytes of the file from `at` on. Raises WeightsError."""
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


class _File(TensorFile):
    """That of one whose rows are values one after the other."""

    def read_rows(self, out: BF16Array, piece: slice) -> None:
        """Some rows of the tensor into those of `out`, bf16 straight into it."""
        tensor = self._tensor
        if tensor.pitch == math.prod(tensor.shape[1:]):
            self._read(out[piece], piece.start * tensor.row_bytes)
        else:
            for number in range(piece.start, piece.stop):
                self.row(out[number], number)

    def read_columns(self, out: BF16Array, piece: slice) -> None:
        """Some columns of a transposed tensor into those of `out`, through as many rows of the file."""
        tensor = self._tensor
        held = np.empty((piece.stop - piece.start, len(out)), bf16)
        if tensor.pitch == len(out):
            self._read(held, piece.start * tensor.row_bytes)
        else:
            for number, row in enumerate(held, piece.start):
                self.row(row, number)
        out[:, piece] = held.T

    def row(self, out: BF16Array, number: int) -> None:
        """Row `number` of the file, or as much of it as `out` has."""
        self._read(out, number * self._tensor.row_bytes)

    def _read(self, out: BF16Array, at: int) -> None:
        """As many elements as the contiguous `out` has, from byte `at` of the tensor on."""
        flat, dtype, added = out.reshape(-1), DTYPES[self._tensor.dtype], self._tensor.added
        raw = flat if dtype == bf16 and not added else np.empty(flat.shape, dtype)
        self.bytes_into(memoryview(raw.view(np.uint8).data), self._tensor.start + at)
        if raw is not flat:
            for first in range(0, len(flat), CONVERTED):
                piece = slice(first, first + CONVERTED)
                given = raw[piece].astype(np.promote_types(dtype, np.float32), copy=False)
                round_into(self._tensor, given - added if added else given, flat[piece])


def round_into(tensor: Tensor, given: Wide, out: BF16Array) -> None:
    """Values of a tensor to bf16 through float32, as torch rounds F64; what that loses is counted.

    Raises WeightsError for one that bf16 has not.
    """
    with np.errstate(over="ignore"):
        out[...] = given.astype(np.float32, copy=False).astype(bf16)
    kept = widen(out)
    if not np.isfinite(kept).all():
        _check_overflow(tensor, given, kept)
    tensor.rounding.count(tensor.dtype, given, kept)


def _check_overflow(tensor: Tensor, given: Wide, kept: F32Array) -> None:
    """Raises WeightsError for a value that became infinite; the logits tell of one that was so already."""
    overflown = given[np.isinf(kept) & np.isfinite(given)]
    if overflown.size:
        raise WeightsError(
            f"tensor {tensor.name} in {tensor.path} holds {overflown[0]:.4g}, and bf16, which is "
            "computed with, ends at 3.39e+38; the file is damaged: fetch it again"
        )


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
