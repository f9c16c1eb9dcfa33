"""Every kernel with the fast paths of the virtual NPU and without: which bits must not change."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_builder.kernels import gemm, registry
from kernel_builder.spec import Array
from kernel_builder.testing import random_arrays, run
from virtual_npu.options import BuildOptions

FAST, WATCHED, PLAIN = BuildOptions(), BuildOptions(checks=True), BuildOptions(fast=False)
QUICK = ("gemm", "gemv", "eltwise_add")
SUMS = ("gemm", "gemm_f32", "flash_attention")
"""Kernels with matrix products, whose sums fast paths may form in another order."""

NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in registry()]


def results(name: str, options: BuildOptions) -> dict[str, Array]:
    spec = registry()[name]
    arrays = random_arrays(spec, spec.cases[0], np.random.default_rng(1))
    return run(spec.build(**spec.cases[0]), arrays, options)


def assert_same_bits(got: dict[str, Array], want: dict[str, Array]) -> None:
    assert got.keys() == want.keys()
    for name, array in got.items():
        np.testing.assert_array_equal(array.view(np.uint8), want[name].view(np.uint8), err_msg=name)


@pytest.mark.parametrize("name", NAMES)
def test_checks_change_no_bit(name: str) -> None:
    """With checks nothing is recognised and everything is copied."""
    assert_same_bits(results(name, FAST), results(name, WATCHED))


@pytest.mark.parametrize("name", NAMES)
def test_one_thread_or_several(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VNPU_THREADS", "1")
    alone = results(name, FAST)
    monkeypatch.setenv("VNPU_THREADS", "3")
    assert_same_bits(results(name, FAST), alone)


@pytest.mark.parametrize("options", [FAST, WATCHED, PLAIN], ids=["fast", "checks", "plain"])
@pytest.mark.parametrize("shape", [(64, 256, 256), (24, 40, 88)])
def test_the_layout_of_b_changes_no_bit(shape: tuple[int, int, int], options: BuildOptions) -> None:
    """A product by a weight in (out, in) layout is that by its transpose."""
    rng = np.random.default_rng(2)
    m, k, n = shape
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    plain = run(gemm.build(*shape), {"a": a, "b": b}, options)
    assert_same_bits(run(gemm.build(*shape, b_transposed=True), {"a": a, "b": b.T}, options), plain)


@pytest.mark.parametrize("name", NAMES)
def test_without_fast_paths(name: str) -> None:
    """Only sums of products may differ, and by no more than the kernel may from its reference."""
    spec, fast, plain = registry()[name], results(name, FAST), results(name, PLAIN)
    if name not in SUMS:
        assert_same_bits(fast, plain)
    for argument, array in fast.items():
        assert spec.tolerance.compare(array, plain[argument]).passes, argument
