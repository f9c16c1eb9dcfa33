"""The header of a GGUF file: its metadata, and where each tensor lies.

A file is untrusted data. Each count, length and offset is compared with the bytes that are there before
anything of that size is allocated. An error names the key or the tensor, and the value. Long arrays are
skipped, and read when their key is asked for. (The reader of the gguf package makes objects of every token:
4.4 s for the 49,152 of SmolLM2.)

Layout: ggml's docs/gguf.md and gguf.cpp.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aerie.engine.errors import CheckpointError
from aerie.engine.gguf.block_types import NAMES, OTHERS, READ, BlockType

MAGIC = b"GGUF"
VERSIONS = (2, 3)

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_ITEMS = 1 << 24
"""Elements of an array, at most: a vocabulary has up to 300,000 tokens, and as many merges."""
MAX_HEADER_BYTES = 512 << 20
"""Bytes before the tensors' data, at most; a vocabulary of 256,000 tokens takes 16 million."""
MAX_NAME_LENGTH = 1 << 10
MAX_DIMENSIONS = 4
MAX_VALUES = 1 << 48
DEFAULT_ALIGNMENT = 32
READ_AT_ONCE = 1 << 20
"""Bytes of the header that are read first; each further read is twice as long."""
SHOWN = 60
"""Characters of a name that a message quotes."""

FETCH = "fetch the file again"


class GGUFError(CheckpointError):
    """A GGUF file that is damaged, or of a kind that is not read."""


SCALARS = {
    **{0: ("uint8", "<B"), 1: ("int8", "<b"), 2: ("uint16", "<H"), 3: ("int16", "<h"), 4: ("uint32", "<I")},
    **{
        5: ("int32", "<i"),
        6: ("float32", "<f"),
        7: ("bool", "<?"),
        10: ("uint64", "<Q"),
        11: ("int64", "<q"),
    },
    12: ("float64", "<d"),
}
"""Types of values, by their numbers: name and layout."""
FLOAT32, STRING, ARRAY = 6, 8, 9
LENGTH = struct.Struct("<Q")


class TensorEntry(NamedTuple):
    """A tensor of the file `path`. shape: (out, in), the reverse of the file's; start: its first byte in the
    file."""

    path: Path
    name: str
    kind: BlockType
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) // self.kind.values * self.kind.size


class _Span(NamedTuple):
    """An array that is not read yet: `items` elements of a type, from byte `start` to `end` of the file."""

    kind: int
    items: int
    start: int
    end: int


class Metadata(Mapping[str, Any]):
    """Values by their keys, as Python's: numbers, bool, str, and lists of these. GGUFError for a string that
    is no UTF-8, and for an array that cannot be read any more."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path, self._values = path, values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return _array(self.path, key, value) if isinstance(value, _Span) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def array_length(self, key: str) -> int | None:
        """Number of elements of an array, without reading it; None if the key has no array."""
        value = self._values.get(key)
        return value.items if isinstance(value, _Span) else None


@dataclass(frozen=True)
class Container:
    """The metadata and the table of tensors of a file. tensors: by the file's names, in the file's order."""

    path: Path
    version: int
    metadata: Metadata
    tensors: Mapping[str, TensorEntry]


def is_gguf(path: Path) -> bool:
    """Whether a file begins like a GGUF file, whatever its name."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_container(path: Path) -> Container:
    """The header of a file. Raises GGUFError."""
    try:
        with path.open("rb", buffering=0) as file:
            return _read(_Header(path, file.fileno()))
    except OSError as error:
        raise GGUFError(f"cannot read {path}: {error.strerror}; {FETCH}") from None


class _Header:
    """The bytes of a header, read as far as needed."""

    def __init__(self, path: Path, file: int) -> None:
        self.path, self._file, self.size = path, file, os.fstat(file).st_size
        self.bytes, self.at = b"", 0

    def fail(self, problem: str) -> GGUFError:
        return GGUFError(f"{self.path}: {problem}")

    @property
    def left(self) -> int:
        """Bytes of the file from here on."""
        return self.size - self.at

    def need(self, count: int, what: str) -> None:
        """Read `count` bytes from `at` on. Raises GGUFError if the file ends before."""
        if count > self.left:
            raise self.fail(f"{what} takes {count} bytes, and {self.left} are left in the file; {FETCH}")
        if self.at + count > MAX_HEADER_BYTES:
            raise self.fail(
                f"{what} ends at byte {self.at + count}, and no header of more than {MAX_HEADER_BYTES} bytes "
                f"is read; {FETCH}"
            )
        while self.at + count > len(self.bytes):
            wanted = max(READ_AT_ONCE, len(self.bytes), self.at + count - len(self.bytes))
            more = os.pread(self._file, min(wanted, self.size - len(self.bytes)), len(self.bytes))
            if not more:
                raise self.fail(f"it ends at byte {len(self.bytes)}, in {what}; {FETCH}")
            self.bytes += more

    def number(self, layout: str, what: str) -> Any:
        size = struct.calcsize(layout)
        self.need(size, what)
        (value,) = struct.unpack_from(layout, self.bytes, self.at)
        self.at += size
        return value

    def string(self, what: str, most: int = MAX_HEADER_BYTES) -> str:
        length = self.number("<Q", f"the length of {what}")
        if length > most:
            raise self.fail(f"{what} has {length} bytes, and no more than {most} are read; {FETCH}")
        self.need(length, what)
        raw = self.bytes[self.at : self.at + length]
        self.at += length
        return _text(self.path, what, raw)

    def skip_strings(self, count: int, what: str) -> None:
        part = f"a string of {what}"
        for _ in range(count):
            after = self.at + 8
            if after > len(self.bytes):
                self.need(8, part)
            (length,) = LENGTH.unpack_from(self.bytes, self.at)
            self.at = after
            if after + length > len(self.bytes):
                self.need(length, part)
            self.at += length


def _text(path: Path, what: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise GGUFError(f"{path}: {what} is not UTF-8 (byte {error.start} of it); {FETCH}") from None


def _read(header: _Header) -> Container:
    version = _version(header)
    tensor_count = _count(header, "tensors", MAX_TENSORS)
    key_count = _count(header, "keys", MAX_KEYS)
    values: dict[str, Any] = {}
    for number in range(key_count):
        key = header.string(f"the name of key {number}", MAX_NAME_LENGTH)
        if key in values:
            raise header.fail(f"key {short(key)} is there twice: which value counts is not known; {FETCH}")
        values[key] = _value(header, key)
    metadata = Metadata(header.path, values)
    records = [_record(header, number) for number in range(tensor_count)]
    return Container(header.path, version, metadata, _tensors(header, records, _alignment(header, metadata)))


def _version(header: _Header) -> int:
    header.need(4, "the magic number")
    if not header.bytes.startswith(MAGIC):
        raise header.fail(
            f"it begins with {header.bytes[:4]!r}, where a GGUF file has {MAGIC!r}: it is none; {FETCH}"
        )
    header.at = 4
    version = int(header.number("<I", "the version"))
    if version & 0xFFFF == 0:
        raise header.fail(
            f"it is big endian (version {version:#010x}), and only little endian files are read: convert it "
            "with gguf-convert-endian of the gguf package"
        )
    if version not in VERSIONS:
        raise header.fail(
            f"GGUF version {version} is not read; versions {VERSIONS[0]} and {VERSIONS[1]} are: fetch a "
            "newer file of the same model, or safetensors"
        )
    return version


def _count(header: _Header, what: str, most: int) -> int:
    count = int(header.number("<Q", f"the number of {what}"))
    if count > most:
        raise header.fail(f"it says that it has {count} {what}, and no more than {most} are read; {FETCH}")
    return count


def _value(header: _Header, key: str) -> Any:
    what = f"key {short(key)}"
    kind = header.number("<I", what)
    if kind == ARRAY:
        return _skip_array(header, what)
    return header.string(what) if kind == STRING else _scalar(header, kind, what)


def _scalar(header: _Header, kind: int, what: str) -> Any:
    if kind not in SCALARS:
        raise header.fail(f"{what} has a value of type {kind}, and types 0 to 12 are known; {FETCH}")
    value = header.number(SCALARS[kind][1], what)
    return _decimal(value) if kind == FLOAT32 else value


def _decimal(value: float) -> float:
    """The shortest decimal number that is this float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _skip_array(header: _Header, what: str) -> _Span:
    kind, count = header.number("<I", what), header.number("<Q", what)
    if kind == ARRAY:
        raise header.fail(f"{what} is an array of arrays, which no reader of GGUF knows; {FETCH}")
    if count > MAX_ITEMS:
        raise header.fail(f"{what} has {count} elements, and no more than {MAX_ITEMS} are read; {FETCH}")
    start = header.at
    if kind == STRING:
        header.skip_strings(count, what)
    elif kind in SCALARS:
        length = count * struct.calcsize(SCALARS[kind][1])
        header.need(length, what)
        header.at += length
    else:
        raise header.fail(f"{what} is an array of type {kind}, and types 0 to 12 are known; {FETCH}")
    return _Span(kind, count, start, header.at)


def _array(path: Path, key: str, span: _Span) -> list[Any]:
    """The elements of an array."""
    raw = read_bytes(path, span.start, span.end - span.start, f"key {short(key)}")
    if span.kind == STRING:
        try:
            return list(_strings(path, key, raw, span.items))
        except struct.error:
            raise GGUFError(f"{path}: key {short(key)} was changed while it was read; {FETCH}") from None
    values = np.frombuffer(raw, SCALARS[span.kind][1])
    return list(map(_decimal, values)) if span.kind == FLOAT32 else values.tolist()


def read_bytes(path: Path, start: int, count: int, what: str) -> bytes:
    """Bytes of a file whose header was read. Raises GGUFError if they are gone."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            raw = file.read(count)
    except OSError as error:
        raise GGUFError(f"cannot read {what} from {path}: {error.strerror}; {FETCH}") from None
    if len(raw) < count:
        raise GGUFError(f"{path}: {what} is cut off: the file was changed while it was read; {FETCH}")
    return raw


def _strings(path: Path, key: str, raw: bytes, count: int) -> Iterator[str]:
    at = 0
    for number in range(count):
        (length,) = LENGTH.unpack_from(raw, at)
        at += 8 + length
        yield _text(path, f"element {number} of key {short(key)}", raw[at - length : at])


def _alignment(header: _Header, values: Mapping[str, Any]) -> int:
    given = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if isinstance(given, bool) or not isinstance(given, int) or given < 1 or given & (given - 1):
        raise header.fail(f"key general.alignment is {given!r}; it must be a power of two: {FETCH}")
    return given


class _Record(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: BlockType
    offset: int


def _record(header: _Header, number: int) -> _Record:
    """One line of the table of tensors."""
    name = header.string(f"the name of tensor {number}", MAX_NAME_LENGTH)
    what = f"tensor {short(name)}"
    dimensions = header.number("<I", what)
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise header.fail(f"{what} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are known: {FETCH}")
    shape = tuple(header.number("<Q", what) for _ in range(dimensions))[::-1]
    if not 0 < math.prod(shape) <= MAX_VALUES:
        raise header.fail(f"{what} has shape {_shape(shape)}; it must have 1 to {MAX_VALUES} values: {FETCH}")
    kind, offset = header.number("<I", what), header.number("<Q", what)
    return _Record(name, shape, _kind(header, what, kind, shape), offset)


def _kind(header: _Header, what: str, number: int, shape: tuple[int, ...]) -> BlockType:
    if number not in READ:
        named = f"{OTHERS[number]} (type {number})" if number in OTHERS else f"the unknown type {number}"
        raise header.fail(
            f"{what} has {named}, which is not read; {', '.join(NAMES)} are: fetch another quantisation of "
            "the same model, such as Q4_K_M or Q8_0"
        )
    kind = READ[number]
    if shape[-1] % kind.values:
        raise header.fail(
            f"{what} has rows of {shape[-1]} values, and a block of {kind.name} has {kind.values}: {FETCH}"
        )
    return kind


def _tensors(header: _Header, records: list[_Record], alignment: int) -> dict[str, TensorEntry]:
    """The tensors, each within the file and none over another."""
    begin = -(-header.at // alignment) * alignment
    found: dict[str, TensorEntry] = {}
    for name, shape, kind, offset in records:
        what = f"tensor {short(name)}"
        if name in found:
            raise header.fail(f"{what} is there twice: which of them the model has is not known; {FETCH}")
        if offset % alignment:
            raise header.fail(f"{what} begins at offset {offset}, no multiple of {alignment}; {FETCH}")
        entry = found[name] = TensorEntry(header.path, name, kind, shape, begin + offset)
        if entry.start + entry.size > header.size:
            raise header.fail(
                f"{what} ends at byte {entry.start + entry.size}, and the file at byte {header.size}: it is "
                f"cut off, or damaged; {FETCH}"
            )
    _check_apart(header, found)
    return found


def _check_apart(header: _Header, found: Mapping[str, TensorEntry]) -> None:
    ordered = sorted(found.values(), key=lambda entry: entry.start)
    for before, after in pairwise(ordered):
        if before.start + before.size > after.start:
            raise header.fail(
                f"tensors {short(before.name)} and {short(after.name)} lie over one another at byte "
                f"{after.start}; {FETCH}"
            )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def short(name: str) -> str:
    """A name as a message quotes it."""
    return name if len(name) <= SHOWN else f"{name[:SHOWN]}..."
