"""`python -m board.doctor.one_kernel virtual|npu`: one kernel, compiled anew and run on that backend.

A process of its own, because a driver or a compiler may hang or crash. The last line on standard output says
how it went, as JSON: {"error": "" or one line, "wrong": elements that differ from numpy, "seconds": in all}.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_builder.kernels.eltwise_add import KERNEL
from kernel_builder.testing import random_arrays
from multi_launch_builder import Program
from runtime import AerieRuntimeError, KernelCache, select_backend

if TYPE_CHECKING:
    from runtime import Backend

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
