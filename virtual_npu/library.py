"""A built program: its entries, and calling them."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from virtual_npu import knobs
from virtual_npu.abi import FORMAT, entry_symbol
from virtual_npu.errors import ArgumentError, VirtualNpuDeadlock, VirtualNpuError, VirtualNpuRuntimeError

_DEADLOCK = 2
_MESSAGE_BYTES = 4096


@dataclass(frozen=True)
class ArgumentType:
    """Shape and MLIR element type (`bf16`, `f32`, `i32`, ...) of an argument; shape () is a scalar."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Entry:
    """A public function of the program."""

    name: str
    arguments: tuple[ArgumentType, ...]


class Library:
    """A shared object that `build` made."""

    def __init__(self, path: Path | str) -> None:
        """Load it. Raises VirtualNpuError when the file is no such object or of another version."""
        self.path = Path(path)
        try:
            self._library = ctypes.CDLL(str(self.path.resolve()))
            first = ctypes.c_char.in_dll(self._library, "vnpu_metadata")
        except (OSError, ValueError) as error:
            raise VirtualNpuError(
                f"{self.path} is not a program of the virtual NPU ({error}): build it again"
            ) from error
        metadata = json.loads(ctypes.string_at(ctypes.addressof(first)))
        if metadata["format"] != FORMAT:
            raise VirtualNpuError(
                f"{self.path} has format {metadata['format']}, this version reads {FORMAT}: build it again"
            )
        self.entries = {name: _entry(name, found["arguments"]) for name, found in metadata["entries"].items()}

    def run(self, entry: str, pointers: Sequence[int]) -> None:
        """Run an entry on buffers at these addresses, one per argument, in order.

        The caller keeps the buffers alive and of the sizes that `entries` tells. Raises
        VirtualNpuDeadlock, or VirtualNpuRuntimeError with what failed.
        """
        found = self.entries.get(entry)
        if found is None:
            raise ArgumentError(f"no entry {entry} in {self.path.name}: it has {', '.join(self.entries)}")
        if len(pointers) != len(found.arguments):
            raise ArgumentError(f"{entry} takes {len(found.arguments)} arguments, {len(pointers)} given")
        function = getattr(self._library, entry_symbol(entry))
        arguments = (ctypes.c_void_p * len(pointers))(*pointers)
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        status = function(arguments, ctypes.c_int(knobs.threads()), message, ctypes.c_int64(_MESSAGE_BYTES))
        if status != 0:
            kind = VirtualNpuDeadlock if status == _DEADLOCK else VirtualNpuRuntimeError
            raise kind(f"{entry}: {message.value.decode(errors='replace')}")


def _entry(name: str, arguments: Sequence[dict[str, object]]) -> Entry:
    types = []
    for argument in arguments:
        shape, dtype = argument["shape"], argument["dtype"]
        assert isinstance(shape, list)
        assert isinstance(dtype, str)
        types.append(ArgumentType(tuple(shape), dtype))
    return Entry(name, tuple(types))
