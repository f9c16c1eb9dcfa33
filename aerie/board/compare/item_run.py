"""Compiles one item, runs it on the backend, and checks every result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aerie.board.compare.items import ComparisonItem, plan_item, random_arguments
from aerie.board.compare.records import ItemOutcome, ItemStatus, ResultFinding, ResultVerdict
from aerie.board.compare.result_check import check_results
from aerie.kernel_builder.arguments import WRITTEN_ROLES, ArgumentTable, Role
from aerie.kernel_builder.spec import Array
from aerie.multi_launch_builder.builder import build_program
from aerie.multi_launch_builder.program import Program, ProgramPlan
from aerie.runtime.backend import Backend
from aerie.runtime.cache import KernelCache
from aerie.runtime.errors import AerieRuntimeError, CompileError, RunError
from aerie.runtime.profiler import Profiler

SEED = 7

OnPhase = Callable[[str], None]
COMPILING, RUNNING, JUDGING = "compiling", "running", "judging"
"""The phases of an item, in order."""
RUNS = 3
TIMED_RUNS = 10
"""Runs after those, whose times are recorded."""


@dataclass(frozen=True)
class ArgumentValues:
    """The values of all arguments after each of three runs: first with other inputs, then twice with the
    same. times_us: of further runs, in microseconds.
    """

    other_inputs: Mapping[str, Array]
    first_run: Mapping[str, Array]
    second_run: Mapping[str, Array]
    seconds: float
    times_us: tuple[float, ...]

    def nondeterministic(self, table: ArgumentTable) -> list[str]:
        """Arguments whose bits differ between the two runs with equal inputs, and where."""
        written = [a.name for a in table if a.role in WRITTEN_ROLES]
        counts = {name: _differing(self.first_run[name], self.second_run[name]) for name in written}
        return [f"{name} in {n} of {self.first_run[name].size} elements" for name, n in counts.items() if n]


def run_item(item: ComparisonItem, backend: Backend, cache_dir: Path, on_phase: OnPhase) -> ItemOutcome:
    """Compile, run and check an item. A failure to compile or run is an outcome too.

    Raises ProgramError if the virtual NPU cannot do its part.
    """
    plan = plan_item(item)
    program = build_program(plan)
    inputs = random_arguments(plan, SEED)
    on_phase(COMPILING)

    def remark(line: str) -> None:
        print(line)
        on_phase(RUNNING)  # who waits for the device is not hanging

    with KernelCache(cache_dir, backend, Profiler(), report=remark) as cache:
        try:
            seconds = cache.compile_and_cache(program).seconds
        except CompileError as error:
            return ItemOutcome(item, ItemStatus.NOT_COMPILED, message=one_line(error))
        on_phase(RUNNING)
        try:
            values = _run(cache, program, plan, inputs)
        except AerieRuntimeError as error:
            lost = isinstance(error, RunError) and error.lost
            return ItemOutcome(
                item, ItemStatus.FAILED, message=one_line(error), lost=lost, compile_seconds=seconds
            )
    on_phase(JUDGING)
    findings = tuple(check_results(plan, values.first_run, values.other_inputs))
    return _outcome(item, plan, inputs, values, findings, seconds)


def _run(
    cache: KernelCache, program: Program, plan: ProgramPlan, arrays: Mapping[str, Any]
) -> ArgumentValues:
    """Run three times on one set of buffer objects. Inputs and weights are read back as well."""
    table = program.arguments
    inputs = {a.name for a in table if a.role is Role.INPUT}
    others = random_arguments(plan, SEED + 1)
    first: dict[str, Any] = {
        name: others[name] if name in inputs else array for name, array in arrays.items()
    }
    same = {name: arrays[name] for name in inputs}
    started = time.perf_counter()
    other, once, again = (cache.run(program, outputs=table.names, **arrays) for arrays in (first, same, same))
    spent = time.perf_counter() - started
    times = tuple(_time_run(cache, program, same) for _ in range(TIMED_RUNS))
    return ArgumentValues(other, once, again, spent, times)


def _time_run(cache: KernelCache, program: Program, arrays: Mapping[str, Any]) -> float:
    """Microseconds from the start of a run to its end, without what the host writes and reads."""
    cache.profiler.reset()
    cache.run(program, outputs=(), **arrays)
    return cache.profiler.programs[program.name].run * 1e6


def _outcome(
    item: ComparisonItem,
    plan: ProgramPlan,
    inputs: Mapping[str, Array],
    values: ArgumentValues,
    findings: tuple[ResultFinding, ...],
    compile_seconds: float,
) -> ItemOutcome:
    clobbered = tuple(name for name, array in inputs.items() if _differing(values.first_run[name], array))
    unsteady = values.nondeterministic(plan.arguments)
    status = ItemStatus.DIFFERS if clobbered else ItemStatus.UNSTEADY if unsteady else _status(findings)
    problem = (
        f"arguments that are only read have changed: {', '.join(clobbered)}" if clobbered else "",
        f"two runs on the same numbers differ: {', '.join(unsteady)}" if unsteady else "",
    )
    message = "; ".join(part for part in problem if part)
    return ItemOutcome(
        item,
        status,
        findings,
        message,
        clobbered=clobbered,
        compile_seconds=compile_seconds,
        run_seconds=values.seconds,
        times_us=values.times_us,
    )


def _status(findings: tuple[ResultFinding, ...]) -> ItemStatus:
    verdicts = {finding.verdict for finding in findings}
    if ResultVerdict.DIFFERS in verdicts:
        return ItemStatus.DIFFERS
    return ItemStatus.NEAR if ResultVerdict.NEAR in verdicts else ItemStatus.SAME


def _differing(a: Array, b: Array) -> int:
    """The number of elements whose bits differ."""
    bits = f"u{a.dtype.itemsize}"
    lhs, rhs = (np.ascontiguousarray(array).view(bits) for array in (a, b))
    return int(np.count_nonzero(lhs != rhs))


def one_line(error: Exception) -> str:
    """A message on one line."""
    return " ".join(str(error).split())
