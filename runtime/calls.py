"""A call of a program by the names of its arguments, and what is noted of it where it is to be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from runtime.buffer import Array
from runtime.buffers import BufferSet
from runtime.profiler import Profiler
from virtual_npu.pyxrt.batch import HostCode


@dataclass(frozen=True)
class HostWork:
    """What the host does between programs, on arrays that stay where they are. `code` is the same in C."""

    do: Callable[[], None]
    code: HostCode | None = None


@dataclass(frozen=True)
class ProgramCall:
    """A call of a program: `wanted` are the slots that are given, of `unread` those for programs alone."""

    name: str
    buffers: BufferSet
    arrays: Mapping[str, Array]
    wanted: Sequence[int]
    unread: Collection[str]

    def make(self, profiler: Profiler) -> None:
        call_by_name(self.name, self.buffers, self.arrays, self.wanted, False, self.unread, profiler)


@dataclass(frozen=True)
class HostCall:
    """Work of the host, under its name in the profiler."""

    name: str
    work: HostWork

    def make(self, profiler: Profiler) -> None:
        with profiler.span(self.name):
            self.work.do()


Step: TypeAlias = ProgramCall | HostCall


def call_by_name(
    name: str,
    buffers: BufferSet,
    arrays: Mapping[str, Array],
    wanted: Sequence[int],
    copy: bool,
    unread: Collection[str],
    profiler: Profiler,
) -> dict[str, Array]:
    """What KernelCache.run says, for a program's buffer set and the slots that are `wanted` back."""
    started, moved = time.perf_counter(), buffers.moved
    buffers.write_named(arrays)
    written = time.perf_counter()
    buffers.execute()
    executed = time.perf_counter()
    results = buffers.results(wanted, copy, unread)
    if profiler.enabled:
        spent = written - started, executed - written, time.perf_counter() - executed
        profiler.record(name, *spent, moved=buffers.moved - moved)
    return results
