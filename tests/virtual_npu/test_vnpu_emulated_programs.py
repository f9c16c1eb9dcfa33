"""Whole programs on instruction sets that this CPU may lack, emulated: the same bits however they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from aerie import load
from aerie.kernel_builder.kernels import all_kernels
from aerie.kernel_builder.spec import Parameters
from aerie.kernel_builder.testing import compare, random_arrays, run
from aerie.virtual_npu import BuildOptions
from tests.virtual_npu.instruction_sets import SETS, InstructionSet

Array = np.ndarray[Any, Any]

CASES: tuple[tuple[str, Parameters], ...] = (
    ("gemm_f32", {"m": 24, "k": 40, "n": 88, "b_transposed": True}),
    ("gemm_f32", {"m": 24, "k": 96, "n": 88, "b_transposed": True}),
    ("flash_attention", {"lq": 64, "lk": 64, "n_heads": 2, "n_kv_heads": 1, "head_dim": 64}),
)
LARGE = {"m": 136, "k": 256, "n": 192}
"""A GEMM that is worth several threads."""
AMX, BFMMLA = LACKED = ("AMX emulated", "BFMMLA emulated")
BY_SIGNAL = "AMX by signal"
"""AMX's own instructions, each emulated where it traps. Sums have the order of "AMX emulated"."""


def on_sets(cases: Sequence[Any]) -> list[tuple[str, Any]]:
    """Parameters: every case on AMX, whose sums depend on k, the last two on BFMMLA, the last by signal."""
    return [
        *((AMX, case) for case in cases),
        *((BFMMLA, case) for case in cases[-2:]),
        (BY_SIGNAL, cases[-1]),
    ]


@pytest.fixture
def emulated(request: pytest.FixtureRequest) -> Iterator[InstructionSet]:
    """Programs are built for one of these sets meanwhile."""
    with SETS[request.param].chosen():
        yield SETS[request.param]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("emulated", "product"), on_sets(CASES), indirect=["emulated"])
def test_results_are_within_the_tolerance_of_the_kernel(product: tuple[str, Parameters]) -> None:
    name, case = product
    for result, difference in compare(all_kernels()[name], case).items():
        assert difference.passes, f"{result}: {difference}"


def result(name: str, case: Parameters, options: BuildOptions) -> Array:
    """The one result of a kernel on the same random arrays."""
    spec = all_kernels()[name]
    (out,) = run(spec.build(**case), random_arrays(spec, case, np.random.default_rng(3)), options).values()
    return out


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("emulated", "product"), on_sets(CASES), indirect=["emulated"])
def test_products_that_are_not_recognised_give_the_same_bits(product: tuple[str, Parameters]) -> None:
    """With checks every block is multiplied by itself."""
    name, case = product
    recognised, by_blocks = (result(name, case, BuildOptions(checks=checks)) for checks in (False, True))
    assert recognised.tobytes() == by_blocks.tobytes()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("emulated", "k"), on_sets([48, 224, 96]), indirect=["emulated"])
def test_a_row_has_the_same_bits_in_both_gemms(k: int) -> None:
    """The tiles that divide k differ: 96 is three of 32 or two of 48, which AMX does not sum in whole goes.

    Products cancel, so that what is left is what each addition lost.
    """
    rows, specs = {"m": 8, "k": k, "n": 64}, all_kernels()
    arrays = random_arrays(specs["gemm_rows"], rows, np.random.default_rng(4))
    a, b = (arrays[name].reshape(-1, k) for name in ("a", "b"))
    a[:, k // 2 :], b[:, k // 2 :] = -a[:, : k // 2], b[:, : k // 2]
    few = run(specs["gemm_rows"].build(**rows), {"a": a, "b": b}, BuildOptions())["c"]
    many = specs["gemm"].build(m=40, k=k, n=64, b_transposed=True)
    got = run(many, {"a": np.tile(a, (5, 1)), "b": b}, BuildOptions())["c"]
    assert few.any()
    assert got[:8].tobytes() == few.tobytes()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("emulated", LACKED, indirect=True)
def test_no_thread_changes_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    results = set()
    for threads in range(1, 5):
        monkeypatch.setenv("VNPU_THREADS", str(threads))
        results.add(result("gemm_f32", LARGE, BuildOptions()).tobytes())
    assert len(results) == 1


def test_the_sets_differ() -> None:
    """What is emulated is what the programs above run."""
    found = set()
    for name in ("AVX2", *LACKED):
        with SETS[name].chosen():
            found.add(result("gemm_f32", LARGE, BuildOptions()).tobytes())
    assert len(found) == 3


def test_the_demo_answers() -> None:
    """On AMX; with BFMMLA it does so on an emulated Arm CPU (tests/emulator)."""
    with SETS[BY_SIGNAL].chosen(), load("demo", backend="virtual") as model:
        assert str(model.generate("What is the capital of France?")) == "The capital of France is Paris."
