"""Compiles programs and runs them: KernelCache, the backends, the toolchains, the profiler."""

from aerie.runtime.artifacts import Artifact
from aerie.runtime.backend import Backend, select_backend
from aerie.runtime.buffers import NOTHING_SHARED, Sharing, Static
from aerie.runtime.cache import KernelCache
from aerie.runtime.calls import HostWork, Recording
from aerie.runtime.errors import (
    AerieRuntimeError,
    ArrayError,
    BackendError,
    CompileError,
    DiskFullError,
    RunError,
)
from aerie.runtime.parallel_compile import CompileStage, Progress
from aerie.runtime.profiler import Profiler
from aerie.virtual_npu.cancellation import RunStopped, StopFlag, stop_this_thread, watched_flag
from aerie.virtual_npu.pyxrt.batch import HostCode

__all__ = [
    "NOTHING_SHARED",
    "AerieRuntimeError",
    "ArrayError",
    "Artifact",
    "Backend",
    "BackendError",
    "CompileError",
    "CompileStage",
    "DiskFullError",
    "HostCode",
    "HostWork",
    "KernelCache",
    "Profiler",
    "Progress",
    "Recording",
    "RunError",
    "RunStopped",
    "Sharing",
    "Static",
    "StopFlag",
    "select_backend",
    "stop_this_thread",
    "watched_flag",
]
