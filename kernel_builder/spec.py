"""The parts of a kernel file: its builder, its numpy reference, its cases and its tolerance.

Also what a builder needs besides the language: the finished module, legal sizes, and errors that name the
nearest legal size.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from aerie.air_dialect import print_module
from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.arguments import ArgumentTable, IllegalShapeError

Array = NDArray[Any]
Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class KernelModule:
    """A built, verified kernel. module: holds one public func.func called `name`. arguments: in order."""

    name: str
    module: ModuleOp = field(repr=False)
    arguments: ArgumentTable

    @cached_property
    def text(self) -> str:
        """The module as AIR text."""
        return print_module(self.module)


@dataclass(frozen=True)
class WorstElement:
    """One element of a result: its index, actual and expected value, and the allowed difference."""

    index: tuple[int, ...]
    actual: float
    expected: float
    allowed: float

    @property
    def error(self) -> float:
        """The absolute difference; infinite if exactly one of the two is a NaN."""
        return math.inf if math.isnan(self.actual - self.expected) else abs(self.actual - self.expected)

    def __str__(self) -> str:
        allowed = f", allowed error {self.allowed:.3g}" if self.allowed else ""
        return f"index {list(self.index)}: got {self.actual:.6g}, wanted {self.expected:.6g}{allowed}"


@dataclass(frozen=True)
class KernelDifference:
    """How a result differs from its reference.

    size: the number of elements. differing: how many differ at all. max_differing: how many may differ.
    worst: the element farthest beyond its allowed difference. ratio: its difference divided by the allowed
    one.
    """

    size: int
    differing: int
    max_differing: float
    worst: WorstElement | None = None
    ratio: float = 0.0

    @property
    def excess(self) -> float:
        """The larger of two ratios: of the worst element's difference, and of the number of differing
        elements.
        """
        return max(self.ratio, self.differing / self.max_differing)

    @property
    def passes(self) -> bool:
        """Whether the result is within its tolerance."""
        return self.excess <= 1

    def __str__(self) -> str:
        limit = f", at most {int(self.max_differing)} may" if self.differing > self.max_differing else ""
        return f"{self.differing} of {self.size} elements differ{limit}, worst at {self.worst}"


@dataclass(frozen=True)
class Tolerance:
    """How far a kernel's result may be from its reference, and why.

    Every element: |actual - expected| <= atol + rtol * |expected|; zero for both means bit-identical.
    max_differing_share: the share of elements that may differ at all, beyond a first two. If results differ
    only because a last rounding changes, this detects a small error in all elements.
    reason: the source of the difference.
    """

    rtol: float
    atol: float
    reason: str
    max_differing_share: float = 1.0

    def compare(self, actual: Array, expected: Array) -> KernelDifference:
        """Compare two arrays of one shape.

        A NaN or an infinity that only one of the two has counts as infinitely far.
        """
        lhs, rhs = actual.astype(np.float64), expected.astype(np.float64)
        if lhs.shape != rhs.shape:
            raise ValueError(f"the result has shape {lhs.shape}, its reference {rhs.shape}")
        differs = (lhs != rhs) & ~(np.isnan(lhs) & np.isnan(rhs))
        max_differing = 2 + self.max_differing_share * differs.size
        if not differs.any():
            return KernelDifference(differs.size, 0, max_differing)
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.nan_to_num(np.abs(lhs - rhs), nan=np.inf, posinf=np.inf)
            allowed = self.atol + self.rtol * np.abs(rhs)
            ratio = np.where(differs, np.nan_to_num(error / allowed, nan=np.inf, posinf=np.inf), 0.0)
        flat = int(np.argmax(np.where(ratio == ratio.max(), error, -1.0)))
        index = tuple(int(i) for i in np.unravel_index(flat, ratio.shape))
        worst = WorstElement(index, float(lhs[index]), float(rhs[index]), float(allowed[index]))
        return KernelDifference(
            differs.size, int(np.count_nonzero(differs)), max_differing, worst, float(ratio[index])
        )

    def excess(self, actual: Array, expected: Array) -> float:
        """`KernelDifference.excess` of two arrays: at most 1 passes."""
        return self.compare(actual, expected).excess


@dataclass(frozen=True)
class Allowance:
    """How far an NPU's result may be from the virtual NPU's, beyond the tolerance, because a core does
    something that the virtual NPU does not model.

    share: maximum mean |actual - expected| / mean |expected|. largest: maximum |actual - expected|, in units
    of its row's rms. reason: what is not modelled, and what was measured of it.
    """

    share: float
    largest: float
    reason: str

    def mask(self, actual: Array, expected: Array) -> Array:
        """The elements that differ by more than `largest`; a NaN or infinity always does."""
        lhs, rhs = actual.astype(np.float64), expected.astype(np.float64)
        scale = np.sqrt((rhs**2).mean(axis=-1, keepdims=True))
        with np.errstate(invalid="ignore"):
            return np.asarray(~(np.abs(lhs - rhs) <= self.largest * scale))


@dataclass(frozen=True)
class KernelSpec:
    """One kernel, with everything that the tests, the comparison with an NPU and the pages use.

    build(**parameters) makes the module; an illegal shape raises IllegalShapeError. Keyword-only arguments
    are not parameters of the kernel: `device` is the Device that it is built for.
    reference(parameters, arrays) takes the parameters and the arrays of every argument that is read, by name,
    and returns the arrays of every OUTPUT argument, by name.
    cases: parameters that every test runs.
    random_case(rng): random legal parameters, small enough for a test.
    random_inputs(parameters, rng): arrays for the arguments that are read, if standard normal numbers are not
    valid; may be None.
    summary: what it computes, in a line; by default the first line of its file.
    rows: the parameter, if the kernel has it, that counts independent rows: no bit of a row may depend on it.
    allowance: what an NPU may do beyond the tolerance; None means nothing.
    sums_may_reorder: whether it sums products of matrices, which the virtual NPU's fast paths may do in
    another order. unproven_forms: forms that it uses (docs/dev/lowering.md) and no upstream file
    shows.
    schedules(parameters): what else the kernel may choose where parameters leave it open: tiles and cores,
    each as the parameters that fix them. All give the same bits. Illegal ones among them are refused by
    build; None means that there is nothing to choose.
    """

    name: str
    build: Callable[..., KernelModule]
    reference: Callable[[Parameters, Mapping[str, Array]], dict[str, Array]]
    cases: tuple[Parameters, ...]
    tolerance: Tolerance
    random_case: Callable[[np.random.Generator], dict[str, Any]]
    random_inputs: Callable[[Parameters, np.random.Generator], dict[str, Array]] | None = None
    summary: str = ""
    rows: str = "rows"
    allowance: Allowance | None = None
    sums_may_reorder: bool = False
    unproven_forms: tuple[str, ...] = ()
    schedules: Callable[[Parameters], Iterator[dict[str, int]]] | None = None

    @property
    def title(self) -> str:
        """What it computes, in a line."""
        file = sys.modules[self.reference.__module__]
        return self.summary or (file.__doc__ or "").partition("\n")[0]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the kernel's parameters."""
        signature = inspect.signature(self.build).parameters.values()
        return tuple(
            parameter.name for parameter in signature if parameter.kind is not parameter.KEYWORD_ONLY
        )


def largest_divisor(value: int, limit: int, multiple_of: int = 1) -> int:
    """The largest divisor of `value` that is at most `limit` and a multiple of `multiple_of`.

    Raises IllegalShapeError if there is none.
    """
    for candidate in range(min(value, limit) // multiple_of * multiple_of, 0, -multiple_of):
        if value % candidate == 0:
            return candidate
    raise IllegalShapeError(f"{value} has no divisor up to {limit} that is a multiple of {multiple_of}")


def divisors(value: int, limit: int, multiple_of: int = 1) -> list[int]:
    """The divisors of `value` up to `limit` that are multiples of `multiple_of`, in order."""
    steps = range(multiple_of, min(value, limit) + 1, multiple_of)
    return [candidate for candidate in steps if value % candidate == 0]


def require_multiple(kernel: str, name: str, value: int, step: int, reason: str) -> None:
    """Raise IllegalShapeError, naming legal values, unless `value` is a positive multiple of `step`."""
    if not isinstance(value, int):
        raise IllegalShapeError(f"{kernel}: {name}={value} is no whole number; use a multiple of {step}")
    if value > 0 and value % step == 0:
        return
    below, above = value // step * step, (value // step + 1) * step
    legal = f"{below} or {above}" if below > 0 else str(max(above, step))
    raise IllegalShapeError(
        f"{kernel}: {name}={value} is no positive multiple of {step} ({reason}); use {legal}"
    )


def cores(kernel: str, unit: str, work: int, requested: int | None, device: DeviceModel = NPU2) -> int:
    """How many cores in a row share `work` units evenly: `requested`, or the maximum if it is None.

    kernel, unit: for the message; unit is a plural such as "rows".

    Raises IllegalShapeError if `requested` does not divide the work or the device has fewer columns.
    """
    if work <= 0:
        raise IllegalShapeError(f"{kernel}: {work} {unit} leave nothing to do; use at least 1")
    max_cores = largest_divisor(work, device.columns)
    if requested is None:
        return max_cores
    if not 1 <= requested <= device.columns or work % requested:
        raise IllegalShapeError(
            f"{kernel}: {requested} cores (herd_x) cannot share {work} {unit} evenly in "
            f"{device.columns} columns; use {max_cores}"
        )
    return requested
