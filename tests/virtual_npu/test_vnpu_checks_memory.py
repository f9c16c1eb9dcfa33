"""Memory checks: each fault of memory_programs.py has its whole message; programs that only look faulty have
none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aerie import virtual_npu
from tests.virtual_npu.memory_programs import CLEAN, FAULTS, MODULE, lines_of

CHECKS = virtual_npu.BuildOptions(checks=True)


@pytest.fixture(scope="module")
def checked(program: Callable[..., virtual_npu.Library]) -> virtual_npu.Library:
    return program(MODULE, options=CHECKS)


def call(library: virtual_npu.Library, name: str, size: int = 1) -> tuple[np.ndarray, virtual_npu.RunResult]:
    """Run an entry with n = 5 and an array of `size` zeros."""
    n, out = np.array(5, np.int64), np.zeros(size, np.float32)
    return out, library.run(name, [n.ctypes.data, out.ctypes.data])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported_with_its_line_and_numbers(name, checked):
    fault = FAULTS[name]
    with pytest.raises(virtual_npu.VirtualNpuRuntimeError) as caught:
        call(checked, name, size=8)
    assert str(caught.value) == f"{name}: {fault.message.format(**lines_of(name))}"
    assert caught.value.kind == fault.kind


@pytest.mark.parametrize("name", CLEAN)
def test_program_without_a_fault_is_left_alone(name, checked):
    out, result = call(checked, name)
    assert out[0] == 3
    assert result.notes == ()
