"""What the tests of the virtual NPU share: building a program and running it on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import virtual_npu

Run = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., virtual_npu.Library]:
    """build(text) -> Library, at a low optimisation level: it compiles in half the time."""
    folder = tmp_path_factory.mktemp("programs")
    count = 0

    def build(
        text: str,
        kernel_dirs: tuple[Path, ...] = (),
        options: virtual_npu.BuildOptions | None = None,
    ) -> virtual_npu.Library:
        nonlocal count
        count += 1
        path = folder / f"program{count}.so"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VNPU_OPT", "1")
            virtual_npu.build(text, path, kernel_dirs=kernel_dirs, options=options)
        return virtual_npu.Library(path)

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
