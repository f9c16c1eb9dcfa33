"""What the compiler optimises changes no bit: tests build at the lowest level what users have at the
highest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie import rooms
from aerie.common.compiler import find_compiler
from aerie.kernel_builder.kernels import all_kernels
from aerie.kernel_builder.testing import random_arrays, run
from aerie.virtual_npu.objects import INCLUDE, TranslationUnit
from aerie.virtual_npu.options import BuildOptions

OF_USERS, OF_TESTS = "3", "0"
"""Levels of VNPU_OPT. At that of tests our own C++ is compiled at -O1."""
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
    assert bits(OF_TESTS) == wanted


@pytest.mark.parametrize(
    ("given", "ours", "others"), [("0", "-O1", "-O0"), ("s", "-Os", "-Os"), ("3", "-O3", "-O3")]
)
def test_our_own_files_are_optimised_a_little_where_programs_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, ours: str, others: str
) -> None:
    """So a kernel of the user's can be stepped through, and what all programs share is not slow."""
    monkeypatch.setenv("VNPU_OPT", given)
    compiler = find_compiler()
    own = [
        INCLUDE / "vnpu/runtime.cc",
        rooms.folder("kernels_cc") / "mv.cc",
        rooms.folder("engine") / "native/x.cc",
    ]
    units = {TranslationUnit(path): ours for path in own}
    units |= {TranslationUnit(tmp_path / "k.cc"): others, TranslationUnit(Path("main.cc"), "int x;"): others}
    for unit, level in units.items():
        flags = unit.compiler_for(compiler).flags
        assert [flag for flag in flags if flag.startswith("-O")] == [level], unit.source
