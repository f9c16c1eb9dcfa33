"""Programs compiled before any is run, side by side: aircc takes minutes, and the device waits for nobody."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from board.compare.items import Item, plan_of
from board.compare.measuring import one_line
from board.compare.records import Outcome, Status
from board.compare.session import CompareOne
from multi_launch_builder.building import build_program
from runtime.backend import Backend
from runtime.cache import KernelCache
from runtime.compiling import memory_budget
from runtime.errors import CompileError


def compile_ahead(
    items: Sequence[Item], backend: Backend, cache_dir: Path, on_done: Callable[[Item, int], None]
) -> dict[Item, Outcome]:
    """The outcomes of items that cannot be compiled; all others are in the cache afterwards.

    on_done is called with each item and how many are done. Ctrl-C ends the compilers too. Raises
    AerieRuntimeError for what no item is to blame for, such as a cache folder that cannot be written.
    """
    failed: dict[Item, Outcome] = {}
    toolchain = backend.toolchain
    jobs = max(1, min(os.cpu_count() or 1, memory_budget() // max(1, toolchain.memory_bytes)))
    with ThreadPoolExecutor(jobs, thread_name_prefix="compile") as pool:
        futures = {pool.submit(_failure, item, backend, cache_dir): item for item in items}
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


def _failure(item: Item, backend: Backend, cache_dir: Path) -> Outcome | None:
    try:
        with KernelCache(cache_dir, backend) as cache:
            cache.compile_and_cache(build_program(plan_of(item)))
    except CompileError as error:
        return Outcome(item, Status.NOT_COMPILED, message=one_line(error))
    return None


def but_for(failed: Mapping[Item, Outcome], compare_one: CompareOne) -> CompareOne:
    """Compares what was compiled; of the rest the outcome is known."""
    return lambda item, on_phase: failed.get(item) or compare_one(item, on_phase)
