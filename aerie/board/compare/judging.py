"""One result of one launch against the virtual NPU's, on the numbers that the launch read itself.

A kernel's own tolerance allows for another order of an f32 sum and for the last rounding that this tips. The
virtual NPU models two things of the core besides: block floating point, and the rounding mode. What it does
not model is a kernel's `allowance`, in its own file, each bound with its reason. A kernel without one has
nothing of the kind: its numbers are sums, products and roundings of bf16, which the core makes as any CPU
does.

mlir-air's own checks (programming_examples/kernel_registry/details) are wider, and compare with f32
references: rtol 1.6e-2 and atol 1.5e-3 for a GEMM, atol 8e-2 for SiLU, 5e-2 for RoPE, 1e-1 for
FlashAttention. Held to the virtual NPU on the very same inputs, less will do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from aerie.board.compare.patterns import patterns, place
from aerie.board.compare.records import Distance, Finding, Verdict, Worst
from aerie.board.compare.virtual import FLOOR, NUMERICS, run_launch, say_writers
from aerie.kernel_builder.dsl import without_rounding
from aerie.kernel_builder.kernels import registry
from aerie.kernel_builder.spec import Array, KernelModule, KernelSpec
from aerie.multi_launch_builder.building import build_kernel
from aerie.multi_launch_builder.program import ProgramPlan, Step
from aerie.virtual_npu import ProgramError

Arrays = Mapping[str, Array]


def judge(plan: ProgramPlan, held: Arrays, previous: Arrays) -> Iterator[Finding]:
    """Every result of every launch, in launch order.

    held: every argument of the plan, as it was after the run. previous: the same after a run on other inputs,
    which tells what is stale. Raises ProgramError where the virtual NPU cannot run a kernel.
    """
    for position, step in enumerate(plan.steps):
        kernel = build_kernel(step, plan.name)
        read = {inner: held[outer] for inner, outer in step.wiring.items()}
        wanted = run_launch(kernel, read, NUMERICS)
        for inner in wanted["exact"]:
            outer = step.wiring[inner]
            want = {name: arrays[inner] for name, arrays in wanted.items()}
            got = held[outer].reshape(want["exact"].shape)
            finding = _finding(step, position, outer, got, want)
            if finding.verdict is Verdict.DIFFERS:
                was = previous[outer].reshape(got.shape)
                finding = _explained(finding, kernel, inner, got, want[finding.nearest], was, read)
            yield finding


def _finding(step: Step, position: int, argument: str, got: Array, want: Arrays) -> Finding:
    spec = registry()[step.kernel]
    distances = {name: _distance(spec, got, array) for name, array in want.items()}
    nearest = min(distances, key=lambda name: _farness(distances[name]))
    verdict = _verdict(spec, distances[nearest], got, want[nearest])
    return Finding(step.label, position, step.kernel, argument, verdict, nearest, distances, got.size)


def _farness(distance: Distance) -> tuple[bool, int, float]:
    """One that is within tolerance first; else by what is the same, which a fault in a part leaves."""
    return distance.excess > 1, distance.differing, distance.share


def _distance(spec: KernelSpec, got: Array, want: Array) -> Distance:
    difference = spec.tolerance.compare(got, want)
    return Distance(share(got, want), difference.excess, difference.differing)


def share(got: Array, want: Array) -> float:
    """mean |got - want| / mean |want|; 0 where they are equal, infinite where one alone is not finite."""
    left, right = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.where(
            (left == right) | (np.isnan(left) & np.isnan(right)), 0.0, np.abs(left - right)
        ).mean()
    scale = float(np.abs(right[np.isfinite(right)]).mean()) if np.isfinite(right).any() else 0.0
    if not math.isfinite(error):
        return math.inf
    return float(error / scale) if scale else (math.inf if error else 0.0)


def _verdict(spec: KernelSpec, distance: Distance, got: Array, want: Array) -> Verdict:
    if distance.excess <= 1:
        return Verdict.SAME
    allowance = spec.allowance
    if allowance is None or distance.share > allowance.share or allowance.mask(got, want).any():
        return Verdict.DIFFERS
    return Verdict.NEAR


def wrong_elements(spec: KernelSpec, got: Array, want: Array) -> Array:
    """Which elements are to blame: those outside the kernel's tolerance; where that is most of them and there
    is an allowance, those outside of it; where no element by itself is, all that are not the same number."""
    left, right = got.astype(np.float64), want.astype(np.float64)
    differs = np.asarray((left != right) & ~(np.isnan(left) & np.isnan(right)))
    tolerance, allowance = spec.tolerance, spec.allowance
    with np.errstate(invalid="ignore"):
        outside = differs & ~(np.abs(left - right) <= tolerance.atol + tolerance.rtol * np.abs(right))
    if allowance and outside.mean() > 0.5:
        outside = allowance.mask(got, want)
    return outside if outside.any() else differs


def _explained(
    finding: Finding, kernel: KernelModule, inner: str, got: Array, want: Array, previous: Array, read: Arrays
) -> Finding:
    """The same, with all that can be told of the wrong elements."""
    wrong = wrong_elements(registry()[finding.kernel], got, want)
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    error = np.where(wrong, np.nan_to_num(error, nan=np.inf, posinf=np.inf), -1.0)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(error)), got.shape))
    untold = replace(kernel, module=without_rounding(kernel.module))
    floors = run_launch(untold, read, FLOOR) if _may_be_rounding(finding) else {}
    return replace(
        finding,
        wrong=int(np.count_nonzero(wrong)),
        worst=Worst(index, float(got[index]), float(want[index])),
        place=place(wrong),
        writers=_writers(kernel, inner, wrong, index),
        pattern=patterns(got, want, wrong, previous, {name: made[inner] for name, made in floors.items()}),
    )


def _may_be_rounding(finding: Finding) -> bool:
    """Another rounding mode shows in many elements, a little in each; else its variants need not be built."""
    distance = finding.distances[finding.nearest]
    return distance.share < 0.2 and distance.differing > 0.1 * finding.size


def _writers(kernel: KernelModule, argument: str, wrong: Array, worst: tuple[int, ...]) -> str:
    try:
        return say_writers(kernel, argument, wrong, worst)
    except ProgramError as error:
        return f"which core wrote it could not be told ({str(error).splitlines()[0]})"
