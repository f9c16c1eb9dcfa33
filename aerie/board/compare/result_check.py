"""Checks the result of one launch against the virtual NPU's, on the inputs that the launch itself read.

A kernel's own tolerance allows another order of an f32 sum, and the last rounding that this changes. The
virtual NPU also models two properties of the core: block floating point and the rounding mode. What it does
not model is a kernel's `allowance`, in its own file, each bound with its reason. A kernel without one needs
none: it sums, multiplies and rounds bf16 as any CPU does.

mlir-air's own checks (programming_examples/kernel_registry/details) are wider, and compare with f32
references: rtol 1.6e-2 and atol 1.5e-3 for a GEMM, atol 8e-2 for SiLU, 5e-2 for RoPE, 1e-1 for
FlashAttention. Against the virtual NPU on the same inputs, tighter bounds hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from aerie.board.compare.error_patterns import describe_positions, patterns
from aerie.board.compare.records import ResultDistance, ResultFinding, ResultVerdict, Worst
from aerie.board.compare.virtual_results import FLOOR, NUMERICS, describe_writers, run_launch
from aerie.kernel_builder.dsl import remove_rounding_calls
from aerie.kernel_builder.kernels import all_kernels
from aerie.kernel_builder.spec import Array, KernelModule, KernelSpec
from aerie.multi_launch_builder.builder import build_kernel
from aerie.multi_launch_builder.program import LaunchPlan, ProgramPlan
from aerie.virtual_npu import ProgramError

Arrays = Mapping[str, Array]


def check_results(
    plan: ProgramPlan, arguments: Arrays, previous_arguments: Arrays
) -> Iterator[ResultFinding]:
    """Check every result of every launch, in launch order.

    arguments: of the plan, as they were after the run. previous_arguments: the same after a run on other
    inputs, which shows stale data. Raises ProgramError if the virtual NPU cannot run a kernel.
    """
    for position, step in enumerate(plan.launches):
        kernel = build_kernel(step, plan.name)
        read = {inner: arguments[outer] for inner, outer in step.wiring.items()}
        by_numerics = run_launch(kernel, read, NUMERICS)
        for inner in by_numerics["exact"]:
            outer = step.wiring[inner]
            expected = {name: arrays[inner] for name, arrays in by_numerics.items()}
            actual = arguments[outer].reshape(expected["exact"].shape)
            finding = _finding(step, position, outer, actual, expected)
            if finding.verdict is ResultVerdict.DIFFERS:
                was = previous_arguments[outer].reshape(actual.shape)
                finding = _explained(finding, kernel, inner, actual, expected[finding.nearest], was, read)
            yield finding


def _finding(
    step: LaunchPlan, position: int, argument: str, actual: Array, expected: Arrays
) -> ResultFinding:
    spec = all_kernels()[step.kernel]
    distances = {name: _distance(spec, actual, array) for name, array in expected.items()}
    nearest = min(distances, key=lambda name: _distance_order(distances[name]))
    verdict = _verdict(spec, distances[nearest], actual, expected[nearest])
    return ResultFinding(
        step.label, position, step.kernel, argument, verdict, nearest, distances, actual.size
    )


def _distance_order(distance: ResultDistance) -> tuple[bool, int, float]:
    """Sort key of distances: within tolerance first, then by the number of equal elements, which a fault in a
    part leaves intact.
    """
    return distance.excess > 1, distance.differing, distance.share


def _distance(spec: KernelSpec, actual: Array, expected: Array) -> ResultDistance:
    difference = spec.tolerance.compare(actual, expected)
    return ResultDistance(relative_l1(actual, expected), difference.excess, difference.differing)


def relative_l1(actual: Array, expected: Array) -> float:
    """mean |actual - expected| / mean |expected|: 0 if they are equal, infinite if only one is not finite."""
    lhs, rhs = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.where((lhs == rhs) | (np.isnan(lhs) & np.isnan(rhs)), 0.0, np.abs(lhs - rhs)).mean()
    scale = float(np.abs(rhs[np.isfinite(rhs)]).mean()) if np.isfinite(rhs).any() else 0.0
    if not math.isfinite(error):
        return math.inf
    return float(error / scale) if scale else (math.inf if error else 0.0)


def _verdict(spec: KernelSpec, distance: ResultDistance, actual: Array, expected: Array) -> ResultVerdict:
    if distance.excess <= 1:
        return ResultVerdict.SAME
    allowance = spec.allowance
    if allowance is None or distance.share > allowance.share or allowance.mask(actual, expected).any():
        return ResultVerdict.DIFFERS
    return ResultVerdict.NEAR


def wrong_elements(spec: KernelSpec, actual: Array, expected: Array) -> Array:
    """The elements to explain: those outside the kernel's tolerance; if these are most and there is an
    allowance, those outside it; if no single element is outside, all that differ.
    """
    lhs, rhs = actual.astype(np.float64), expected.astype(np.float64)
    differs = np.asarray((lhs != rhs) & ~(np.isnan(lhs) & np.isnan(rhs)))
    tolerance, allowance = spec.tolerance, spec.allowance
    with np.errstate(invalid="ignore"):
        outside = differs & ~(np.abs(lhs - rhs) <= tolerance.atol + tolerance.rtol * np.abs(rhs))
    if allowance and outside.mean() > 0.5:
        outside = allowance.mask(actual, expected)
    return outside if outside.any() else differs


def _explained(
    finding: ResultFinding,
    kernel: KernelModule,
    inner: str,
    actual: Array,
    expected: Array,
    previous: Array,
    read: Arrays,
) -> ResultFinding:
    """Return the finding with all details of the wrong elements."""
    wrong = wrong_elements(all_kernels()[finding.kernel], actual, expected)
    with np.errstate(invalid="ignore"):
        error = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    error = np.where(wrong, np.nan_to_num(error, nan=np.inf, posinf=np.inf), -1.0)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(error)), actual.shape))
    untold = replace(kernel, module=remove_rounding_calls(kernel.module))
    floors = run_launch(untold, read, FLOOR) if _may_be_rounding(finding) else {}
    return replace(
        finding,
        wrong=int(np.count_nonzero(wrong)),
        worst=Worst(index, float(actual[index]), float(expected[index])),
        place=describe_positions(wrong),
        writers=_writers(kernel, inner, wrong, index),
        pattern=patterns(
            actual, expected, wrong, previous, {name: made[inner] for name, made in floors.items()}
        ),
    )


def _may_be_rounding(finding: ResultFinding) -> bool:
    """Whether many elements differ a little each, as another rounding mode makes them. Otherwise its variants
    are not built.
    """
    distance = finding.distances[finding.nearest]
    return distance.share < 0.2 and distance.differing > 0.1 * finding.size


def _writers(kernel: KernelModule, argument: str, wrong: Array, worst: tuple[int, ...]) -> str:
    try:
        return describe_writers(kernel, argument, wrong, worst)
    except ProgramError as error:
        return f"the core that wrote it is unknown ({str(error).splitlines()[0]})"
