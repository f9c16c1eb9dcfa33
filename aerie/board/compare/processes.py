"""All items: compiled first, side by side, then each run in a process of its own, so that a crash or a hang
is an outcome and not the end.

A child has its own device and buffers, writes all that it or a driver prints to a log, and tells what it is
at. Each phase has a time limit; a child that exceeds it is killed. One that was killed while it ran a program
leaves a device that may answer no more: the outcome says so, and nothing is run after it.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from aerie.board.compare.items import Item, plan_of
from aerie.board.compare.measuring import COMPILING, JUDGING, RUNNING, RUNS, measure, one_line
from aerie.board.compare.records import Outcome, Status
from aerie.common.errors import UserError
from aerie.multi_launch_builder.building import build_program
from aerie.multi_launch_builder.program import Program
from aerie.runtime.backend import Backend
from aerie.runtime.cache import KernelCache
from aerie.runtime.compiling import memory_budget
from aerie.runtime.errors import AerieRuntimeError, CompileError
from aerie.runtime.knobs import NPU_TIMEOUT
from aerie.virtual_npu import ProgramError

MakeBackend = Callable[[], Backend]
"""Makes the backend in the child; a function that the child can import."""

STARTING = "starting"
LIMITS_S = {STARTING: 120.0, COMPILING: 3600.0, RUNNING: 60.0, JUDGING: 1800.0}
"""Seconds per phase, besides what three runs may take (AERIE_NPU_TIMEOUT each). aircc takes minutes; a slow
CPU builds up to five variants of every launch on the virtual NPU."""

GRACE_S = 5.0
"""Seconds that a child has to end by itself once its work is done, or it was asked to."""

FAILED_EXIT = 1


class StoppedError(Exception):
    """A child that did not end as it should; `status` and the message say how."""

    def __init__(self, status: Status, message: str, lost: bool = False) -> None:
        super().__init__(message)
        self.status, self.lost = status, lost


def limits_s() -> dict[str, float]:
    """How long each phase may take. Raises UserError for an AERIE_NPU_TIMEOUT that makes no sense."""
    try:
        timeout_s = float(NPU_TIMEOUT.get())
    except ProgramError as error:
        raise UserError(str(error)) from error
    return {**LIMITS_S, RUNNING: LIMITS_S[RUNNING] + RUNS * timeout_s}


def compare_apart(
    item: Item,
    make_backend: MakeBackend,
    cache_dir: Path,
    log: Path,
    on_phase: Callable[[str], None],
    limits: Mapping[str, float],
) -> Outcome:
    """The outcome of one item, from a process of its own. Ctrl-C ends the child too."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(item, make_backend, cache_dir, log, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        return _listen(child, ours, on_phase, limits)
    except StoppedError as stopped:
        return Outcome(item, stopped.status, message=str(stopped), log=log.name, lost=stopped.lost)
    finally:
        _end(child)
        ours.close()


def _listen(
    child: BaseProcess, ours: Connection, on_phase: Callable[[str], None], limits: Mapping[str, float]
) -> Outcome:
    """Follow the child through its phases to its outcome. Raises StoppedError."""
    phase = STARTING
    while True:
        on_phase(phase)
        if not ours.poll(limits[phase]):
            raise _hung(phase, limits[phase])
        try:
            told = ours.recv()
        except EOFError:
            child.join(GRACE_S)
            raise _crashed(phase, child.exitcode) from None
        if isinstance(told, Outcome):
            child.join(GRACE_S)
            return told
        phase = str(told)


def _hung(phase: str, limit_s: float) -> StoppedError:
    message = f"no end of {phase} within {limit_s:g} s, so its process was killed"
    if phase != RUNNING:
        return StoppedError(Status.HUNG, message)
    return StoppedError(Status.HUNG, f"{message}; the device may answer no more until it is reset", lost=True)


def _crashed(phase: str, code: int | None) -> StoppedError:
    if code is not None and code < 0:
        return StoppedError(
            Status.CRASHED, f"its process ended by {signal.Signals(-code).name} while {phase}"
        )
    return StoppedError(
        Status.CRASHED, f"its process ended with exit code {code} while {phase}; its log says why"
    )


def _end(child: BaseProcess) -> None:
    """Make a child that still runs end, and what it started with it: a compiler, for one."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.is_alive():
            _signal(child.pid or 0, number)
            child.join(GRACE_S)
    if not child.is_alive():
        child.close()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:  # too young to have a group of its own
            os.kill(pid, number)


def _work(item: Item, make_backend: MakeBackend, cache_dir: Path, log: Path, out: Connection) -> None:
    """The child: everything printed goes to the log, an outcome to the pipe."""
    os.setsid()  # a process group, which ends as one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED_EXIT))  # so that a compiler it runs is ended too
    _print_to(log)
    started = time.monotonic()

    def tell(phase: str) -> None:
        print(f"[{time.monotonic() - started:.1f} s] {phase}", flush=True)
        out.send(phase)

    try:
        out.send(measure(item, make_backend(), cache_dir, tell))
    except (AerieRuntimeError, ProgramError) as error:
        out.send(Outcome(item, Status.FAILED, message=one_line(error), log=log.name))
    except Exception:
        traceback.print_exc()  # ours, not the owner's: the log has it, and the exit code says so
        os._exit(FAILED_EXIT)


def _print_to(log: Path) -> None:
    """Standard output and error go to a file, those of the driver's C++ too."""
    with contextlib.suppress(OSError), log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def compile_ahead(
    items: Sequence[Item], backend: Backend, cache_dir: Path, on_done: Callable[[Item, int], None]
) -> dict[Item, Outcome]:
    """The outcomes of items that cannot be compiled; all others are in the cache afterwards.

    on_done is called with each item and how many are done. Ctrl-C ends the compilers too. Raises
    AerieRuntimeError for what no item is to blame for, such as a cache folder that cannot be written.
    """
    programs = {item: build_program(plan_of(item)) for item in items}  # here: xDSL builds in one thread alone
    failed: dict[Item, Outcome] = {}
    toolchain = backend.toolchain
    jobs = max(1, min(os.cpu_count() or 1, memory_budget() // max(1, toolchain.memory_bytes)))
    with ThreadPoolExecutor(jobs, thread_name_prefix="compile") as pool:
        futures = {
            pool.submit(_failure, item, program, backend, cache_dir): item
            for item, program in programs.items()
        }
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                if outcome := future.result():
                    failed[futures[future]] = outcome
                on_done(futures[future], done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            toolchain.stop()
            raise
    return failed


def _failure(item: Item, program: Program, backend: Backend, cache_dir: Path) -> Outcome | None:
    try:
        with KernelCache(cache_dir, backend) as cache:
            cache.compile_and_cache(program)
    except CompileError as error:
        return Outcome(item, Status.NOT_COMPILED, message=one_line(error))
    return None


OnItem = Callable[[Item, str], None]
"""Called with an item and what is being done with it."""

CompareOne = Callable[[Item, Callable[[str], None]], Outcome]
"""Compares one item, telling its phases."""


def compare_all(
    items: Sequence[Item], compare_one: CompareOne, on_item: OnItem, known: Mapping[Item, Outcome]
) -> Iterator[Outcome]:
    """The outcomes, in order; `known` has those of items that need not be run, as they were not compiled.

    Once the device is lost, all that is left was not run.
    """
    lost: Item | None = None
    for item in items:
        if lost is not None:
            yield Outcome(item, Status.NOT_RUN, message=f"{lost} left a device that answers no more")
            continue
        outcome = known.get(item) or compare_one(item, functools.partial(on_item, item))
        lost = item if outcome.lost else None
        yield outcome


def in_processes(make_backend: MakeBackend, cache_dir: Path, logs: Path) -> CompareOne:
    """Compares each item in a process of its own, its log in the folder `logs`.

    Raises UserError for an AERIE_NPU_TIMEOUT that makes no sense.
    """
    limits = limits_s()

    def compare_one(item: Item, on_phase: Callable[[str], None]) -> Outcome:
        log = logs / f"{item.kind}-{item.name}-{item.case}.log"
        outcome = compare_apart(item, make_backend, cache_dir, log, on_phase, limits)
        return replace(outcome, log=log.name)

    return compare_one
