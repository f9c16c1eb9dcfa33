"""Describe the machine as far as it matters for speed: CPU, caches, load, memory."""

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


def describe_machine() -> dict[str, Any]:
    """CPU, caches, memory, compiler and versions, as JSON."""
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
    """CPUs that this process may use, and their cores: fewer if some are hyperthreads."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_text(CPUS / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus}
    return {"cpus": len(cpus), "cores": len(cores)}


def caches() -> dict[str, int]:
    """Bytes of each cache that the first CPU reads data from, by its name: L1d, L2, L3.

    Empty where the system does not say.
    """
    sizes = {}
    for index in sorted((CPUS / "cpu0/cache").glob("index*")):
        level, kind, size = (_text(index / name).strip() for name in ("level", "type", "size"))
        number = re.fullmatch(r"(\d+)K", size)
        if number and kind != "Instruction":
            sizes[f"L{level}{'d' if kind == 'Data' else ''}"] = int(number[1]) * 1024
    return sizes


def peak_bytes() -> int:
    """Peak resident memory of this process, mapped files included."""
    kilobytes = _first(r"^VmHWM:\s*(\d+) kB$", _text(PROC / "self/status"))
    if kilobytes:
        return int(kilobytes) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def load_average() -> float:
    """Runnable processes, averaged over the last minute."""
    return round(os.getloadavg()[0], 2)


def _meminfo(name: str) -> int | None:
    kilobytes = _first(rf"^{name}:\s*(\d+) kB$", _text(PROC / "meminfo"))
    return int(kilobytes) * 1024 if kilobytes else None


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
