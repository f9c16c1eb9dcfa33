"""Measure the peaks of the machine: products in the caches, and memory bandwidth. They limit prefill, and
decode, where each token reads every weight once."""

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
"""Minimum size of the memory that is read."""
CACHE_MULTIPLE = 4
"""At least so many times the largest cache, which may hold NBYTES in a server."""

SECONDS = 0.3
"""Seconds of one measurement."""


def measure_peaks(seconds: float = SECONDS) -> dict[str, list[float]]:
    """GFLOP/s of the micro-kernel of the matrix product and of f32 fused multiply-adds, GB/s of memory: each
    with one thread and with all. Compiled for the instruction set of the programs.

    Raises ToolchainError if the C++ does not compile.
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


def bytes_to_read() -> int:
    """Bytes to read so that no cache holds a large part of them."""
    return max(NBYTES, CACHE_MULTIPLE * max(caches().values(), default=0))


class MemoryReader:
    """Reads the same memory repeatedly, with `threads` threads or all."""

    def __init__(self, nbytes: int | None = None, threads: int | None = None) -> None:
        """nbytes: default is `bytes_to_read`. Raises ToolchainError if the C++ does not compile."""
        self._read = load_host_code(FOLDER / "read_memory.cc", (INCLUDE,)).read_memory
        self._read.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 3]
        self._read.restype = ctypes.c_uint64
        self._memory = np.ones((nbytes or bytes_to_read()) // 8, np.uint64)
        self._threads = threads or knobs.thread_count()

    def sum(self, *, prefetch: bool) -> int:
        """The sum of all words, so that each is read. prefetch: issue prefetches, as programs do."""
        total: int = self._read(self._memory.ctypes.data, self._memory.nbytes, self._threads, prefetch)
        return total

    def bytes_per_second(self, times: int = 10) -> float:
        """The best of `times` reads, with and without prefetch in turn: other programs can only slow one
        down."""
        return max(self._once(prefetch=number % 2 == 0) for number in range(times))

    def _once(self, *, prefetch: bool) -> float:
        started = time.perf_counter()
        self.sum(prefetch=prefetch)
        return self._memory.nbytes / (time.perf_counter() - started)
