"""One kernel really compiled and run, on the virtual NPU or on the NPU, against numpy.

`python -m aerie.board.doctor.one_kernel virtual|npu` is a process of its own, because a driver or a
compiler may hang or crash. The last line on its standard output says how it went, as JSON:
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

from aerie.board.doctor.machine import Answer, Finding, Machine, Status
from aerie.common.compiler import known_compilers
from aerie.kernel_builder.kernels.eltwise_add import KERNEL
from aerie.kernel_builder.testing import random_arrays
from aerie.multi_launch_builder import Program
from aerie.runtime import AerieRuntimeError, KernelCache, select_backend
from aerie.virtual_npu import ProgramError

if TYPE_CHECKING:
    from aerie.runtime import Backend

CASE: dict[str, Any] = {"rows": 64, "cols": 256}


def run_one(backend: Backend, cache_dir: Path) -> int:
    """How many elements of a sum of two (64, 256) bf16 arrays differ from numpy's.

    Raises AerieRuntimeError.
    """
    module = KERNEL.build(**CASE)
    program = Program.from_module(module.module, module.arguments, module.name)
    arrays: dict[str, Any] = random_arrays(KERNEL, CASE, np.random.default_rng(0))
    with KernelCache(cache_dir, backend) as cache:
        cache.compile_and_cache(program)
        out = cache.run(program, **arrays)["out"]
    return int(np.count_nonzero(out != KERNEL.reference(CASE, arrays)["out"]))


def main(choice: str) -> int:
    """Compile and run on backend `choice`, and say how it went; the exit code is 0 if it could be said."""
    started = time.perf_counter()
    error, wrong = "", 0
    with tempfile.TemporaryDirectory(prefix="aerie-doctor-") as folder:
        try:
            wrong = run_one(select_backend(choice), Path(folder))
        except AerieRuntimeError as failure:
            error = " ".join(str(failure).split())
    print(json.dumps({"error": error, "wrong": wrong, "seconds": time.perf_counter() - started}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))


MODULE = "aerie.board.doctor.one_kernel"
VIRTUAL_S = 60.0
NPU_S = 120.0
"""Most seconds for one kernel: aircc and Peano take their time, and another process may hold the device."""


def on_virtual_npu(machine: Machine) -> Finding:
    """A sum of two arrays on the virtual NPU."""
    finding = _judge(_launch(machine, "virtual", VIRTUAL_S), f"python -m {MODULE} virtual shows all it says")
    if finding.status is Status.FAILED and _only_compiled_runs():  # the check of the compiler says more
        said = "not tried, for its kernel was never compiled here; what is compiled runs without a compiler"
        return Finding(Status.WARNING, said, finding.wanted, finding.fix)
    return finding


def _only_compiled_runs() -> bool:
    """Whether there is no compiler any more, but what one made."""
    try:
        return not known_compilers()[0].command
    except ProgramError:
        return False


def on_npu(machine: Machine) -> Finding:
    """The same on the NPU, through aircc, Peano and XRT."""
    return _judge(_launch(machine, "npu", NPU_S), "make test-npu tells more; docs/explanation/board.md")


def _launch(machine: Machine, backend: str, limit_s: float) -> Answer:
    return machine.ask([machine.python, "-m", MODULE, backend], limit_s)


def _judge(answer: Answer, fix: str) -> Finding:
    wanted = "one kernel compiled and run, with numpy's result"
    record = _record(answer)
    if record is None:
        found = f"{answer.trouble or 'it says nothing that makes sense'}; its last line: {answer.last_line}"
        return Finding(Status.FAILED, found, wanted, fix)
    if record["error"]:
        return Finding(Status.FAILED, str(record["error"]), wanted, fix)
    if record["wrong"]:
        return Finding(Status.FAILED, f"it ran, and {record['wrong']} elements are wrong", wanted, fix)
    return Finding(Status.OK, f"compiled and run in {record['seconds']:.1f} s, result right", wanted)


def _record(answer: Answer) -> dict[str, Any] | None:
    """What one_kernel said; None where it did not come that far."""
    lines = [line for line in answer.text.splitlines() if line.startswith('{"error": ')]
    try:
        record: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    return record if {"error", "wrong", "seconds"} <= record.keys() else None
