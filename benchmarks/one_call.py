"""What `load_and_run` takes by itself: called again and again around a program that does next to nothing."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import numpy as np

from kernel_builder.kernels import eltwise_add
from multi_launch_builder import Program
from runtime import Backend, KernelCache
from virtual_npu import Library

ELEMENTS = 128
WARM_UP, CALLS = 20, 200


def overhead_of_load_and_run(cache_dir: Path, backend: Backend) -> float:
    """Seconds, the median of many calls, without the time in the program's own code."""
    module = eltwise_add.build(None, ELEMENTS)
    program = Program.from_module(module.module, module.arguments, module.name)
    arrays = [np.zeros(argument.shape, argument.dtype.numpy) for argument in program.arguments]
    with KernelCache(cache_dir, backend) as cache:
        cache.compile_and_cache(program)

        def call() -> float:
            started, in_code = time.perf_counter(), Library.seconds
            cache.load_and_run(program.name, *arrays)
            return time.perf_counter() - started - (Library.seconds - in_code)

        spent = [call() for _ in range(WARM_UP + CALLS)]
    return median(spent[WARM_UP:])
