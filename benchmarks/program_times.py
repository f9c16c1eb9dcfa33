"""Time single programs: calls of a session, or of a program built here."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import numpy as np

from aerie.engine.programs import program_flops
from aerie.kernel_builder.kernels import eltwise_add
from aerie.multi_launch_builder import Program, program_store
from aerie.multi_launch_builder.shapes import ModelShape
from aerie.runtime import Backend, KernelCache, Profiler
from aerie.virtual_npu import Library

ELEMENTS = 128
CALLS_BEFORE, CALLS = 20, 200
"""Calls of load_and_run as warm-up, and those that are timed."""


def overhead_of_load_and_run(cache_dir: Path, backend: Backend) -> float:
    """Median seconds of load_and_run, without the time in the program's own code."""
    module = eltwise_add.build(None, ELEMENTS)
    program = Program.from_module(module.module, module.arguments, module.name)
    arrays = [np.zeros(argument.shape, argument.dtype.numpy) for argument in program.arguments]
    with KernelCache(cache_dir, backend) as cache:
        cache.compile_and_cache(program)

        def call() -> float:
            started, in_code = time.perf_counter(), Library.seconds
            cache.load_and_run(program.name, *arrays)
            return time.perf_counter() - started - (Library.seconds - in_code)

        spent = [call() for _ in range(CALLS_BEFORE + CALLS)]
    return median(spent[CALLS_BEFORE:])


FLASH_CALLS = 4
"""Timed calls of flash_attn, after one warm-up."""


def time_flash_attention(cache_dir: Path, backend: Backend, shape: ModelShape, length: int) -> Profiler:
    """Time flash_attn for prompts of `length` tokens, on standard normal queries, keys and values."""
    program = program_store.load_programs(shape, length)["flash_attn"]
    random = np.random.default_rng(0)
    arrays = [
        random.standard_normal(argument.shape).astype(argument.dtype.numpy) for argument in program.arguments
    ]
    profiler = Profiler()
    with KernelCache(cache_dir, backend, profiler) as cache:
        cache.compile_and_cache(program)
        profiler.declare(program.name, flops=program_flops(program))
        cache.load_and_run(program.name, *arrays)
        profiler.reset()
        for _ in range(FLASH_CALLS):
            cache.load_and_run(program.name, *arrays)
    return profiler


def program_work(profiler: Profiler) -> dict[str, dict[str, float]]:
    """For each program: calls so far, seconds of a call, and operations and bytes of a call."""
    return {
        name: {
            "calls": times.calls,
            "seconds": times.run / times.calls,
            "flops": times.flops,
            "nbytes": times.nbytes,
        }
        for name, times in profiler.programs.items()
    }
