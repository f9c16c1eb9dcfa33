"""The compiler of the tests: C++ sources against the AIE API for the CPU."""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path

from aerie.common import cpu
from aerie.common.compiler import find_compiler
from aerie.device.external_kernels import OWN_KERNELS
from aerie.virtual_npu.objects import INCLUDE

KERNELS = OWN_KERNELS
INCLUDES = (f"-I{KERNELS / 'host'}", f"-I{INCLUDE}")


def command(*flags: str) -> list[str]:
    """The compiler and all that it is given but the files."""
    compiler = find_compiler()
    language = ("-std=c++20", "-O2", "-Wall", "-Wextra", *compiler.supported_flags(cpu.cpu_flags()))
    return [*compiler.command, *language, *INCLUDES, *flags]


def run_compiler(source: Path, output: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Compile `source` against the host AIE API; whether it worked is for the caller to look at."""
    return subprocess.run(
        [*command(*flags), "-o", str(output), str(source)], capture_output=True, text=True, check=False
    )


def fingerprint(source: Path, *flags: str) -> str:
    """What tells an output from others: the compiler, its flags, the source and every header that it may
    include."""
    digest = hashlib.sha256("\0".join((find_compiler().version, *command(*flags))).encode())
    for path in (source, *_headers()):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()[:32]


@cache
def _headers() -> list[Path]:
    folders = (KERNELS, INCLUDE)
    return sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
