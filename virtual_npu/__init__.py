"""Runs AIR-dialect programs on the CPU: MLIR text to C++ to a shared object, at native speed."""

from typing import TYPE_CHECKING

from air_dialect.common import on_first_use
from virtual_npu.errors import (
    ArgumentError,
    KernelSourceError,
    OptionError,
    ToolchainError,
    UnsupportedOpError,
    VirtualNpuDeadlock,
    VirtualNpuError,
    VirtualNpuRuntimeError,
)
from virtual_npu.library import ArgumentType, Entry, Library, RunResult
from virtual_npu.options import BuildOptions, RunOptions

if TYPE_CHECKING:
    from virtual_npu.program import Program, Result
    from virtual_npu.toolchain import build, emit
else:
    __getattr__ = on_first_use(
        __name__,
        {
            "Program": "virtual_npu.program",
            "Result": "virtual_npu.program",
            "build": "virtual_npu.toolchain",
            "emit": "virtual_npu.toolchain",
        },
    )

__all__ = [
    "ArgumentError",
    "ArgumentType",
    "BuildOptions",
    "Entry",
    "KernelSourceError",
    "Library",
    "OptionError",
    "Program",
    "Result",
    "RunOptions",
    "RunResult",
    "ToolchainError",
    "UnsupportedOpError",
    "VirtualNpuDeadlock",
    "VirtualNpuError",
    "VirtualNpuRuntimeError",
    "build",
    "emit",
]
