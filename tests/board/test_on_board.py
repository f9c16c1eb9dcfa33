"""What only a board can show of the runtime, beside the comparison. Never run: nobody has had one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.board.compare.items import ComparisonItem, plan_item, random_arguments
from aerie.kernel_builder.kernels import all_kernels
from aerie.kernel_builder.spec import Array
from aerie.multi_launch_builder.builder import build_program
from aerie.runtime import KernelCache, select_backend

pytestmark = pytest.mark.board

GEMV = plan_item(ComparisonItem("kernel", "gemv"))
"""out (256) = weight (256, 256) @ x (256)."""


@pytest.fixture
def npu(tmp_path: Path) -> Iterator[KernelCache]:
    with KernelCache(tmp_path, select_backend("npu")) as cache:
        cache.compile_and_cache(build_program(GEMV))
        yield cache


def is_right(got: dict[str, Array], given: dict[str, Array]) -> bool:
    spec = all_kernels()["gemv"]
    return spec.tolerance.compare(got["out"], spec.reference({}, given)["out"]).passes


def test_weights_stay_on_the_device(npu: KernelCache) -> None:
    given, other = random_arguments(GEMV, 1), random_arguments(GEMV, 2)
    npu.preload("gemv", weight=given["weight"])
    assert is_right(npu.run("gemv", x=given["x"]), given)
    again = {**given, "x": other["x"]}
    assert is_right(npu.run("gemv", x=other["x"]), again)


def test_sets_of_buffers_do_not_mix(npu: KernelCache) -> None:
    layers = [random_arguments(GEMV, seed) for seed in range(4)]
    for number, layer in enumerate(layers):
        npu.preload("gemv", bo_key=f"layer {number}", weight=layer["weight"])
    for number, layer in reversed(list(enumerate(layers))):
        assert is_right(npu.run("gemv", bo_key=f"layer {number}", x=layer["x"]), layer)


def test_a_cache_that_was_closed_opens_the_device_again(npu: KernelCache) -> None:
    given: dict[str, Any] = random_arguments(GEMV, 1)
    for _ in range(3):
        assert is_right(npu.run("gemv", **given), given)
        npu.close()


def test_a_hundred_runs_give_the_same_numbers(npu: KernelCache) -> None:
    given: dict[str, Any] = random_arguments(GEMV, 1)
    first = npu.run("gemv", **given)["out"]
    assert all(np.array_equal(npu.run("gemv", x=given["x"])["out"], first) for _ in range(100))


def test_the_demo_answers() -> None:
    question = "What is the capital of France?"
    command = [sys.executable, "-m", "aerie.cli", "run", "--backend", "npu", "--prompt", question]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
