"""How many CPUs a process may use, by affinity and by the quota of its control group: files stand in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aerie.common import cpu_count as module
from aerie.common import knobs
from aerie.common.cpu_count import cpu_count

Groups = Callable[[str, dict[str, str]], None]


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Groups]:
    """groups(own, files) -> None: what /proc/self/cgroup says, and files below /sys/fs/cgroup."""
    monkeypatch.setattr(module, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(module, "OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)

    def write(own: str, files: dict[str, str]) -> None:
        cpu_count.cache_clear()
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    yield write
    cpu_count.cache_clear()


TWO = "200000 100000\n"


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        ("0::/\n", {"cpu.max": TWO}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "1000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "9900000 100000\n"}, 64),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": TWO}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "300000 100000", "cpu.max": TWO}, 2),
        ("0::/../../other\n", {"cpu.max": TWO}, 2),
        ("4:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, 2),
        ("4:cpu:/a\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ("4:memory:/a\n", {"memory/a/cpu.max": TWO}, 64),
        ("0::/\n", {"cpu.max": "200000 0\n"}, 64),
        ("0::/\n", {"cpu.max": "two of them\n"}, 64),
        ("", {}, 64),
        ("nonsense", {}, 64),
    ],
)  # fmt: skip
def test_a_container_uses_the_cpus_that_it_was_given(groups, own, files, cpus):
    groups(own, files)
    assert cpu_count() == cpus
    assert knobs.thread_count() == cpus


def test_the_affinity_counts_where_it_is_less(groups, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    groups("0::/\n", {"cpu.max": TWO})
    assert cpu_count() == 1


def test_a_system_without_affinity(groups, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    groups("", {})
    assert cpu_count() == 8
