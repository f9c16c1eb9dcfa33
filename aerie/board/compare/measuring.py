"""One item: compiled, run on the backend, and every result judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aerie.board.compare.items import Item, draw, plan_of
from aerie.board.compare.judging import judge
from aerie.board.compare.records import Finding, Outcome, Status, Verdict
from aerie.kernel_builder.arguments import OVERWRITTEN_ROLES, ArgumentTable, Role
from aerie.kernel_builder.spec import Array
from aerie.multi_launch_builder.building import build_program
from aerie.multi_launch_builder.program import Program, ProgramPlan
from aerie.runtime.backend import Backend
from aerie.runtime.cache import KernelCache
from aerie.runtime.errors import AerieRuntimeError, CompileError, RunError

SEED = 7

OnPhase = Callable[[str], None]
COMPILING, RUNNING, JUDGING = "compiling", "running", "judging"
"""What an item goes through, in this order."""
RUNS = 3


@dataclass(frozen=True)
class Held:
    """What every argument held after each of three runs: on other inputs first, then twice on the same."""

    other: Mapping[str, Array]
    once: Mapping[str, Array]
    again: Mapping[str, Array]
    seconds: float

    def unsteady(self, table: ArgumentTable) -> list[str]:
        """Arguments that the two equal runs left different, to the bit, and where."""
        written = [a.name for a in table if a.role in OVERWRITTEN_ROLES]
        counts = {name: _differing(self.once[name], self.again[name]) for name in written}
        return [f"{name} in {n} of {self.once[name].size} elements" for name, n in counts.items() if n]


def measure(item: Item, backend: Backend, cache_dir: Path, on_phase: OnPhase) -> Outcome:
    """Compile, run, judge; what cannot be compiled or run is an outcome too.

    Raises ProgramError where the virtual NPU cannot do its part.
    """
    plan = plan_of(item)
    program = build_program(plan)
    given = draw(plan, SEED)
    on_phase(COMPILING)

    def remark(line: str) -> None:
        print(line)
        on_phase(RUNNING)  # who waits for the device is not hanging

    with KernelCache(cache_dir, backend, report=remark) as cache:
        try:
            seconds = cache.compile_and_cache(program).seconds
        except CompileError as error:
            return Outcome(item, Status.NOT_COMPILED, message=one_line(error))
        on_phase(RUNNING)
        try:
            held = _run(cache, program, plan, given)
        except AerieRuntimeError as error:
            lost = isinstance(error, RunError) and error.lost
            return Outcome(item, Status.FAILED, message=one_line(error), lost=lost, compile_seconds=seconds)
    on_phase(JUDGING)
    findings = tuple(judge(plan, held.once, held.other))
    return _outcome(item, plan, given, held, findings, seconds)


def _run(cache: KernelCache, program: Program, plan: ProgramPlan, given: Mapping[str, Any]) -> Held:
    """Three runs on one set of buffer objects; inputs and weights are read back as well."""
    table = program.arguments
    inputs = {a.name for a in table if a.role is Role.INPUT}
    others = draw(plan, SEED + 1)
    first: dict[str, Any] = {name: others[name] if name in inputs else array for name, array in given.items()}
    same = {name: given[name] for name in inputs}
    started = time.perf_counter()
    other, once, again = (cache.run(program, outputs=table.names, **arrays) for arrays in (first, same, same))
    return Held(other, once, again, time.perf_counter() - started)


def _outcome(
    item: Item,
    plan: ProgramPlan,
    given: Mapping[str, Array],
    held: Held,
    findings: tuple[Finding, ...],
    compile_seconds: float,
) -> Outcome:
    clobbered = tuple(name for name, array in given.items() if _differing(held.once[name], array))
    unsteady = held.unsteady(plan.arguments)
    status = Status.DIFFERS if clobbered else Status.UNSTEADY if unsteady else _status(findings)
    said = (
        f"arguments that are only read have changed: {', '.join(clobbered)}" if clobbered else "",
        f"two runs on the same numbers differ: {', '.join(unsteady)}" if unsteady else "",
    )
    message = "; ".join(part for part in said if part)
    return Outcome(
        item,
        status,
        findings,
        message,
        clobbered=clobbered,
        compile_seconds=compile_seconds,
        run_seconds=held.seconds,
    )


def _status(findings: tuple[Finding, ...]) -> Status:
    verdicts = {finding.verdict for finding in findings}
    if Verdict.DIFFERS in verdicts:
        return Status.DIFFERS
    return Status.NEAR if Verdict.NEAR in verdicts else Status.SAME


def _differing(a: Array, b: Array) -> int:
    """Elements that are not the same to the bit."""
    bits = f"u{a.dtype.itemsize}"
    left, right = (np.ascontiguousarray(array).view(bits) for array in (a, b))
    return int(np.count_nonzero(left != right))


def one_line(error: Exception) -> str:
    """A message, on one line."""
    return " ".join(str(error).split())
