"""The compiler of the tests: C++ sources against the AIE API for the CPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

from aerie.common import cpu
from aerie.common.compiler import find_compiler
from aerie.device.external_kernels import OWN_KERNELS
from aerie.virtual_npu.objects import INCLUDE

KERNELS = OWN_KERNELS
INCLUDES = (f"-I{KERNELS / 'host'}", f"-I{INCLUDE}")


def run_compiler(source: Path, output: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Compile `source` against the host AIE API; whether it worked is for the caller to look at."""
    compiler = find_compiler()
    language = (
        "-std=c++20",
        "-O2",
        "-Wall",
        "-Wextra",
        *compiler.supported_flags(cpu.cpu_flags()),
        *INCLUDES,
    )
    return subprocess.run(
        [*compiler.command, *language, "-o", str(output), *flags, str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
