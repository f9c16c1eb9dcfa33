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
    """How far a kernel's result may lie from its reference, and why: |got - want| <= atol + rtol * |want|.

    reason: where the difference comes from. Zero for both means bit-identical.
    """

    rtol: float
    atol: float
    reason: str

    def excess(self, got: Array, want: Array) -> float:
        """How many times the allowed distance the worst element is away; at most 1 is within it.

        A NaN where the reference has none counts as infinitely far.
        """
        left, right = got.astype(np.float64), want.astype(np.float64)
        distance = np.abs(left - right)
        allowed = self.atol + self.rtol * np.abs(right)
        tiny = np.finfo(np.float64).tiny
        ratio = np.where(distance == 0, 0.0, distance / np.where(allowed == 0, tiny, allowed))
        return float(np.max(np.where(np.isnan(left) & ~np.isnan(right), np.inf, ratio), initial=0.0))


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
