"""The machine in what matters to speed: its CPU, its load, memory in use, and how fast it reads memory: the
limit of decoding, where every weight is read once per token."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from aerie.virtual_npu import knobs
from aerie.virtual_npu.compiler import find_compiler
from aerie.virtual_npu.objects import load_host_code

INSTRUCTION_SETS = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16")
PACKAGES = ("numpy", "torch", "transformers")

PROC = Path("/proc")


def describe() -> dict[str, Any]:
    """The machine in what matters to speed."""
    cpu = _text("cpuinfo")
    flags = set((_first(r"^flags\s*: (.*)$", cpu) or "").split())
    return {
        "cpu": _first(r"^model name\s*: (.*)$", cpu) or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": knobs.threads(),
        "instruction_sets": [name for name in INSTRUCTION_SETS if name in flags],
        "memory_bytes": _meminfo("MemTotal"),
        "compiler": find_compiler().version,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


def peak_bytes() -> int:
    """The most memory that this process had resident, mapped files included."""
    found = _first(r"^VmHWM:\s*(\d+) kB$", _text("self/status"))
    if found:
        return int(found) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def load_average() -> float:
    """Processes that wanted to run, averaged over the last minute."""
    return round(os.getloadavg()[0], 2)


def _meminfo(name: str) -> int | None:
    found = _first(rf"^{name}:\s*(\d+) kB$", _text("meminfo"))
    return int(found) * 1024 if found else None


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else None


def _text(name: str) -> str:
    try:
        return (PROC / name).read_text(errors="replace")
    except OSError:
        return ""


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
