"""Compiles several programs side by side, within a budget of memory, and reports progress."""

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

from aerie.common.store import interrupt_lock_waits
from aerie.runtime import knobs
from aerie.runtime.artifacts import Artifact
from aerie.runtime.memory import GIB, available_bytes

if TYPE_CHECKING:
    from aerie.multi_launch_builder.program import Program


class Stage(Enum):
    """Where one program stands. REUSED and COMPILED are final."""

    COMPILING = "compiling"
    COMPILED = "compiled"
    REUSED = "reused"
    FAILED = "failed"


@dataclass(frozen=True)
class Progress:
    """One program reached a stage; `done` of `total` programs are finished. `seconds`: how long compiling
    took.
    `detail`: why it has to be compiled, or failed."""

    program: str
    stage: Stage
    done: int
    total: int
    seconds: float = 0.0
    detail: str = ""


OnProgress = Callable[[Progress], None]


SHARE = 0.8
"""The share of free memory that compilers may take; the rest is for what cannot be foreseen."""


def memory_budget() -> int:
    """Bytes that compilations side by side may take: as AERIE_COMPILE_MEMORY says, else most of what is free.

    Raises KnobError for a value that makes no sense.
    """
    given = knobs.COMPILE_MEMORY.get()
    return int(float(given) * GIB) if given else int(_free_bytes() * SHARE)


def _free_bytes() -> int:
    """What this process could be given; where nothing says, all that the machine has."""
    available = available_bytes()
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if available is None else available


Begin = Callable[[str], AbstractContextManager[None]]
"""A context in which one program compiles: entering it waits for room in the budget, and reports why."""


class Load(Protocol):
    """The part of a toolchain that matters for compiling side by side."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that compiling one program takes."""

    def stop(self) -> None:
        """End the compilations in other threads."""


class Budget:
    """Memory in bytes that compilations share. One that takes more than all of it runs alone."""

    def __init__(self, nbytes: int) -> None:
        self._free = nbytes
        self._under_way = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, nbytes: int) -> Iterator[None]:
        """Waits until there is room for so many bytes, or nothing else is under way."""
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


class SideBySide:
    """Compiles with at most `jobs` programs under way (default: one per CPU).

    `compile_one` finds or compiles a program, the latter inside of the context that its second argument makes
    from a reason. `load` says how much memory that takes, and is stopped when the caller is interrupted
    (Ctrl-C).
    """

    def __init__(
        self,
        compile_one: Callable[[Program, Begin], Artifact],
        load: Load,
        jobs: int | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._compile_one = compile_one
        self._load = load
        self._jobs = jobs or os.cpu_count() or 1
        self._on_progress = on_progress
        self._telling = threading.Lock()
        self._done = self._total = 0

    def compile(self, programs: Sequence[Program]) -> list[Artifact]:
        """The artifacts, in the programs' order. The first failure is raised, once the other compilations
        ended.

        Raises KnobError for a budget of memory that makes no sense.
        """
        self._done, self._total = 0, len(programs)
        self._budget = Budget(memory_budget())
        with ThreadPoolExecutor(max_workers=self._jobs, thread_name_prefix="compile") as pool:
            futures = [pool.submit(self._one, program) for program in programs]
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
        """Stops again and again, for a compilation that begins its next tool, or its next wait, meanwhile."""
        while not all(future.done() for future in futures):
            self._load.stop()
            interrupt_lock_waits()
            wait(futures, timeout=0.1)

    def _one(self, program: Program) -> Artifact:
        try:
            artifact = self._compile_one(program, functools.partial(self._begin, program))
        except Exception as error:
            self._tell(program, Stage.FAILED, detail=str(error))
            raise
        stage = Stage.REUSED if artifact.reused else Stage.COMPILED
        self._tell(program, stage, finished=1, seconds=artifact.seconds)
        return artifact

    @contextlib.contextmanager
    def _begin(self, program: Program, why: str) -> Iterator[None]:
        with self._budget.take(self._load.memory_bytes):
            self._tell(program, Stage.COMPILING, detail=why)
            yield

    def _tell(
        self, program: Program, stage: Stage, finished: int = 0, seconds: float = 0.0, detail: str = ""
    ) -> None:
        with self._telling:
            self._done += finished
            if self._on_progress:
                self._on_progress(Progress(program.name, stage, self._done, self._total, seconds, detail))


def _raise_first(futures: Sequence[Future[Artifact]]) -> None:
    for future in as_completed(futures):
        future.result()
