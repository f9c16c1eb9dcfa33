"""Runs AIR-dialect programs on the CPU: MLIR text to C++ to a shared object, at native speed."""

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
from virtual_npu.toolchain import build, emit

__all__ = [
    "ArgumentError",
    "ArgumentType",
    "BuildOptions",
    "Entry",
    "KernelSourceError",
    "Library",
    "OptionError",
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
