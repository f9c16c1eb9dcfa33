"""Runs AIR-dialect programs on the CPU: MLIR text to C++ to a shared object, at native speed."""

from virtual_npu.errors import (
    ArgumentError,
    KernelSourceError,
    ToolchainError,
    UnsupportedOpError,
    VirtualNpuDeadlock,
    VirtualNpuError,
    VirtualNpuRuntimeError,
)
from virtual_npu.library import ArgumentType, Entry, Library
from virtual_npu.toolchain import build, emit

__all__ = [
    "ArgumentError",
    "ArgumentType",
    "Entry",
    "KernelSourceError",
    "Library",
    "ToolchainError",
    "UnsupportedOpError",
    "VirtualNpuDeadlock",
    "VirtualNpuError",
    "VirtualNpuRuntimeError",
    "build",
    "emit",
]
