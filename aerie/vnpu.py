"""Run an AIR program from Python in one call: the virtual NPU's own API in short.

    from aerie import vnpu

    result = vnpu.run(text, x, y)
    result.outputs[1]

With checks, unless `options` says otherwise. A check that fails raises a VirtualNpuRuntimeError, whose
`report` has the kind, the line, the operation, the tile, and the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aerie.virtual_npu import (
    BuildOptions,
    ErrorReport,
    ExpectationError,
    Result,
    StopNotReachedError,
    StopPoint,
    VirtualNpuDeadlock,
    VirtualNpuRuntimeError,
)
from aerie.virtual_npu.program import Program
from aerie.virtual_npu.stops import Stop, StoppedBuffer

__all__ = [
    "BuildOptions",
    "ErrorReport",
    "ExpectationError",
    "Program",
    "Result",
    "Stop",
    "StopNotReachedError",
    "StopPoint",
    "StoppedBuffer",
    "VirtualNpuDeadlock",
    "VirtualNpuRuntimeError",
    "program",
    "run",
]


def program(
    module: object, kernel_dirs: Iterable[Path | str] = (), options: BuildOptions | None = None
) -> Program:
    """A program from MLIR text, a file of it (a `Path`), or a module object, whose str() is its text.

    Module objects of MLIR's Python bindings are taken as they are. Raises ProgramError for a file that cannot
    be read; text is parsed when the program first runs.
    """
    if isinstance(module, Program):
        return module
    if isinstance(module, Path):
        return Program.from_file(module, kernel_dirs, options)
    return Program.from_text(str(module), kernel_dirs=kernel_dirs, options=options)


def run(
    module: object,
    *arrays: Any,
    kernel_dirs: Iterable[Path | str] = (),
    options: BuildOptions | None = None,
    **how: Any,
) -> Result:
    """Run a program on arrays, one per argument, which stay as they are.

    module, kernel_dirs, options: as `program` takes them. how: as `Program.run` takes it: entry, perturb,
    garbage, seed, expect, tolerance, stop_at, show, and so on. Raises what `Program.run` raises.
    """
    return program(module, kernel_dirs, options).run(*arrays, **how)
