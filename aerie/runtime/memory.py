"""Memory: how much this process can still allocate, and how much buffer objects will take.

Sources: MemAvailable in proc_meminfo(5); the limits of control groups in the kernel's
admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst; those of `ulimit` in getrlimit(2).
"""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit

from aerie.common.knobs import PLAIN, STRICT, is_plain
from aerie.kernel_builder.arguments import STATIC_ROLES, ArgumentTable, Role
from aerie.runtime.buffers import Sharing, sharing_in_force

ROOT = Path("/")
"""The folder that has /proc and /sys; tests replace it."""

GIB = 1 << 30

ULIMITS = {"Max address space": "VmSize", "Max data size": "VmData"}
"""Limits of a process in /proc/self/limits, and the field of /proc/self/status with the amount in use."""


@dataclass(frozen=True)
class _ControlGroups:
    """Where one version of control groups has its limits, and its names for the page cache."""

    mount: str
    limit: str
    usage: str
    cache: tuple[str, str]


V1 = _ControlGroups(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)
V2 = _ControlGroups("sys/fs/cgroup", "memory.max", "memory.current", ("active_file", "inactive_file"))


def available_bytes(root: Path | None = None) -> int | None:
    """Bytes that this process can allocate without swapping; None if the system does not say.

    The minimum of the system's free memory, what each control group above the process leaves, and `ulimit`.
    root: the folder with /proc and /sys; default ROOT.
    """
    root = ROOT if root is None else root
    system = _kilobytes(_text(root / "proc/meminfo"), "MemAvailable")
    limits = [*([] if system is None else [system]), *_control_group_bytes(root), *_ulimit_bytes(root)]
    return max(0, min(limits)) if limits else None


def resident_bytes(root: Path | None = None) -> int:
    """Bytes of memory that this process uses now; 0 if the system does not say. root: as in
    available_bytes.
    """
    return _kilobytes(_text((ROOT if root is None else root) / "proc/self/status"), "VmRSS") or 0


def use_one_malloc_arena() -> None:
    """Let all threads allocate from one malloc arena if `ulimit` limits the address space.

    glibc reserves 64 MiB of addresses per thread arena (HEAP_MAX_SIZE in its malloc/arena.c), which buffers
    then lack.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt and getrlimit(RLIMIT_AS)[0] != RLIM_INFINITY:
        m_arena_max = -8  # of glibc's malloc.h
        mallopt(m_arena_max, 1)


def return_freed_memory() -> None:
    """Return freed memory to the system: reference cycles are collected, then glibc trims its heap. About 0.1
    s.
    """
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _control_group_bytes(root: Path) -> Iterator[int]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        kind = V1 if controllers else V2
        mount = root / kind.mount
        folder = mount / path.lstrip("/")
        for group in (folder, *folder.parents):
            yield from _remaining(kind, group)
            if group == mount:
                break


def _remaining(kind: _ControlGroups, group: Path) -> Iterator[int]:
    """What a control group has left, its page cache included; yields nothing if it has no limit."""
    limit, usage = _text(group / kind.limit).strip(), _text(group / kind.usage).strip()
    if limit.isdigit() and usage.isdigit():
        stat = dict(re.findall(r"^(\w+) (\d+)$", _text(group / "memory.stat"), re.MULTILINE))
        yield int(limit) - int(usage) + sum(int(stat.get(name, 0)) for name in kind.cache)


def _ulimit_bytes(root: Path) -> Iterator[int]:
    limits, status = _text(root / "proc/self/limits"), _text(root / "proc/self/status")
    for limit, in_use in ULIMITS.items():
        allowed = re.search(rf"^{limit}\s+(\d+)\s", limits, re.MULTILINE)
        taken = _kilobytes(status, in_use)
        if allowed and taken is not None:
            yield int(allowed[1]) - taken


def _kilobytes(text: str, name: str) -> int | None:
    """An entry of /proc in bytes, such as "VmSize:    1234 kB"."""
    match = re.search(rf"^{name}:\s*(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def format_bytes(nbytes: int) -> str:
    """An amount of memory as text, in whole MiB or tenths of a GiB, such as "300 MiB"."""
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes >> 20} MiB"


def format_file_bytes(nbytes: int) -> str:
    """A file's size as text, down to single bytes, such as "1.5 KiB"."""
    for unit, name in ((GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} bytes"


@dataclass(frozen=True)
class BufferBytes:
    """Bytes of buffer objects: weights and tables, filled once, and all other arguments."""

    weights: int
    activations: int


def buffer_bytes(sets: Iterable[tuple[str, ArgumentTable]], sharing: Sharing, copies: int = 1) -> BufferBytes:
    """Bytes that the buffers of these sets (bo_key, arguments) take, with `sharing`.

    copies: how many copies of each buffer a device keeps (DeviceAccess.copies_per_buffer). An intermediate
    counts once: it never comes to the host. With AERIE_PLAIN=buffers nothing is shared.
    """
    shared, places = sharing_in_force(sharing), set()
    taken = {True: 0, False: 0}
    for bo_key, arguments in sets:
        for argument in arguments:
            place = shared.get((bo_key, argument.name))
            if place is None or place not in places:
                times = 1 if argument.role is Role.INTERMEDIATE else copies
                taken[argument.role in STATIC_ROLES] += times * argument.nbytes
                places.add(place)
    return BufferBytes(weights=taken[True], activations=taken[False])


def memory_advice(copies: int = 1) -> list[str]:
    """The settings to change for smaller buffers, a phrase each. copies: as in buffer_bytes."""
    costly = {PLAIN.name: is_plain("buffers"), STRICT.name: copies > 1}
    return [f"unset {name}" for name, is_set in costly.items() if is_set]
