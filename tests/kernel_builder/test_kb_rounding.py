"""On cores that start out rounding down every kernel has the same bits: they are told to round to even."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernel_builder.dsl import without_rounding
from kernel_builder.kernels import registry
from kernel_builder.spec import Array, KernelModule, KernelSpec
from kernel_builder.testing import random_arrays, run
from virtual_npu.options import BuildOptions

TOLD = {"eltwise_add": ("bf16",), "narrow": ("bf16",), "rms_norm": ("f32",)}
"""Kernels whose cores round in the compiler's own code and multiply no matrices; what they hand the call."""

CASES = [
    pytest.param(
        spec, case, numerics, id=f"{spec.name}-{place}-{numerics}",
        marks=() if place == 0 and numerics == "exact" and spec.name in TOLD else pytest.mark.long,
    )
    for spec in registry().values()
    for place, case in enumerate(spec.cases)
    for numerics in ("exact", "bfp16")
]  # fmt: skip


def results(kernel: KernelModule, spec: KernelSpec, case: dict[str, object], options: BuildOptions) -> Array:
    """All bits of all results, end to end."""
    arrays = random_arrays(spec, case, np.random.default_rng(7))
    return np.concatenate([array.ravel().view(np.uint8) for array in run(kernel, arrays, options).values()])


@pytest.mark.parametrize(("spec", "case", "numerics"), CASES)
def test_bits_do_not_depend_on_how_cores_start(
    spec: KernelSpec, case: dict[str, object], numerics: str
) -> None:
    kernel = spec.build(**case)
    nearest, down = (
        results(kernel, spec, case, BuildOptions(numerics=numerics, rounding=rounding))
        for rounding in ("conv_even", "floor")
    )
    np.testing.assert_array_equal(nearest, down)


@pytest.mark.parametrize("name", TOLD)
def test_without_the_call_they_do(name: str) -> None:
    """So the test above sees something, and so does whoever looks for this fault."""
    spec = registry()[name]
    kernel = spec.build(**spec.cases[0])
    untold = replace(kernel, module=without_rounding(kernel.module))
    assert "round_to_even" in kernel.text
    assert "round_to_even" not in untold.text
    nearest, down = (
        results(each, spec, spec.cases[0], BuildOptions(rounding="floor")) for each in (kernel, untold)
    )
    assert (nearest != down).any()


@pytest.mark.parametrize("name", TOLD)
def test_the_call_comes_before_the_first_rounding(name: str) -> None:
    for case in registry()[name].cases:
        text = registry()[name].build(**case).text
        body = text[text.index("air.herd") :]
        call = body.index("func.call @round_to_even_" + TOLD[name][0])
        rounding = min(body.find(op) % len(body) for op in ("arith.truncf", "arith.addf", "arith.mulf"))
        assert call < rounding
        assert body.count("func.call @round_to_even_") == 1


def test_nobody_else_needs_it() -> None:
    """Others round in a C++ function that sets the mode, or multiply matrices, where mlir-aie sets it."""
    for name, spec in registry().items():
        text = spec.build(**spec.cases[0]).text
        assert ("round_to_even" in text) == (name in TOLD), name
        assert name in TOLD or "vector.contract" in text or "link_with" in text, name
