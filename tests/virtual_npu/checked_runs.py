"""Runs of programs built with checks, which have one entry."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import virtual_npu

CHECKS = virtual_npu.BuildOptions(checks=True)


def ran(library: virtual_npu.Library, *arrays: np.ndarray) -> virtual_npu.RunResult:
    (entry,) = library.entries
    return library.run(entry, [array.ctypes.data for array in arrays])


def failed(library: virtual_npu.Library, *arrays: np.ndarray) -> virtual_npu.VirtualNpuRuntimeError:
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError) as caught:
        ran(library, *arrays)
    return caught.value
