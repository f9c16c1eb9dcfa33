"""What the machine is, and what a process took of its memory. No name of host or user."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

from virtual_npu import knobs
from virtual_npu.compiler import find_compiler
from virtual_npu.fingerprint import tool_version

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
        "compiler": tool_version(find_compiler().path),
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
