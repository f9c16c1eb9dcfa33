"""Every kernel in every mode of the virtual NPU: which bits must not change from one mode to the other.

A mode is how a kernel is built and run; a kernel's results in it are made once. A few pairs are among the
default tests, and all of them among the slow ones; where cores round down, of two shapes of the kernels whose
C++ functions set the mode: that the call of the others stands first in every shape is read in the text
(test_the_call_comes_before_the_first_rounding).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import BFloat16Type, ModuleOp
from xdsl.ir import Operation

from aerie.device.rules.lowering import core_operations
from aerie.kernel_builder.dsl import remove_rounding_calls
from aerie.kernel_builder.kernels import all_kernels, gemm
from aerie.kernel_builder.spec import Array, KernelModule
from aerie.kernel_builder.testing import random_arrays, run
from aerie.virtual_npu.options import BuildOptions


@dataclass(frozen=True)
class Mode:
    """How a kernel is built, on how many threads it runs, and the mode whose bits it must give."""

    options: BuildOptions
    like: str = "default"
    threads: int = 3


MODES = {
    "default": Mode(BuildOptions()),
    "checks": Mode(BuildOptions(checks=True)),  # nothing is recognised, everything is copied
    "plain": Mode(BuildOptions(fast=False)),
    "one thread": Mode(BuildOptions(), threads=1),
    "floor": Mode(BuildOptions(rounding="floor")),  # cores round down after power-up; kernels set the mode
    "bfp16": Mode(BuildOptions(numerics="bfp16"), like="bfp16"),
    "bfp16, floor": Mode(BuildOptions(numerics="bfp16", rounding="floor"), like="bfp16"),
}


def rounds(op: Operation) -> bool:
    """Whether an operation gives a bf16 that was rounded to nearest or down, as the core's mode says."""
    arithmetic = op.name in ("arith.truncf", *ARITHMETIC) or op.name.startswith("math.")
    types = [getattr(result.type, "element_type", result.type) for result in op.results]
    return arithmetic and any(isinstance(type_, BFloat16Type) for type_ in types)


def needs_the_call(module: ModuleOp) -> bool:
    """Whether cores round in the compiler's own code and multiply no matrices, for which it sets the mode."""
    names = {op.name for op in module.walk()}
    return any(map(rounds, core_operations(module))) and "vector.contract" not in names


ARITHMETIC = ("arith.addf", "arith.subf", "arith.mulf", "arith.divf", "vector.fma")
WITH_CALL = ["bias_add", "eltwise_add", "narrow", "rms_norm"]
"""The kernels of which `needs_the_call` is true: a test holds them so."""
IN_BLOCKS = ["gemm", "gemm_f32", "gemm_rows"]
"""The kernels that multiply in block floating point where the mode says so: a test holds them so."""
QUICK: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("checks", "plain", "one thread"), ("gemm", "gemv", "eltwise_add")
)
QUICK["floor"] = tuple(WITH_CALL)
PAIRS = [
    pytest.param(
        *(name, case, mode),
        id=f"{name}-{case}-{mode}",
        marks=() if case == 0 and name in QUICK.get(mode, ()) else pytest.mark.slow,
    )
    for mode in MODES
    if mode != MODES[mode].like
    for name, spec in all_kernels().items()
    if name in IN_BLOCKS or "bfp16" not in mode
    for case in ((0, len(spec.cases) - 1) if "floor" in mode and name not in WITH_CALL else (0,))
]


def results_of(kernel: KernelModule, arrays: dict[str, Array], mode: Mode) -> dict[str, Array]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_THREADS", str(mode.threads))
        return run(kernel, arrays, mode.options)


@pytest.fixture(scope="module")
def results() -> Callable[[str, int, str], dict[str, Array]]:
    """results(kernel, case, mode): what a kernel makes of random arrays, the same ones in every mode."""

    @cache
    def make(name: str, case: int, mode: str) -> dict[str, Array]:
        spec = all_kernels()[name]
        arrays = random_arrays(spec, spec.cases[case], np.random.default_rng(7))
        return results_of(spec.build(**spec.cases[case]), arrays, MODES[mode])

    return make


def assert_same_bits(got: dict[str, Array], want: dict[str, Array]) -> None:
    assert got.keys() == want.keys()
    for name, array in got.items():
        np.testing.assert_array_equal(array.view(np.uint8), want[name].view(np.uint8), err_msg=name)


@pytest.mark.parametrize(("name", "case", "mode"), PAIRS)
def test_a_mode_changes_no_bit(results: Any, name: str, case: int, mode: str) -> None:
    """Without fast paths sums may differ, by no more than the kernel may from its reference."""
    got, want = results(name, case, mode), results(name, case, MODES[mode].like)
    if mode == "plain" and all_kernels()[name].sums_may_reorder:
        tolerance = all_kernels()[name].tolerance
        assert all(tolerance.compare(want[argument], array).passes for argument, array in got.items())
    else:
        assert_same_bits(got, want)


@pytest.mark.parametrize("mode", ["default", "checks", "plain"])
@pytest.mark.parametrize("shape", [(64, 256, 256), (24, 40, 88)])
def test_the_layout_of_b_changes_no_bit(shape: tuple[int, int, int], mode: str) -> None:
    """A product by a weight in (out, in) layout is that by its transpose."""
    rng = np.random.default_rng(2)
    m, k, n = shape
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    plain = results_of(gemm.build(*shape), {"a": a, "b": b}, MODES[mode])
    transposed = results_of(gemm.build(*shape, b_transposed=True), {"a": a, "b": b.T}, MODES[mode])
    assert_same_bits(transposed, plain)


@pytest.mark.parametrize("name", WITH_CALL)
def test_cores_without_the_call_round_differently(results: Any, name: str) -> None:
    """So the tests with `floor` see something, and so does whoever looks for this fault."""
    spec = all_kernels()[name]
    kernel = spec.build(**spec.cases[0])
    untold = replace(kernel, module=remove_rounding_calls(kernel.module))
    assert "round_to_even" in kernel.text
    assert "round_to_even" not in untold.text
    arrays = random_arrays(spec, spec.cases[0], np.random.default_rng(7))
    down = results_of(untold, arrays, MODES["floor"])
    assert any((down[argument] != array).any() for argument, array in results(name, 0, "floor").items())


@pytest.mark.parametrize("name", WITH_CALL)
def test_the_call_comes_before_the_first_rounding(name: str) -> None:
    for case in all_kernels()[name].cases:
        text = all_kernels()[name].build(**case).text
        body = text[text.index("air.herd") :]
        call = body.find("func.call @round_to_even_") % len(body)
        rounding = min(body.find(op) % len(body) for op in ("arith.truncf", *ARITHMETIC))
        if call > rounding or body.count("func.call @round_to_even_") > 1:
            pytest.fail(
                f"kernel {name} rounds to bf16 before it sets the rounding mode, and a core starts out "
                "rounding down; call k.round_to_even(BUFFER) once, with the buffer that it works on next, "
                "before the first operation that gives bf16",
                pytrace=False,
            )


def test_no_other_kernel_needs_the_call() -> None:
    """Others round in a C++ function that sets the mode, or multiply matrices, where mlir-aie sets it."""
    first = {name: spec.build(**spec.cases[0]) for name, spec in all_kernels().items()}
    assert [name for name, kernel in first.items() if needs_the_call(kernel.module)] == WITH_CALL
    assert [name for name, kernel in first.items() if "vector.contract" in kernel.text] == IN_BLOCKS
    assert not any("BFP16" in kernel.text for kernel in first.values())  # nor does a C++ function
    for name, kernel in first.items():
        if name not in WITH_CALL and "round_to_even" in kernel.text:
            pytest.fail(f"kernel {name} rounds nothing itself: leave k.round_to_even out", pytrace=False)
