"""Compiles programs and runs them: KernelCache, the backends, the toolchains, the profiler."""

from runtime.artifacts import Artifact
from runtime.backend import Backend, select_backend
from runtime.buffers import NOTHING_SHARED, Sharing, Static
from runtime.cache import KernelCache
from runtime.calls import HostWork, Recording
from runtime.compiling import Progress, Stage
from runtime.errors import (
    AerieRuntimeError,
    ArrayError,
    BackendError,
    CompileError,
    DiskFullError,
    RunError,
)
from runtime.profiler import Profiler
from virtual_npu.pyxrt.batch import HostCode

__all__ = [
    "NOTHING_SHARED",
    "AerieRuntimeError",
    "ArrayError",
    "Artifact",
    "Backend",
    "BackendError",
    "CompileError",
    "DiskFullError",
    "HostCode",
    "HostWork",
    "KernelCache",
    "Profiler",
    "Progress",
    "Recording",
    "RunError",
    "Sharing",
    "Stage",
    "Static",
    "select_backend",
]
