"""How fast this machine reads memory: the limit of decoding, where every weight is read once per token."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import numpy as np

from virtual_npu import knobs
from virtual_npu.objects import load_host_code

NBYTES = 1 << 28
"""Larger than any cache that a thread may have to itself."""

SOURCE = Path(__file__).parent / "read_memory.cc"


class MemoryReader:
    """Reads the same memory again and again, with all threads."""

    def __init__(self, nbytes: int = NBYTES) -> None:
        """Raises ToolchainError where the C++ cannot be compiled."""
        self._read = load_host_code(SOURCE).read_memory
        self._read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        self._read.restype = ctypes.c_uint64
        self._memory = np.ones(nbytes // 8, np.uint64)

    def sum(self) -> int:
        """The sum of all words: every one was read."""
        total: int = self._read(self._memory.ctypes.data, self._memory.nbytes, knobs.threads())
        return total

    def bytes_per_second(self, times: int = 10) -> float:
        """The best of so many readings: what else runs on the machine can only slow one down."""
        return max(self._once() for _ in range(times))

    def _once(self) -> float:
        started = time.perf_counter()
        self.sum()
        return self._memory.nbytes / (time.perf_counter() - started)
