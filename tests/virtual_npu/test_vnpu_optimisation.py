"""What the compiler optimises changes no bit: tests build at low levels what users have at the highest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from aerie.kernel_builder.kernels import all_kernels
from aerie.kernel_builder.testing import random_arrays, run
from aerie.virtual_npu.options import BuildOptions

OF_USERS, OF_TESTS = "3", ("0", "1")
"""Levels of VNPU_OPT."""
BUILDS = {
    "exact": BuildOptions(),
    "with checks": BuildOptions(checks=True),
    "bfp16": BuildOptions(numerics="bfp16"),
    "the plain way": BuildOptions(fast=False),
}
QUICK = ("gemm", "rms_norm")


def cases() -> Iterator[Any]:
    """Every kernel as users build it, and products and attention in all builds; slow but for two."""
    for name, build in itertools.product(all_kernels(), BUILDS):
        if build == "exact":
            yield pytest.param(name, build, marks=() if name in QUICK else pytest.mark.slow)
        elif name in ("gemm", "flash_attention"):
            yield pytest.param(name, build, marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "build"), [*cases()])
def test_no_bit_depends_on_the_level(monkeypatch: pytest.MonkeyPatch, name: str, build: str) -> None:
    """Of every kernel: products of matrices, attention, vectors and external C++ alike."""
    spec = all_kernels()[name]
    parameters = spec.cases[0]
    arrays, kernel = random_arrays(spec, parameters, np.random.default_rng(8)), spec.build(**parameters)

    def bits(level: str) -> list[bytes]:
        monkeypatch.setenv("VNPU_OPT", level)
        return [out.tobytes() for out in run(kernel, arrays, BUILDS[build]).values()]

    wanted = bits(OF_USERS)
    assert any(any(out) for out in wanted)
    assert [bits(level) for level in OF_TESTS] == [wanted] * len(OF_TESTS)
