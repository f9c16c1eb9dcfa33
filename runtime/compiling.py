"""Several programs compiled side by side, with progress told as it happens."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from runtime.artifacts import Artifact

if TYPE_CHECKING:
    from multi_launch_builder.program import Program


class Stage(Enum):
    """Where one program stands. REUSED and COMPILED are final."""

    COMPILING = "compiling"
    COMPILED = "compiled"
    REUSED = "reused"
    FAILED = "failed"


@dataclass(frozen=True)
class Progress:
    """One step of one program; `done` of `total` are finished. `detail` is why it compiles, or failed."""

    program: str
    stage: Stage
    done: int
    total: int
    seconds: float = 0.0
    detail: str = ""


OnProgress = Callable[[Progress], None]


class SideBySide:
    """Compiles with at most `jobs` programs under way (default: one per CPU).

    `compile_one` finds or compiles a program; it calls its second argument with the reason when it compiles.
    """

    def __init__(
        self,
        compile_one: Callable[[Program, Callable[[str], None]], Artifact],
        jobs: int | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._compile_one = compile_one
        self._jobs = jobs or os.cpu_count() or 1
        self._on_progress = on_progress
        self._telling = threading.Lock()
        self._done = self._total = 0

    def compile(self, programs: Sequence[Program]) -> list[Artifact]:
        """The artifacts, in the programs' order. The first failure is raised, once what is under way ends."""
        self._done, self._total = 0, len(programs)
        with ThreadPoolExecutor(max_workers=self._jobs, thread_name_prefix="compile") as pool:
            futures = [pool.submit(self._one, program) for program in programs]
            try:
                _raise_first(futures)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [future.result() for future in futures]

    def _one(self, program: Program) -> Artifact:
        try:
            artifact = self._compile_one(
                program, lambda why: self._tell(program, Stage.COMPILING, detail=why)
            )
        except Exception as error:
            self._tell(program, Stage.FAILED, detail=str(error))
            raise
        stage = Stage.REUSED if artifact.reused else Stage.COMPILED
        self._tell(program, stage, finished=1, seconds=artifact.seconds)
        return artifact

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
