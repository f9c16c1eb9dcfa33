"""What makes a folder entry a kernel: its builder, its numpy reference, its cases and its tolerance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel_builder.module import KernelModule

Array = NDArray[Any]
Parameters = Mapping[str, Any]


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

    def excess(self, got: Array, want: Array) -> float:
        """How far `got` is away, in allowed distances or in allowed numbers of differences; at most 1 passes.

        A NaN or an infinity that only one of the two has counts as infinitely far.
        """
        left, right = got.astype(np.float64), want.astype(np.float64)
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        with np.errstate(invalid="ignore"):
            allowed = np.maximum(self.atol + self.rtol * np.abs(right), np.finfo(np.float64).tiny)
            ratio = np.abs(left - right) / allowed
        worst = np.max(np.where(same, 0.0, np.where(np.isnan(ratio), np.inf, ratio)), initial=0.0)
        return float(max(worst, np.count_nonzero(~same) / (2 + self.differing * same.size)))


@dataclass(frozen=True)
class KernelSpec:
    """One kernel.

    build(**parameters) makes the module; an illegal shape raises IllegalShapeError.
    reference(parameters, arrays) takes the parameters and the arrays of every argument that is read, by
    name, and returns the arrays of every OUTPUT argument, by name.
    cases: parameters that every test runs.
    random_case(rng): legal parameters drawn at random, small enough to run in a test.
    random_inputs(parameters, rng): arrays for the arguments that are read, where standard normal numbers
    would not do; may be None.
    """

    name: str
    build: Callable[..., KernelModule]
    reference: Callable[[Parameters, Mapping[str, Array]], dict[str, Array]]
    cases: tuple[Parameters, ...]
    tolerance: Tolerance
    random_case: Callable[[np.random.Generator], dict[str, Any]]
    random_inputs: Callable[[Parameters, np.random.Generator], dict[str, Array]] | None = None
