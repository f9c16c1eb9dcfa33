"""Runs AIR-dialect programs on the CPU: MLIR text to C++ to a shared object, at native speed."""

from typing import TYPE_CHECKING

from aerie.common.errors import ProgramError, ToolchainError
from aerie.common.lazy import on_first_use
from aerie.device.errors import KernelSourceError
from aerie.virtual_npu.errors import (
    ErrorReport,
    ExpectationError,
    OptionError,
    StopNotReachedError,
    UnsupportedOpError,
    VirtualNpuDeadlock,
    VirtualNpuRuntimeError,
    VnpuArgumentError,
)
from aerie.virtual_npu.library import ArgumentType, EntryPoint, Library, RunResult
from aerie.virtual_npu.options import BuildOptions, RunOptions, StopPoint

if TYPE_CHECKING:
    from aerie.virtual_npu.program import Program, Result
    from aerie.virtual_npu.toolchain import build, emit
else:
    __getattr__ = on_first_use(
        __name__,
        {
            "Program": "aerie.virtual_npu.program",
            "Result": "aerie.virtual_npu.program",
            "build": "aerie.virtual_npu.toolchain",
            "emit": "aerie.virtual_npu.toolchain",
        },
    )

__all__ = [
    "ArgumentType",
    "BuildOptions",
    "EntryPoint",
    "ErrorReport",
    "ExpectationError",
    "KernelSourceError",
    "Library",
    "OptionError",
    "Program",
    "ProgramError",
    "Result",
    "RunOptions",
    "RunResult",
    "StopNotReachedError",
    "StopPoint",
    "ToolchainError",
    "UnsupportedOpError",
    "VirtualNpuDeadlock",
    "VirtualNpuRuntimeError",
    "VnpuArgumentError",
    "build",
    "emit",
]
