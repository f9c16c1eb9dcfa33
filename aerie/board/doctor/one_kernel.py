"""Compiles and runs one kernel, on the virtual NPU or on the NPU, and compares it with numpy.

`python -m aerie.board.doctor.one_kernel virtual|npu` is a process of its own, because a driver or a
compiler may hang or crash. The last line of its standard output is the result as JSON:
{"error": "" or one line, "wrong": elements that differ from numpy, "seconds": in all}.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aerie.board.doctor.machine import CheckResult, CheckStatus, ExaminedMachine, ToolOutput
from aerie.common.compiler import known_compilers
from aerie.kernel_builder.kernels.eltwise_add import KERNEL
from aerie.kernel_builder.testing import random_arrays
from aerie.multi_launch_builder import Program
from aerie.runtime import AerieRuntimeError, KernelCache, select_backend
from aerie.virtual_npu import ProgramError

if TYPE_CHECKING:
    from aerie.runtime import Backend

CASE: dict[str, Any] = {"rows": 64, "cols": 256}


def run_add_kernel(backend: Backend, cache_dir: Path) -> int:
    """How many elements of a sum of two (64, 256) bf16 arrays differ from numpy's.

    Raises AerieRuntimeError if the kernel cannot be compiled or run.
    """
    module = KERNEL.build(**CASE)
    program = Program.from_module(module.module, module.arguments, module.name)
    arrays: dict[str, Any] = random_arrays(KERNEL, CASE, np.random.default_rng(0))
    with KernelCache(cache_dir, backend) as cache:
        cache.compile_and_cache(program)
        out = cache.run(program, **arrays)["out"]
    return int(np.count_nonzero(out != KERNEL.reference(CASE, arrays)["out"]))


def main(choice: str) -> int:
    """Compile and run on backend `choice`, and print the result. The exit code is 0 if a result
    was printed.
    """
    started = time.perf_counter()
    error, wrong = "", 0
    with tempfile.TemporaryDirectory(prefix="aerie-doctor-") as folder:
        try:
            wrong = run_add_kernel(select_backend(choice), Path(folder))
        except AerieRuntimeError as failure:
            error = " ".join(str(failure).split())
    print(json.dumps({"error": error, "wrong": wrong, "seconds": time.perf_counter() - started}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))


MODULE = "aerie.board.doctor.one_kernel"
VIRTUAL_S = 60.0
NPU_S = 120.0
"""Time limit in seconds for one kernel: aircc and Peano are slow, and another process may hold the device."""


def on_virtual_npu(machine: ExaminedMachine) -> CheckResult:
    """A sum of two arrays on the virtual NPU."""
    finding = _check_result(
        _launch(machine, "virtual", VIRTUAL_S), f"python -m {MODULE} virtual shows all it says"
    )
    if finding.status is CheckStatus.FAILED and _only_compiled_runs():  # the check of the compiler says more
        reason = "not tried: its kernel was never compiled here (a compiled kernel runs without a compiler)"
        return CheckResult(CheckStatus.WARNING, reason, finding.required, finding.fix)
    return finding


def _only_compiled_runs() -> bool:
    """Whether no compiler is left, but programs that one compiled."""
    try:
        return not known_compilers()[0].command
    except ProgramError:
        return False


def on_npu(machine: ExaminedMachine) -> CheckResult:
    """Compile and run the kernel on the NPU, through aircc, Peano and XRT."""
    return _check_result(_launch(machine, "npu", NPU_S), "make test-npu has more; docs/explanation/board.md")


def _launch(machine: ExaminedMachine, backend: str, limit_s: float) -> ToolOutput:
    return machine.run_tool([machine.python, "-m", MODULE, backend], limit_s)


def _check_result(answer: ToolOutput, fix: str) -> CheckResult:
    required = "one kernel compiled and run, with numpy's result"
    record = _record(answer)
    if record is None:
        actual = f"{answer.problem or 'its output is not a result'}; its last line: {answer.last_line}"
        return CheckResult(CheckStatus.FAILED, actual, required, fix)
    if record["error"]:
        return CheckResult(CheckStatus.FAILED, str(record["error"]), required, fix)
    if record["wrong"]:
        return CheckResult(
            CheckStatus.FAILED, f"it ran, and {record['wrong']} elements are wrong", required, fix
        )
    return CheckResult(
        CheckStatus.OK, f"compiled and run in {record['seconds']:.1f} s, result right", required
    )


def _record(answer: ToolOutput) -> dict[str, Any] | None:
    """The result that one_kernel printed; None if it ended before."""
    lines = [line for line in answer.text.splitlines() if line.startswith('{"error": ')]
    try:
        record: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    return record if {"error", "wrong", "seconds"} <= record.keys() else None
