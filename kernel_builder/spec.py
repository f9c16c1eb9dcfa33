"""What makes a file a kernel: its builder, its numpy reference, its cases and its tolerance.

And what a builder needs beside the language: the finished module; sizes that are legal, and a refusal that
names the nearest legal one.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from aerie.air_dialect import print_module
from aerie.device.npu2 import NPU2, Device
from aerie.kernel_builder.arguments import ArgumentTable, IllegalShapeError

Array = NDArray[Any]
Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class KernelModule:
    """`module` holds one public func.func called `name`; `arguments` are its arguments in order."""

    name: str
    module: ModuleOp = field(repr=False)
    arguments: ArgumentTable

    @cached_property
    def text(self) -> str:
        """The module as AIR text."""
        return print_module(self.module)


@dataclass(frozen=True)
class Element:
    """One element of a result: where it is, what was got and wanted, and how far apart they may be."""

    index: tuple[int, ...]
    got: float
    want: float
    allowed: float

    @property
    def error(self) -> float:
        """The distance; infinite where only one of the two is a NaN."""
        return math.inf if math.isnan(self.got - self.want) else abs(self.got - self.want)

    def __str__(self) -> str:
        allowed = f", allowed error {self.allowed:.3g}" if self.allowed else ""
        return f"index {list(self.index)}: got {self.got:.6g}, wanted {self.want:.6g}{allowed}"


@dataclass(frozen=True)
class Difference:
    """How a result differs from its reference.

    size: its elements; differing: how many of them differ at all; most: how many may. worst: the element that
    is farthest beyond its own allowed distance; ratio: its distance over that allowed distance.
    """

    size: int
    differing: int
    most: float
    worst: Element | None = None
    ratio: float = 0.0

    @property
    def excess(self) -> float:
        """The larger of two shares, of the allowed distance and of the allowed number of differences."""
        return max(self.ratio, self.differing / self.most)

    @property
    def passes(self) -> bool:
        """Whether the result lies within its tolerance."""
        return self.excess <= 1

    def __str__(self) -> str:
        limit = f", at most {int(self.most)} may" if self.differing > self.most else ""
        return f"{self.differing} of {self.size} elements differ{limit}, worst at {self.worst}"


@dataclass(frozen=True)
class Tolerance:
    """How far a kernel's result may lie from its reference, and why.

    Every element: |got - want| <= atol + rtol * |want|; zero for both means bit-identical.
    differing: the share of elements that may differ at all, beyond a first two. Where results differ only
    when a last rounding tips, this is what notices a small error that is everywhere.
    reason: where the difference comes from.
    """

    rtol: float
    atol: float
    reason: str
    differing: float = 1.0

    def compare(self, got: Array, want: Array) -> Difference:
        """How far `got` is from `want`, two arrays of one shape.

        A NaN or an infinity that only one of the two has counts as infinitely far.
        """
        left, right = got.astype(np.float64), want.astype(np.float64)
        if left.shape != right.shape:
            raise ValueError(f"the result has shape {left.shape}, its reference {right.shape}")
        differs = (left != right) & ~(np.isnan(left) & np.isnan(right))
        most = 2 + self.differing * differs.size
        if not differs.any():
            return Difference(differs.size, 0, most)
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.nan_to_num(np.abs(left - right), nan=np.inf, posinf=np.inf)
            allowed = self.atol + self.rtol * np.abs(right)
            ratio = np.where(differs, np.nan_to_num(error / allowed, nan=np.inf, posinf=np.inf), 0.0)
        flat = int(np.argmax(np.where(ratio == ratio.max(), error, -1.0)))
        index = tuple(int(i) for i in np.unravel_index(flat, ratio.shape))
        worst = Element(index, float(left[index]), float(right[index]), float(allowed[index]))
        return Difference(differs.size, int(np.count_nonzero(differs)), most, worst, float(ratio[index]))

    def excess(self, got: Array, want: Array) -> float:
        """`Difference.excess` of two arrays: at most 1 passes."""
        return self.compare(got, want).excess


@dataclass(frozen=True)
class Allowance:
    """How far a board's result may lie from the virtual NPU's, beyond the tolerance, where a core does what
    the virtual NPU does not model.

    share: most mean |got - want| / mean |want|. largest: most |got - want|, times the rms of its row.
    reason: what is not modelled, and what was measured of it.
    """

    share: float
    largest: float
    reason: str

    def mask(self, got: Array, want: Array) -> Array:
        """Which elements are farther off than `largest`; a NaN or infinity always is."""
        left, right = got.astype(np.float64), want.astype(np.float64)
        scale = np.sqrt((right**2).mean(axis=-1, keepdims=True))
        with np.errstate(invalid="ignore"):
            return np.asarray(~(np.abs(left - right) <= self.largest * scale))


@dataclass(frozen=True)
class KernelSpec:
    """One kernel, with everything that the tests, the board's comparison and the pages need to know of it.

    build(**parameters) makes the module; an illegal shape raises IllegalShapeError. What is keyword-only in
    it is no choice of whoever asks for a kernel: `device`, the Device that it is built for.
    reference(parameters, arrays) takes the parameters and the arrays of every argument that is read, by
    name, and returns the arrays of every OUTPUT argument, by name.
    cases: parameters that every test runs.
    random_case(rng): legal parameters drawn at random, small enough to run in a test.
    random_inputs(parameters, rng): arrays for the arguments that are read, where standard normal numbers
    would not do; may be None.
    summary: what it computes, in a line; by default the first line of its file.
    rows: the parameter, if the kernel has it, that counts rows which do not touch each other: no bit of a row
    may depend on it. allowance: what a board may do beyond the tolerance; None: nothing.
    any_order: whether it sums products of matrices, which the virtual NPU's fast paths may do in another
    order. without_evidence: forms of it (docs/explanation/lowering.md) that no file of upstream shows.
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
    any_order: bool = False
    without_evidence: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What it computes, in a line."""
        file = sys.modules[self.reference.__module__]
        return self.summary or (file.__doc__ or "").partition("\n")[0]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of what can be chosen of the kernel."""
        known = inspect.signature(self.build).parameters.values()
        return tuple(parameter.name for parameter in known if parameter.kind is not parameter.KEYWORD_ONLY)


def largest_divisor(value: int, limit: int, multiple_of: int = 1) -> int:
    """The largest divisor of `value` that is at most `limit` and a multiple of `multiple_of`.

    Raises IllegalShapeError where there is none.
    """
    for candidate in range(min(value, limit) // multiple_of * multiple_of, 0, -multiple_of):
        if value % candidate == 0:
            return candidate
    raise IllegalShapeError(f"{value} has no divisor up to {limit} that is a multiple of {multiple_of}")


def require_multiple(kernel: str, name: str, value: int, of: int, why: str) -> None:
    """Raises IllegalShapeError, naming legal values, unless `value` is a positive multiple of `of`."""
    if not isinstance(value, int):
        raise IllegalShapeError(f"{kernel}: {name}={value} is no whole number; use a multiple of {of}")
    if value > 0 and value % of == 0:
        return
    below, above = value // of * of, (value // of + 1) * of
    legal = f"{below} or {above}" if below > 0 else str(max(above, of))
    raise IllegalShapeError(f"{kernel}: {name}={value} is no positive multiple of {of} ({why}); use {legal}")


def cores(kernel: str, unit: str, work: int, asked: int | None, device: Device = NPU2) -> int:
    """How many cores in a row share `work` units evenly: `asked`, or the most where it is None.

    `kernel` and `unit` (such as "rows") are for the message.

    Raises IllegalShapeError where `asked` does not divide the work or the device has fewer columns.
    """
    if work <= 0:
        raise IllegalShapeError(f"{kernel}: {work} {unit} leave nothing to do; use at least 1")
    most = largest_divisor(work, device.columns)
    if asked is None:
        return most
    if not 1 <= asked <= device.columns or work % asked:
        raise IllegalShapeError(
            f"{kernel}: {asked} cores (herd_x) cannot share {work} {unit} evenly in "
            f"{device.columns} columns; use {most}"
        )
    return asked
