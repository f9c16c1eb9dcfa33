"""Compiles several programs in parallel, within a budget of memory, and reports progress."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from aerie.common.cpu_count import cpu_count
from aerie.common.store import interrupt_lock_waits
from aerie.runtime import knobs
from aerie.runtime.artifacts import Artifact
from aerie.runtime.memory import GIB, available_bytes

if TYPE_CHECKING:
    from aerie.multi_launch_builder.program import Program


class CompileStage(Enum):
    """The stage of one program. REUSED and COMPILED are final."""

    COMPILING = "compiling"
    COMPILED = "compiled"
    REUSED = "reused"
    FAILED = "failed"


@dataclass(frozen=True)
class Progress:
    """One program reached a stage; `done` of `total` programs are finished. seconds: how long compiling took.
    detail: why it is compiled, or why it failed.
    """

    program: str
    stage: CompileStage
    done: int
    total: int
    seconds: float = 0.0
    detail: str = ""


OnProgress = Callable[[Progress], None]


MEMORY_SHARE = 0.8
"""The share of free memory that compilers may use. The rest is a reserve."""


def memory_budget() -> int:
    """Bytes that parallel compilations may use: AERIE_COMPILE_MEMORY, else MEMORY_SHARE of the free memory.

    Raises KnobError if the variable's value is not valid.
    """
    setting = knobs.COMPILE_MEMORY.get()
    return int(float(setting) * GIB) if setting else int(_free_bytes() * MEMORY_SHARE)


def _free_bytes() -> int:
    """Bytes that this process can allocate; the machine's whole memory if that is unknown."""
    available = available_bytes()
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if available is None else available


Begin = Callable[[str], AbstractContextManager[None]]
"""A context in which one program compiles. Entering it waits for memory in the budget and reports the reason.
"""


class CompileLoad(Protocol):
    """The part of a toolchain that parallel compilation needs."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that compiling one program takes."""

    def stop(self) -> None:
        """Stop the compilations in other threads."""


class MemoryBudget:
    """Memory in bytes that compilations share. A program that needs more than the whole budget compiles
    alone.
    """

    def __init__(self, nbytes: int) -> None:
        self._free = nbytes
        self._under_way = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def reserve(self, nbytes: int) -> Iterator[None]:
        """Wait until `nbytes` are free, or until nothing else compiles."""
        with self._changed:
            self._changed.wait_for(lambda: nbytes <= self._free or not self._under_way)
            self._free -= nbytes
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._free += nbytes
                self._under_way -= 1
                self._changed.notify_all()


class ParallelCompiler:
    """Compiles at most `jobs` programs at a time (default: one per CPU).

    `compile_one` finds or compiles a program; it compiles inside the context that its second argument makes
    from a reason. load: says how much memory that takes, and is stopped when the caller is interrupted
    (Ctrl-C).
    """

    def __init__(
        self,
        compile_one: Callable[[Program, Begin], Artifact],
        load: CompileLoad,
        jobs: int | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._compile_one = compile_one
        self._load = load
        self._jobs = jobs or cpu_count()
        self._on_progress = on_progress
        self._telling = threading.Lock()
        self._done = self._total = 0

    def compile(self, programs: Sequence[Program]) -> list[Artifact]:
        """Return the artifacts, in the programs' order. Raises the first failure after all compilations have
        ended.

        Raises KnobError if the memory budget is not valid.
        """
        self._done, self._total = 0, len(programs)
        self._budget = MemoryBudget(memory_budget())
        with ThreadPoolExecutor(max_workers=self._jobs, thread_name_prefix="compile") as pool:
            futures = [pool.submit(self._compile_or_report, program) for program in programs]
            try:
                _raise_first(futures)
            except Exception:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._stop_all(futures)
                raise
        return [future.result() for future in futures]

    def _stop_all(self, futures: Sequence[Future[Artifact]]) -> None:
        """Stop repeatedly: a compilation may start its next tool, or wait again, after the first stop."""
        while not all(future.done() for future in futures):
            self._load.stop()
            interrupt_lock_waits()
            wait(futures, timeout=0.1)

    def _compile_or_report(self, program: Program) -> Artifact:
        try:
            artifact = self._compile_one(program, functools.partial(self._begin, program))
        except Exception as error:
            self._report(program, CompileStage.FAILED, detail=str(error))
            raise
        stage = CompileStage.REUSED if artifact.reused else CompileStage.COMPILED
        self._report(program, stage, finished=1, seconds=artifact.seconds)
        return artifact

    @contextlib.contextmanager
    def _begin(self, program: Program, reason: str) -> Iterator[None]:
        with self._budget.reserve(self._load.memory_bytes):
            self._report(program, CompileStage.COMPILING, detail=reason)
            yield

    def _report(
        self, program: Program, stage: CompileStage, finished: int = 0, seconds: float = 0.0, detail: str = ""
    ) -> None:
        with self._telling:
            self._done += finished
            if self._on_progress:
                self._on_progress(Progress(program.name, stage, self._done, self._total, seconds, detail))


def _raise_first(futures: Sequence[Future[Artifact]]) -> None:
    for future in as_completed(futures):
        future.result()
