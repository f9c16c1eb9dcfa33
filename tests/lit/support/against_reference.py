"""Kernels or programs on the virtual NPU, every launch against its reference in numpy.

    python against_reference.py NAME ...      as `aerie compare` names them

Each launch is judged on the numbers that it read itself, so that an error is shown where it arises.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from aerie.board.compare.items import choose, plan_item, random_arguments
from aerie.board.compare.result_check import relative_l1
from aerie.kernel_builder.arguments import WRITTEN_ROLES
from aerie.kernel_builder.kernels import all_kernels
from aerie.kernel_builder.spec import Array
from aerie.multi_launch_builder.builder import build_program
from aerie.multi_launch_builder.program import ProgramPlan
from aerie.runtime import KernelCache, select_backend

SEED = 7


def run(plan: ProgramPlan, cache_dir: Path) -> dict[str, Array]:
    """Every argument after one run."""
    program, given = build_program(plan), random_arguments(plan, SEED)
    written = [a.name for a in program.arguments if a.role in WRITTEN_ROLES]
    with KernelCache(cache_dir, select_backend("virtual")) as cache:
        cache.compile_and_cache(program)
        return {**given, **cache.run(program, outputs=written, **given)}


def judge(plan: ProgramPlan, arrays: Mapping[str, Array]) -> bool:
    """Print one line per result of a launch; whether all are right."""
    right = True
    for step in plan.launches:
        kernel = all_kernels()[step.kernel]
        read = {inner: arrays[outer] for inner, outer in step.wiring.items()}
        for inner, want in kernel.reference(step.parameters, read).items():
            passes = kernel.tolerance.compare(read[inner], want).passes
            verdict = "ok" if passes else "WRONG"
            print(f"{plan.name} {step.label} {inner}: share {relative_l1(read[inner], want):.1e} {verdict}")
            right = right and passes
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description="kernels or programs against their references")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--cache-dir", type=Path, required=True)
    options = parser.parse_args()
    plans = [plan_item(item) for item in choose(options.names, first_cases=True)]
    right = [judge(plan, run(plan, options.cache_dir)) for plan in plans]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
