"""Every environment variable that the virtual NPU reads, with its default and its meaning."""

from __future__ import annotations

import os
from dataclasses import dataclass

from virtual_npu.errors import VirtualNpuError


@dataclass(frozen=True)
class Knob:
    """One environment variable."""

    name: str
    default: str
    meaning: str

    def get(self) -> str:
        """The value in the environment, else the default."""
        return os.environ.get(self.name) or self.default


THREADS = Knob("VNPU_THREADS", "", "threads that run tiles and launch iterations; empty: one per CPU")
STRICT = Knob("VNPU_STRICT", "0", "1: host and device memory of virtual_npu.pyxrt are separate")
CXX = Knob("VNPU_CXX", "", "C++ compiler; empty: CXX, then c++, g++, clang++")
MARCH = Knob(
    "VNPU_MARCH", "native", "value of -march for generated code and external kernels; none: not given"
)
OPT = Knob("VNPU_OPT", "3", "optimisation level of generated code and external kernels: 0, 1, 2, 3")
KEEP = Knob("VNPU_KEEP", "", "folder that receives a copy of the generated C++; empty: none is kept")

TABLE = (THREADS, STRICT, CXX, MARCH, OPT, KEEP)


def threads() -> int:
    """How many threads a run uses. Raises VirtualNpuError when VNPU_THREADS is no positive integer."""
    text = THREADS.get()
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdigit() or int(text) < 1:
        raise VirtualNpuError(
            f"VNPU_THREADS={text} is not a positive integer: unset it, or give a number such as 2"
        )
    return int(text)


def strict() -> bool:
    """Whether host and device memory are separate."""
    return STRICT.get() not in ("", "0")
