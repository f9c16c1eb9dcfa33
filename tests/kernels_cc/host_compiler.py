"""The compiler of the tests: C++ sources against the AIE API for the CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels_cc"
INCLUDES = (f"-I{KERNELS / 'host'}", f"-I{ROOT / 'virtual_npu' / 'include'}")


def compiler() -> str:
    """The first C++ compiler there is, as `VNPU_CXX` or `CXX` name it or by its usual names."""
    names = [os.environ.get("VNPU_CXX"), os.environ.get("CXX"), "c++", "g++", "clang++"]
    return next(name for name in names if name and shutil.which(name))


def run_compiler(source: Path, output: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Compile `source` against the host AIE API; whether it worked is for the caller to look at."""
    command = [compiler(), "-std=c++20", "-O2", "-march=native", "-Wall", "-Wextra", *INCLUDES]
    return subprocess.run(
        [*command, "-o", str(output), *flags, str(source)], capture_output=True, text=True, check=False
    )
