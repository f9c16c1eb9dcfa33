"""Programs built for another CPU, called in an emulator as if they were of this one; guest.cc is its end."""

from __future__ import annotations

import ctypes
import json
import math
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aerie.virtual_npu import library
from aerie.virtual_npu.cpp_quoting import entry_symbol
from aerie.virtual_npu.element_types import NUMPY_NAMES
from aerie.virtual_npu.library import EMPTY_RESULT, EntryPoint, RunResult
from aerie.virtual_npu.options import IN_ORDER, RunOptions

GUEST = Path(__file__).with_name("guest.cc")
LOAD, LOOK_UP, READ, CALL = range(4)
THREADS, MAX_EVENTS = 2, 1 << 20


class Emulator:
    """A process that runs the guest on another CPU."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin
        assert self._process.stdout
        self._to, self._from = self._process.stdin, self._process.stdout

    def close(self) -> None:
        self._to.close()
        self._from.close()
        self._process.wait()

    def load(self, path: Path) -> int:
        """A handle of the shared object."""
        handle = self._ask(LOAD, _text(str(path)))
        assert handle, f"the emulator cannot load {path}"
        return handle

    def look_up(self, handle: int, name: str) -> int:
        """The address of a symbol."""
        address = self._ask(LOOK_UP, struct.pack("<q", handle), _text(name))
        assert address, f"there is no {name}"
        return address

    def read(self, address: int) -> str:
        """The text at an address."""
        return self._take(self._ask(READ, struct.pack("<q", address))).decode()

    def call(
        self, function: int, buffers: Sequence[bytes], pointers: Sequence[tuple[int, int, int]] = ()
    ) -> tuple[int, list[bytes]]:
        """What function(buffer 0, 1, 2) gives, and the buffers after it. pointers: (buffer, offset, target):
        where in a buffer the address of another is put."""
        sizes = struct.pack("<qqq", function, len(buffers), len(pointers))
        parts = [part for buffer in buffers for part in (struct.pack("<q", len(buffer)), buffer)]
        status = self._ask(CALL, sizes, *parts, *(struct.pack("<qqq", *each) for each in pointers))
        return status, [self._take(len(buffer)) for buffer in buffers]

    def _ask(self, wanted: int, *parts: bytes) -> int:
        self._to.write(b"".join((struct.pack("<q", wanted), *parts)))
        self._to.flush()
        answer: int = struct.unpack("<q", self._take(8))[0]
        return answer

    def _take(self, count: int) -> bytes:
        found = self._from.read(count)
        assert len(found) == count, f"the emulator ended with {self._process.wait()}"
        return found


def _text(value: str) -> bytes:
    return struct.pack("<q", len(value.encode())) + value.encode()


def nbytes_of(entry: EntryPoint) -> list[int]:
    """Bytes of each argument."""
    return [math.prod(each.shape) * np.dtype(NUMPY_NAMES[each.dtype]).itemsize for each in entry.arguments]


class EmulatedLibrary:
    """As library.Library, for a shared object of the emulator's CPU."""

    def __init__(self, emulator: Emulator, path: Path | str) -> None:
        self.path, self._emulator = Path(path), emulator
        self._handle = emulator.load(self.path.resolve())
        metadata = json.loads(emulator.read(emulator.look_up(self._handle, "vnpu_metadata")))
        assert metadata["format"] == library.FORMAT
        self.entries = {name: library._entry(name, each) for name, each in metadata["entries"].items()}

    def run(self, entry: str, pointers: Sequence[int], options: RunOptions = IN_ORDER) -> RunResult:
        return self.call(entry, pointers, options)()

    def call(self, entry: str, pointers: Sequence[int], options: RunOptions = IN_ORDER) -> EmulatedCall:
        function = self._emulator.look_up(self._handle, entry_symbol(entry))
        return EmulatedCall(self._emulator, function, self.entries[entry], pointers)


class EmulatedCall:
    """As library.Call: an entry of the emulated program on buffers of this process."""

    def __init__(self, emulator: Emulator, function: int, entry: EntryPoint, pointers: Sequence[int]) -> None:
        self._emulator, self._function, self._entry = emulator, function, entry
        self._pointers, self._sizes = pointers, nbytes_of(entry)

    def __call__(self) -> RunResult:
        """All arguments go there and come back."""
        options = bytes(library._RunOptions(threads=THREADS, max_events=MAX_EVENTS))
        report = bytes(library._RunReport())
        count = len(self._pointers)
        given = [ctypes.string_at(*each) for each in zip(self._pointers, self._sizes, strict=True)]
        addresses = [(0, 8 * number, 3 + number) for number in range(count)]
        status, found = self._emulator.call(
            self._function, [bytes(8 * max(count, 1)), options, report, *given], addresses
        )
        if status:
            message = library._RunReport.from_buffer_copy(found[2]).message
            raise AssertionError(f"{self._entry.name}: {self._emulator.read(message)}")
        for address, contents in zip(self._pointers, found[3:], strict=True):
            ctypes.memmove(address, contents, len(contents))
        return EMPTY_RESULT


class Pointer(NamedTuple):
    """A pointer of a structure, to so many bytes. `within`: None for the structure that a function is given,
    or the number of the pointer whose target has this one."""

    offset: int
    address: int
    size: int
    within: int | None = None


def call_with_struct(emulator: Emulator, function: int, structure: Any, pointers: Sequence[Pointer]) -> None:
    """Call function(&structure). What it points to comes back, but for targets that have pointers."""
    given = [ctypes.string_at(each.address, each.size) for each in pointers]
    # A function has three arguments; this one looks at the first.
    places = [
        (0 if each.within is None else 3 + each.within, each.offset, 3 + number)
        for number, each in enumerate(pointers)
    ]
    status, found = emulator.call(function, [bytes(structure), bytes(8), bytes(8), *given], places)
    assert status == 0
    parents = {each.within for each in pointers}
    for number, (each, contents) in enumerate(zip(pointers, found[3:], strict=True)):
        if number not in parents:
            ctypes.memmove(each.address, contents, each.size)
