"""Compares all items: compiled first, in parallel, then each run in a child process, so that a crash or a
hang is an outcome and does not end the comparison.

A child has its own device and buffers, writes everything that it or a driver prints to a log, and reports its
phases. Each phase has a time limit; a child that exceeds it is killed. A child that was killed while it ran a
program leaves a device that may not answer any more: the outcome says so, and nothing is run after it.
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

from aerie.board.compare.item_run import COMPILING, JUDGING, RUNNING, RUNS, one_line, run_item
from aerie.board.compare.items import ComparisonItem, plan_item
from aerie.board.compare.records import ItemOutcome, ItemStatus
from aerie.common.errors import UserError
from aerie.multi_launch_builder.builder import build_program
from aerie.multi_launch_builder.program import Program
from aerie.runtime.backend import Backend
from aerie.runtime.cache import KernelCache
from aerie.runtime.errors import AerieRuntimeError, CompileError
from aerie.runtime.knobs import NPU_TIMEOUT
from aerie.runtime.parallel_compile import memory_budget
from aerie.virtual_npu import ProgramError

MakeBackend = Callable[[], Backend]
"""Makes the backend in the child; a function that the child can import."""

STARTING = "starting"
LIMITS_S = {STARTING: 120.0, COMPILING: 3600.0, RUNNING: 60.0, JUDGING: 1800.0}
"""Seconds per phase, besides three runs of at most AERIE_NPU_TIMEOUT each. aircc takes minutes; a slow CPU
builds up to five variants of every launch on the virtual NPU.
"""

GRACE_S = 5.0
"""Seconds that a child has to end by itself, after its work is done or after a signal."""

FAILED_EXIT = 1


class ChildFailedError(Exception):
    """A child process failed. status and the message say how."""

    def __init__(self, status: ItemStatus, message: str, lost: bool = False) -> None:
        super().__init__(message)
        self.status, self.lost = status, lost


def limits_s() -> dict[str, float]:
    """The time limit of each phase. Raises UserError if AERIE_NPU_TIMEOUT is not valid."""
    try:
        timeout_s = float(NPU_TIMEOUT.get())
    except ProgramError as error:
        raise UserError(str(error)) from error
    return {**LIMITS_S, RUNNING: LIMITS_S[RUNNING] + RUNS * timeout_s}


def compare_in_subprocess(
    item: ComparisonItem,
    make_backend: MakeBackend,
    cache_dir: Path,
    log: Path,
    on_phase: Callable[[str], None],
    limits: Mapping[str, float],
) -> ItemOutcome:
    """Compare one item in a child process. Ctrl-C ends the child too."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(item, make_backend, cache_dir, log, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        return _listen(child, ours, on_phase, limits)
    except ChildFailedError as stopped:
        return ItemOutcome(item, stopped.status, message=str(stopped), log=log.name, lost=stopped.lost)
    finally:
        _end(child)
        ours.close()


def _listen(
    child: BaseProcess, ours: Connection, on_phase: Callable[[str], None], limits: Mapping[str, float]
) -> ItemOutcome:
    """Follow the child through its phases to its outcome. Raises ChildFailedError."""
    phase = STARTING
    while True:
        on_phase(phase)
        if not ours.poll(limits[phase]):
            raise _hung(phase, limits[phase])
        try:
            message = ours.recv()
        except EOFError:
            child.join(GRACE_S)
            raise _crashed(phase, child.exitcode) from None
        if isinstance(message, ItemOutcome):
            child.join(GRACE_S)
            return message
        phase = str(message)


def _hung(phase: str, limit_s: float) -> ChildFailedError:
    message = f"no end of {phase} within {limit_s:g} s, so its process was killed"
    if phase != RUNNING:
        return ChildFailedError(ItemStatus.HUNG, message)
    return ChildFailedError(
        ItemStatus.HUNG, f"{message}; the device may answer no more until it is reset", lost=True
    )


def _crashed(phase: str, code: int | None) -> ChildFailedError:
    if code is not None and code < 0:
        return ChildFailedError(
            ItemStatus.CRASHED, f"its process ended by {signal.Signals(-code).name} while {phase}"
        )
    return ChildFailedError(
        ItemStatus.CRASHED, f"its process ended with exit code {code} while {phase}; its log has the reason"
    )


def _end(child: BaseProcess) -> None:
    """End a child that still runs, with the processes that it started, such as a compiler."""
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


def _work(
    item: ComparisonItem, make_backend: MakeBackend, cache_dir: Path, log: Path, out: Connection
) -> None:
    """The child's work: everything printed goes to the log, the outcome to the pipe."""
    os.setsid()  # a process group, which ends as one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED_EXIT))  # so that a compiler it runs is ended too
    _print_to(log)
    started = time.monotonic()

    def send_phase(phase: str) -> None:
        print(f"[{time.monotonic() - started:.1f} s] {phase}", flush=True)
        out.send(phase)

    try:
        out.send(run_item(item, make_backend(), cache_dir, send_phase))
    except (AerieRuntimeError, ProgramError) as error:
        out.send(ItemOutcome(item, ItemStatus.FAILED, message=one_line(error), log=log.name))
    except Exception:
        traceback.print_exc()  # ours, not the owner's: the log has it, and the exit code says so
        os._exit(FAILED_EXIT)


def _print_to(log: Path) -> None:
    """Redirect standard output and error to a file, also those of the driver's C++."""
    with contextlib.suppress(OSError), log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def compile_ahead(
    items: Sequence[ComparisonItem],
    backend: Backend,
    cache_dir: Path,
    on_done: Callable[[ComparisonItem, int], None],
) -> dict[ComparisonItem, ItemOutcome]:
    """Compile all items. Returns the outcomes of those that failed; all others are in the cache afterwards.

    on_done: called with each item and how many are done. Ctrl-C ends the compilers too. Raises
    AerieRuntimeError for a failure that no item caused, such as a cache folder that cannot be written.
    """
    programs = {
        item: build_program(plan_item(item)) for item in items
    }  # here: xDSL builds in one thread alone
    failed: dict[ComparisonItem, ItemOutcome] = {}
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


def _failure(item: ComparisonItem, program: Program, backend: Backend, cache_dir: Path) -> ItemOutcome | None:
    try:
        with KernelCache(cache_dir, backend) as cache:
            cache.compile_and_cache(program)
    except CompileError as error:
        return ItemOutcome(item, ItemStatus.NOT_COMPILED, message=one_line(error))
    return None


OnItem = Callable[[ComparisonItem, str], None]
"""Called with an item and its phase."""

CompareOne = Callable[[ComparisonItem, Callable[[str], None]], ItemOutcome]
"""Compares one item and reports its phases."""


def compare_all(
    items: Sequence[ComparisonItem],
    compare_one: CompareOne,
    on_item: OnItem,
    known_outcomes: Mapping[ComparisonItem, ItemOutcome],
) -> Iterator[ItemOutcome]:
    """The outcomes, in order. known: outcomes of items that are not run because they did not compile.

    After the device is lost, the remaining items are reported as not run.
    """
    lost: ComparisonItem | None = None
    for item in items:
        if lost is not None:
            yield ItemOutcome(item, ItemStatus.NOT_RUN, message=f"{lost} left a device that answers no more")
            continue
        outcome = known_outcomes.get(item) or compare_one(item, functools.partial(on_item, item))
        lost = item if outcome.lost else None
        yield outcome


def subprocess_comparer(make_backend: MakeBackend, cache_dir: Path, logs: Path) -> CompareOne:
    """A function that compares one item in a child process, with its log in the folder `logs`.

    Raises UserError if AERIE_NPU_TIMEOUT is not valid.
    """
    limits = limits_s()

    def compare_one(item: ComparisonItem, on_phase: Callable[[str], None]) -> ItemOutcome:
        log = logs / f"{item.kind}-{item.name}-{item.case}.log"
        outcome = compare_in_subprocess(item, make_backend, cache_dir, log, on_phase, limits)
        return replace(outcome, log=log.name)

    return compare_one
