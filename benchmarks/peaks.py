"""What the machine can do at most, measured: products in the caches, memory. The limits of prefill and of
decoding, where every weight is read once per token."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import numpy as np

from aerie.common import knobs
from aerie.virtual_npu.objects import INCLUDE, load_host_code
from benchmarks.machine import caches

FOLDER = Path(__file__).parent
NBYTES = 1 << 28
"""Of memory to read, at least."""
CACHES = 4
"""And so many times the largest cache, which is read faster than memory: a server's may hold as much as
NBYTES."""

SECONDS = 0.3
"""Of one measurement of a peak."""


def measure_peaks(seconds: float = SECONDS) -> dict[str, list[float]]:
    """GFLOP/s of the micro-kernel of the matrix product and of f32 fused multiply-adds, GB/s of memory: each
    with one thread, and with all together. By the instruction set that programs are compiled for.

    Raises ToolchainError where the C++ cannot be compiled.
    """
    multiply = load_host_code(FOLDER / "peaks.cc", (INCLUDE,))
    counts = (1, knobs.thread_count())

    def rates(function: str) -> list[float]:
        rate = multiply[function]
        rate.argtypes, rate.restype = [ctypes.c_int64, ctypes.c_double], ctypes.c_double
        return [rate(threads, seconds) / 1e9 for threads in counts]

    return {
        "product_gflop_per_s": rates("product_rate"),
        "f32_fma_gflop_per_s": rates("fma_rate"),
        "memory_gb_per_s": [MemoryReader(threads=threads).bytes_per_second() / 1e9 for threads in counts],
    }


def enough_to_read() -> int:
    """Bytes that no cache holds a good part of."""
    return max(NBYTES, CACHES * max(caches().values(), default=0))


class MemoryReader:
    """Reads the same memory again and again, with so many threads, or all."""

    def __init__(self, nbytes: int | None = None, threads: int | None = None) -> None:
        """nbytes: `enough_to_read` by default. Raises ToolchainError where the C++ cannot be compiled."""
        self._read = load_host_code(FOLDER / "read_memory.cc", (INCLUDE,)).read_memory
        self._read.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 3]
        self._read.restype = ctypes.c_uint64
        self._memory = np.ones((nbytes or enough_to_read()) // 8, np.uint64)
        self._threads = threads or knobs.thread_count()

    def sum(self, *, asks: bool) -> int:
        """The sum of all words: every one was read. asks: for them early, as programs do."""
        total: int = self._read(self._memory.ctypes.data, self._memory.nbytes, self._threads, asks)
        return total

    def bytes_per_second(self, times: int = 10) -> float:
        """The best of so many readings, in either way in turn: what else runs can only slow one down."""
        return max(self._once(asks=number % 2 == 0) for number in range(times))

    def _once(self, *, asks: bool) -> float:
        started = time.perf_counter()
        self.sum(asks=asks)
        return self._memory.nbytes / (time.perf_counter() - started)
