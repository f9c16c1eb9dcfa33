"""The machine in what matters to speed: its CPU and caches, its load, memory in use."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

from aerie.common import cpu, knobs
from aerie.common.compiler import find_compiler

PACKAGES = ("numpy", "torch", "transformers")

PROC = Path("/proc")
CPUS = Path("/sys/devices/system/cpu")


def describe() -> dict[str, Any]:
    """The machine in what matters to speed."""
    model = _first(r"^model name\s*: (.*)$", _text(PROC / "cpuinfo"))
    return {
        "cpu": model or platform.processor() or platform.machine(),
        **topology(),
        "threads": knobs.thread_count(),
        "instruction_sets": [each.title for each in cpu.instruction_sets()],
        "features": list(cpu.cpu_features()),
        "cache_bytes": caches(),
        "memory_bytes": _meminfo("MemTotal"),
        "compiler": find_compiler().version,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


def topology() -> dict[str, int]:
    """CPUs that this process may use, and on how many cores they are: fewer where they are hyperthreads."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_text(CPUS / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus}
    return {"cpus": len(cpus), "cores": len(cores)}


def caches() -> dict[str, int]:
    """Bytes of each cache that the first CPU reads data from, by its name: L1d, L2, L3.

    Empty where the system does not say.
    """
    found = {}
    for index in sorted((CPUS / "cpu0/cache").glob("index*")):
        level, kind, size = (_text(index / name).strip() for name in ("level", "type", "size"))
        number = re.fullmatch(r"(\d+)K", size)
        if number and kind != "Instruction":
            found[f"L{level}{'d' if kind == 'Data' else ''}"] = int(number[1]) * 1024
    return found


def peak_bytes() -> int:
    """The most memory that this process had resident, mapped files included."""
    found = _first(r"^VmHWM:\s*(\d+) kB$", _text(PROC / "self/status"))
    if found:
        return int(found) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def load_average() -> float:
    """Processes that wanted to run, averaged over the last minute."""
    return round(os.getloadavg()[0], 2)


def _meminfo(name: str) -> int | None:
    found = _first(rf"^{name}:\s*(\d+) kB$", _text(PROC / "meminfo"))
    return int(found) * 1024 if found else None


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
