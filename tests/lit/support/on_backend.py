"""Kernels or programs on one backend, every launch against its reference in numpy.

    python on_backend.py kernel NAME ...      the first case of each
    python on_backend.py program NAME ...     programs of the demo model

Each launch is judged on the numbers that it read itself, so that an error is shown where it arises. `share`
is mean |got - want| / mean |want|. On the virtual NPU a launch keeps its kernel's own tolerance. An NPU
multiplies matrices through block floating point, where mlir-air published shares of at most 1.0e-2
(kernel_builder/numerics.py); twice that is the bound there. A result of zeros has a share of 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kernel_builder.arguments import OVERWRITTEN_ROLES
from kernel_builder.kernels import registry
from kernel_builder.spec import Array
from multi_launch_builder.plan import ProgramPlan, Step, build_kernel, build_program
from multi_launch_builder.programs import PLANS, plan_programs
from multi_launch_builder.shapes import DEMO, DEMO_SEQ_LEN
from runtime.backend import Backend, select_backend
from runtime.cache import KernelCache
from runtime.errors import AerieRuntimeError

NPU_SHARE = 2e-2


def plan_of_kernel(name: str) -> ProgramPlan:
    """The first case of a kernel, alone, compiled as the programs compile it."""
    case = registry()[name].cases[0]
    table = build_kernel(Step(name, name, case, {}), name).arguments
    uses = [plan for plan in demo_plans().values() if name in {step.kernel for step in plan.steps}]
    options = {option.flag: option for plan in uses for option in plan.options}
    step = Step(name, name, case, {argument: argument for argument in table.names})
    return ProgramPlan(name, table, (step,), tuple(options.values()))


def demo_plans() -> dict[str, ProgramPlan]:
    """The six programs of the demo model, by name."""
    return plan_programs(DEMO, DEMO_SEQ_LEN)


def inputs(plan: ProgramPlan, rng: np.random.Generator) -> dict[str, Array]:
    """An array for every argument that is read: what its kernel draws for itself, else normal numbers."""
    read = {a.name: a for a in plan.arguments if a.role not in OVERWRITTEN_ROLES}
    arrays = {name: _normal(a.shape, rng).astype(a.dtype.numpy) for name, a in read.items()}
    for step in plan.steps:
        draw = registry()[step.kernel].random_inputs
        drawn = draw(step.parameters, rng) if draw else {}
        for inner, array in drawn.items():
            if (name := step.wiring[inner]) in read:
                arrays[name] = array.astype(read[name].dtype.numpy)
    return arrays


def _normal(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Normal numbers; a matrix is scaled so that what it is multiplied with keeps its size."""
    return rng.standard_normal(shape) / (shape[0] ** 0.5 if len(shape) > 1 else 1)


def run(plan: ProgramPlan, given: Mapping[str, Array], backend: Backend, cache_dir: Path) -> dict[str, Array]:
    """Every argument after one run."""
    program = build_program(plan)
    written = [a.name for a in program.arguments if a.role in OVERWRITTEN_ROLES]
    with KernelCache(cache_dir, backend) as cache:
        cache.compile_and_cache(program)
        return {**given, **cache.run(program, outputs=written, **given)}


def judge(plan: ProgramPlan, arrays: Mapping[str, Array], backend: Backend) -> bool:
    """Print one line per result of a launch; whether all are right."""
    right = True
    for step in plan.steps:
        kernel = registry()[step.kernel]
        read = {inner: arrays[outer] for inner, outer in step.wiring.items()}
        for inner, want in kernel.reference(step.parameters, read).items():
            got = read[inner]
            share = _share(got, want)
            passes = share <= NPU_SHARE if backend.name == "npu" else kernel.tolerance.excess(got, want) <= 1
            print(f"{plan.name} {step.label} {inner}: share {share:.1e} {'ok' if passes else 'WRONG'}")
            right = right and passes
    return right


def _share(got: Array, want: Array) -> float:
    left, right = got.astype(np.float64), want.astype(np.float64)
    return float(np.abs(left - right).mean() / np.abs(right).mean())


def compare(plan: ProgramPlan, backend: Backend, cache_dir: Path) -> bool:
    """Run a plan and judge it; one that is not compiled or run is not right, and says why."""
    try:
        arrays = run(plan, inputs(plan, np.random.default_rng(7)), backend, cache_dir)
    except AerieRuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return False
    return judge(plan, arrays, backend)


def main() -> int:
    parser = argparse.ArgumentParser(description="kernels or programs on one backend")
    parser.add_argument("kind", choices=["kernel", "program"])
    parser.add_argument("names", nargs="+", choices=[*registry(), *PLANS])
    parser.add_argument("--backend", default="virtual", choices=["virtual", "npu"])
    parser.add_argument("--cache-dir", type=Path, required=True)
    options = parser.parse_args()
    plan_of = plan_of_kernel if options.kind == "kernel" else demo_plans().__getitem__
    try:
        backend = select_backend(options.backend)
    except AerieRuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    right = [compare(plan_of(name), backend, options.cache_dir) for name in options.names]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
