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
from aerie.runtime.buffers import Sharing, effective

ROOT = Path("/")
"""Where /proc and /sys lie."""

GIB = 1 << 30

ULIMITS = {"Max address space": "VmSize", "Max data size": "VmData"}
"""Limits of a process in /proc/self/limits, and what it has of each in /proc/self/status."""


@dataclass(frozen=True)
class _ControlGroups:
    """Where one version of control groups tells its limits, and its names of what is only page cache."""

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
    """Bytes that this process can allocate without swapping; None where the system does not tell.

    The least of what the system has, what each control group above the process leaves, and `ulimit`.
    `root` (default: ROOT) is where /proc and /sys lie.
    """
    root = ROOT if root is None else root
    system = _kilobytes(_text(root / "proc/meminfo"), "MemAvailable")
    told = [*([] if system is None else [system]), *_of_control_groups(root), *_of_ulimits(root)]
    return max(0, min(told)) if told else None


def resident_bytes(root: Path | None = None) -> int:
    """Bytes of memory that this process has now; 0 where the system does not tell. `root` as of
    available_bytes."""
    return _kilobytes(_text((ROOT if root is None else root) / "proc/self/status"), "VmRSS") or 0


def share_arena() -> None:
    """Where `ulimit` limits the address space, let all threads allocate from one arena.

    For each thread's own, glibc reserves 64 MiB of addresses (HEAP_MAX_SIZE in its malloc/arena.c), which
    buffers then lack.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt and getrlimit(RLIMIT_AS)[0] != RLIM_INFINITY:
        m_arena_max = -8  # of glibc's malloc.h
        mallopt(m_arena_max, 1)


def give_back() -> None:
    """Have the system get back what this process has freed: what only a circle of references holds, and what
    glibc keeps for later. Takes about 0.1 s."""
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def _of_control_groups(root: Path) -> Iterator[int]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        kind = V1 if controllers else V2
        mount = root / kind.mount
        folder = mount / path.lstrip("/")
        for group in (folder, *folder.parents):
            yield from _left_by(kind, group)
            if group == mount:
                break


def _left_by(kind: _ControlGroups, group: Path) -> Iterator[int]:
    """What a control group has left, its page cache included; nothing where it has no limit."""
    limit, usage = _text(group / kind.limit).strip(), _text(group / kind.usage).strip()
    if limit.isdigit() and usage.isdigit():
        stat = dict(re.findall(r"^(\w+) (\d+)$", _text(group / "memory.stat"), re.MULTILINE))
        yield int(limit) - int(usage) + sum(int(stat.get(name, 0)) for name in kind.cache)


def _of_ulimits(root: Path) -> Iterator[int]:
    limits, status = _text(root / "proc/self/limits"), _text(root / "proc/self/status")
    for limit, held in ULIMITS.items():
        allowed = re.search(rf"^{limit}\s+(\d+)\s", limits, re.MULTILINE)
        taken = _kilobytes(status, held)
        if allowed and taken is not None:
            yield int(allowed[1]) - taken


def _kilobytes(text: str, name: str) -> int | None:
    """An entry of /proc in bytes, such as "VmSize:    1234 kB"."""
    found = re.search(rf"^{name}:\s*(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def size(nbytes: int) -> str:
    """A size in words, such as "2.5 GiB"."""
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes >> 20} MiB"


@dataclass(frozen=True)
class BufferBytes:
    """Bytes that buffer objects take: of weights and tables, filled once, and of all other arguments."""

    weights: int
    activations: int


def buffer_bytes(sets: Iterable[tuple[str, ArgumentTable]], sharing: Sharing, copies: int = 1) -> BufferBytes:
    """Bytes that the buffers of these sets (bo_key, arguments) take, those in `sharing` shared.

    copies: how often a device keeps each buffer (DeviceAccess.copies); an intermediate, which never comes to
    the host, takes memory once all the same. With AERIE_PLAIN=buffers nothing is shared.
    """
    shared, places = effective(sharing), set()
    taken = {True: 0, False: 0}
    for bo_key, arguments in sets:
        for argument in arguments:
            place = shared.get((bo_key, argument.name))
            if place is None or place not in places:
                times = 1 if argument.role is Role.INTERMEDIATE else copies
                taken[argument.role in STATIC_ROLES] += times * argument.nbytes
                places.add(place)
    return BufferBytes(weights=taken[True], activations=taken[False])


def ways_to_save(copies: int = 1) -> list[str]:
    """The settings to change for smaller buffers, a phrase each; `copies` as of buffer_bytes."""
    costly = {PLAIN.name: is_plain("buffers"), STRICT.name: copies > 1}
    return [f"unset {name}" for name, is_set in costly.items() if is_set]
