"""How many CPUs this process may use: its affinity, and the CPU quota of its control group.

A container with two of a machine's 64 cores mostly sees all 64: its control group has a quota instead, of so
many microseconds of CPU time in each period. Threads beyond it make the group wait for its next period.
Source: Linux, Documentation/admin-guide/cgroup-v2.rst (`cpu.max`) and cgroup-v1/cpuacct (`cpu.cfs_quota_us`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@functools.cache
def cpu_count() -> int:
    """The number of CPUs that this process may use, at least 1, as it is at the first call.

    A quota that is no whole number of CPUs counts as the next larger one.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    cpus = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    quotas = [-(-quota // period) for quota, period in _quotas() if quota > 0 and period > 0]
    return max(1, min([cpus, *quotas]))


def _quotas() -> Iterator[tuple[int, int]]:
    """(quota, period) of the process's groups, each with those that contain it, in microseconds."""
    for controllers, path in _own_groups():
        root = GROUPS / "cpu" if controllers else GROUPS
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder == GROUPS.parent:
                break
            yield from _quota_of(folder)


def _own_groups() -> Iterator[tuple[str, str]]:
    """(controllers, path) of the groups that limit CPU time: version 2 names no controllers."""
    for line in _text(OWN_GROUP).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or "cpu" in controllers.split(","):
            yield controllers, path


def _quota_of(folder: Path) -> Iterator[tuple[int, int]]:
    second = f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}"
    for text in (_text(folder / "cpu.max"), second):
        words = text.split()
        if len(words) == 2 and all(word.isdecimal() for word in words):  # "max" and -1 are no limit
            yield int(words[0]), int(words[1])


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
