"""What the tests of the virtual NPU share: building a program and running it on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import cache
from tests.virtual_npu.air_texts import with_constants

Run = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def program() -> Callable[..., virtual_npu.Library]:
    """build(text) -> Library.

    In the text %c0, %c1, ... are indices (air_texts.py).

    It comes from the tests' cache of built programs where an earlier run built the same.
    """

    def build(
        text: str,
        kernel_dirs: tuple[Path, ...] = (),
        options: virtual_npu.BuildOptions | None = None,
    ) -> virtual_npu.Library:
        chosen = options or virtual_npu.BuildOptions.from_knobs()
        return cache.load(cache.ProgramSource(with_constants(text), "<string>", kernel_dirs, chosen))

    return build


@pytest.fixture(scope="session")
def run() -> Run:
    """run(library, entry, *arrays) -> the arrays after the run; those given stay as they are."""

    def call(library: virtual_npu.Library, entry: str, *given: Any) -> list[Any]:
        arrays = [np.array(array, order="C") for array in given]
        types = library.entries[entry].arguments
        assert [a.shape for a in arrays] == [t.shape for t in types]
        library.run(entry, [array.ctypes.data for array in arrays])
        return arrays

    return call
