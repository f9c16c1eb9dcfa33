"""Packed weights on disk: the blocks of quantised tensors, packed once and mapped from then on.

    CACHE/packed/NAME-KEY.packed

The key is a hash of the weights, of what was asked of them, and of the code that packs them. A file begins
with a JSON header, its length before it; then come the blocks of each tensor, at multiples of PAGE, and at
the end a sha256 of the header and of a sum of each PIECE of the blocks. (A sha256 of all bytes would take
longer than the rest of a start.) A file appears at once, complete. A damaged one is noted and written anew.
Files that were not used for a month are removed, and the least recently used ones beyond MAX_BYTES.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerie import rooms
from aerie.common import folders
from aerie.common.fingerprint import hash_key, text_digest, tree_digest
from aerie.common.store import EntryGroup, mark_used, write_atomic
from aerie.engine.errors import WeightsError
from aerie.engine.quantised import QuantisedTensor
from aerie.engine.reporter import OnProgress, Reporter
from aerie.engine.weights import Weights
from aerie.kernel_builder.weight_blocks import Bytes

FOLDER = "packed"
SUFFIX = ".packed"
PATTERN = f"*-{'[0-9a-f]' * 16}{SUFFIX}"
MAGIC = b"AERIEPK1"
PAGE = 4096
PIECE = 1 << 16
"""Bytes that a sum is of."""
PIECE_WORDS = PIECE // 8
AT_ONCE = 64 * PIECE
"""Bytes that are read at a time to sum them."""
THREADS = 2
DIGEST_BYTES = hashlib.sha256().digest_size

MAX_BYTES = 32 << 30
OLDEST_S = 30 * 24 * 60 * 60
RECENT_S = 24 * 60 * 60
"""What was used within it stays: another process may be about to open it."""


class Entry(NamedTuple):
    """The blocks of a tensor, uint8 `shape` at byte `start` of the file. kind: the name of the block."""

    kind: str
    shape: tuple[int, int, int]
    start: int

    @property
    def nbytes(self) -> int:
        down, across, nbytes = self.shape
        return down * across * nbytes


class Damaged(Exception):  # noqa: N818
    """Why a file is not used."""


def packing_key(weights: str, kind: str) -> str:
    """The key of packed weights: 16 hexadecimal digits. weights: their fingerprint; kind: one of KINDS."""
    here = Path(__file__).parent
    sources = [rooms.folder("kernel_builder") / "weight_blocks.py"]
    sources += [here / f"{name}.py" for name in ("quantisers", "quantised", "packed_weights", "weights")]
    code = [path.read_text() for path in sources]
    code += [tree_digest(here / "gguf"), tree_digest(here / "quantised_files")]
    return hash_key({"weights": weights, "kind": kind, "code": text_digest("".join(code))})


def packed_folder(cache_dir: Path | None = None) -> Path:
    """The folder of packed weights. cache_dir: of compiled programs, if that is not the default one. Raises
    KnobError if the user has no home."""
    return (cache_dir or folders.cache_folder()) / FOLDER


def packed_path(folder: Path, name: str, key: str) -> Path:
    """The file of a checkpoint called `name`."""
    return folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:80]}-{key}{SUFFIX}"


@dataclass(frozen=True)
class MappedBlocks:
    """The blocks of a tensor in a file of packed weights, from byte `start` on. mapped: uint8 (block rows,
    block columns, bytes), read-only."""

    path: Path
    start: int
    mapped: Bytes

    def read_into(self, out: Bytes) -> None:
        """Fill `out`, of the shape of `mapped`. Raises WeightsError. The file is read, since pages of it that
        are mapped would count as memory of this process."""
        flat = out if out.flags.c_contiguous else np.empty(out.shape, np.uint8)
        try:
            with self.path.open("rb", buffering=0) as file:
                got = os.preadv(file.fileno(), [flat.reshape(-1).data], self.start)
        except OSError as error:
            raise WeightsError(f"cannot read packed weights from {self.path}: {error.strerror}") from None
        if got != flat.nbytes:
            np.copyto(flat, self.mapped)  # more than one call gives, or another file of that name
        if flat is not out:
            out[...] = flat

    def part(self, begin: int, end: int) -> MappedBlocks:
        row = self.mapped[0].nbytes if len(self.mapped) else 0
        return MappedBlocks(self.path, self.start + begin * row, self.mapped[begin:end])


def open_packed(path: Path, tensors: Mapping[str, QuantisedTensor]) -> dict[str, MappedBlocks] | None:
    """The blocks of these tensors in their file, every byte of which is checked; None if there is no file.
    Raises Damaged."""
    if not path.is_file():
        return None
    if not folders.is_private(path):
        raise Damaged("others can write to it")
    begin, entries, end = _layout(tensors)
    try:
        _check(path, begin, entries, end)
        mapped = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise Damaged(str(error)) from None
    mark_used(path)
    return {
        name: MappedBlocks(path, at, mapped[at : at + entry.nbytes].reshape(entry.shape))
        for name, entry in entries.items()
        for at in [entry.start]
    }


def prepare_weights(
    weights: Weights, name: str, folder: Path, fingerprint: Callable[[], str], report: Reporter
) -> None:
    """Have the quantised weights of a checkpoint called `name` packed, in a file of `folder` that is mapped.

    What is computed with scales is checked first. If the file cannot be written, a note says so, and
    weights are packed when they are needed. Raises WeightsError, and what `fingerprint` raises.
    """
    tensors = weights.quantised
    if not tensors:
        weights.check_scales()
        return
    path = packed_path(folder, name, packing_key(fingerprint(), weights.kind))
    try:
        blocks = open_packed(path, tensors)
    except Damaged as damage:
        report.note(f"packed weights in {path} are damaged ({damage}): they are packed anew")
        blocks = None
    if blocks is None:
        weights.check_scales()
        blocks = _pack(path, tensors, report)
    if blocks is not None:
        weights.use_packed(blocks)


def _pack(
    path: Path, tensors: Mapping[str, QuantisedTensor], report: Reporter
) -> dict[str, MappedBlocks] | None:
    started = time.perf_counter()
    try:
        with report.bar("packing weights", len(tensors)) as step:
            write_packed(path, tensors, step)
        blocks = open_packed(path, tensors)
    except (OSError, Damaged) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        report.note(f"packed weights are not kept in {path.parent} ({reason}): each start packs them again")
        return None
    report.note(f"packed weights: {path}, {time.perf_counter() - started:.1f} s; later starts map them")
    return blocks


def write_packed(path: Path, tensors: Mapping[str, QuantisedTensor], step: OnProgress) -> None:
    """Pack these tensors into a file, atomically. Raises OSError and WeightsError."""
    folders.make_folder(path.parent)
    write_atomic(path, lambda file: _write(file, tensors, step))
    prune(path.parent)


def prune(folder: Path, most_bytes: int = MAX_BYTES) -> None:
    """Remove what was not used for a month, and the least recently used files beyond `most_bytes`."""
    kept, now = 0, time.time()
    for group in sorted(packed_groups(folder), key=lambda group: -group.used):
        kept += group.nbytes
        idle = now - group.used
        if idle > OLDEST_S or (kept > most_bytes and idle > RECENT_S):
            kept -= group.nbytes
            group.remove()


def packed_groups(folder: Path) -> list[EntryGroup]:
    """The files of packed weights in a folder."""
    return [EntryGroup([path]) for path in sorted(folder.glob(PATTERN)) if path.is_file()]


def _layout(tensors: Mapping[str, QuantisedTensor]) -> tuple[bytes, dict[str, Entry], int]:
    """What a file of these tensors begins with, where the blocks of each lie, and where they end."""
    header = [(name, each.kind, each.block.shape(*each.shape)) for name, each in tensors.items()]
    text = json.dumps(header).encode()
    begin = MAGIC + len(text).to_bytes(8, "little") + text
    entries, at = dict[str, Entry](), _aligned(len(begin))
    for name, kind, shape in header:
        entries[name] = Entry(kind, shape, at)
        at = _aligned(at + entries[name].nbytes)
    return begin, entries, at


def _aligned(at: int) -> int:
    return -(-at // PAGE) * PAGE


def _write(file: BinaryIO, tensors: Mapping[str, QuantisedTensor], step: OnProgress) -> None:
    begin, entries, end = _layout(tensors)
    digest = hashlib.sha256(begin)
    file.write(begin)
    for done, (name, tensor) in enumerate(tensors.items(), 1):
        entry = entries[name]
        data = np.zeros(_aligned(entry.nbytes), np.uint8)
        tensor.pack_into(data[: entry.nbytes].reshape(entry.shape))
        file.seek(entry.start)
        file.write(data.data)
        for at, count in _pieces(entry):
            digest.update(_sums(data[at - entry.start :][:count]))
        step(name, done)
    file.seek(end)
    file.write(digest.digest())


def _check(path: Path, begin: bytes, entries: Mapping[str, Entry], end: int) -> None:
    """Raises Damaged unless every byte of the file is as it was written."""
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(THREADS) as threads:
        size = os.fstat(file.fileno()).st_size
        if size != end + DIGEST_BYTES:
            raise Damaged(f"it has {size} bytes, and {end + DIGEST_BYTES} are wanted")
        start = _aligned(len(begin))
        if os.pread(file.fileno(), start, 0) != begin.ljust(start, b"\0"):
            raise Damaged("its header is that of other tensors")
        pieces = [piece for entry in entries.values() for piece in _pieces(entry)]
        digest = hashlib.sha256(begin)
        for sums in threads.map(partial(_read_sums, file.fileno()), pieces):
            digest.update(sums)
        if os.pread(file.fileno(), DIGEST_BYTES, end) != digest.digest():
            raise Damaged("its bytes are not those that were written")


def _pieces(entry: Entry) -> Iterator[tuple[int, int]]:
    """First byte and count of what is read at a time."""
    for at in range(0, _aligned(entry.nbytes), AT_ONCE):
        yield entry.start + at, min(AT_ONCE, _aligned(entry.nbytes) - at)


def _read_sums(file: int, piece: tuple[int, int]) -> bytes:
    at, count = piece
    data = np.empty(count, np.uint8)
    if os.preadv(file, [data.data], at) != count:
        raise Damaged("it was cut off while it was read")
    return _sums(data)


def _sums(data: NDArray[np.uint8]) -> bytes:
    """A sum of the words of each PIECE of some bytes, whose count is a multiple of PAGE."""
    words = data.view(np.uint64)
    whole = len(words) // PIECE_WORDS * PIECE_WORDS
    sums = [*words[:whole].reshape(-1, PIECE_WORDS).sum(axis=1), words[whole:].sum()]
    return np.array(sums, np.uint64).tobytes()
