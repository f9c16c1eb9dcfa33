"""The versions that a machine with an NPU needs, each with the upstream file that says so.

Read in upstream's files at mlir-air e972f29 (2026-08-22), XRT 963c58e (2026-08-20), amd/xdna-driver 856409c
(2026-08-21) and mlir-aie's guides of the same summer. None of it was run on an NPU.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RequiredVersion:
    """A part of the toolchain: its version (words if it is not one number) and the upstream file."""

    name: str
    version: str
    source: str


@dataclass(frozen=True)
class BadRelease:
    """A release that must not be used, and what it breaks."""

    version: str
    reason: str


PYTHON = RequiredVersion(
    "Python",
    "3.11 to 3.14",
    "mlir-air .github/workflows/buildAIRWheels.yml, utils/mlir_air_wheels/setup.py",
)
"""For upstream's wheels. docs/buildingRyzenLin.md says 3.10, for which no wheel is built."""
OLDEST_WHEEL_PYTHON, NEWEST_WHEEL_PYTHON = (3, 11), (3, 14)
MIN_PYTHON = (3, 11)
"""For everything that needs no NPU: requires-python of pyproject.toml."""

GLIBC = RequiredVersion(
    "glibc", "2.35", "mlir-air .github/workflows/buildAIRWheels.yml: manylinux_2_35_x86_64"
)
GCC = RequiredVersion("g++", "11", "mlir-air docs/buildingRyzenLin.md")

MLIR_AIR = RequiredVersion("mlir_air", "e972f29", "mlir-air, the commit whose sources were read")
"""A wheel's version ends in its commit: 0.0.1.YYYYMMDDHH+COMMIT. At most one is built per day, at a varying
hour, so a version cannot be named before it exists.
"""
MLIR_AIE = RequiredVersion("mlir_aie", "1.4.2.dev16+g7e00b57", "mlir-air utils/clone-mlir-aie.sh")
"""What mlir-air e972f29 was tested with. Each wheel of mlir-air names its own in its extra [aie]."""
PEANO = RequiredVersion(
    "llvm-aie", "21.0.0.2026080601+f4a72c27", "mlir-air .github/workflows/buildAndTestRyzenAI.yml"
)
PEANO_KNOWN_BAD = (
    BadRelease(
        "22.0.0.2026081201+046b11f9",
        "it miscompiles for NPU2: NaN from a multi-launch attention, a matrix product and every Qwen model "
        "(mlir-air .github/workflows/buildAndTestRyzenAI.yml); upstream later found that its larger frames "
        "outgrow a stack of 1024 bytes (pull request 1980). Our programs ask for 2048, untried with it",
    ),
)

AIR_PAGE = "https://github.com/Xilinx/mlir-air/releases/expanded_assets/latest-air-wheels"
AIE_PAGE = "https://github.com/Xilinx/mlir-aie/releases/expanded_assets/latest-wheels-4"
PEANO_PAGE = "https://github.com/Xilinx/llvm-aie/releases/expanded_assets/nightly"
WHEEL_PAGES = (AIR_PAGE, AIE_PAGE, PEANO_PAGE)
"""mlir-air docs/buildingRyzenLin.md."""
WHEELS = (MLIR_AIR.name, MLIR_AIE.name, PEANO.name)

XRT = RequiredVersion("XRT", "2.23", "XRT src/CMake/settings.cmake at 2a6ffe7 (#9560, 2026-01-23)")
"""Master's number when hw_context(device, elf) was merged. An earlier 2.23 lacks it: only BINDINGS decide."""


@dataclass(frozen=True)
class Binding:
    """A call of the ELF flow: an attribute of pyxrt. signature: a type that a constructor must take."""

    attribute: str
    signature: str
    since: str


BINDINGS = (
    Binding("device", "", "every pyxrt"),
    Binding("elf", "", "XRT #8858, 2025-04-04"),
    Binding("hw_context", "elf", "XRT #9560, 2026-01-23"),
    Binding("ext.bo", "", "XRT #9040, 2025-06-30"),
    Binding("ext.kernel", "", "XRT #9040, 2025-06-30"),
    Binding("run", "", "every pyxrt"),
    Binding("run.wait", "", "every pyxrt"),
)
"""XRT src/python/pybind11/src/pyxrt.cpp."""

KERNEL = RequiredVersion(
    "Linux", "6.10", "amd/xdna-driver README.md; mlir-aie utils/build_drivers.sh asks for 6.11"
)
KERNEL_WITH_DRIVER = RequiredVersion("Linux with amdxdna in its tree", "6.14", "amd/xdna-driver README.md")
UBUNTU = RequiredVersion(
    "Ubuntu", "24.04", "amd/xdna-driver README.md and tools/info.json; mlir-aie docs/getting-started.md"
)
DRIVER = RequiredVersion("amdxdna", "any", "amd/xdna-driver: the module has had the one version 0.1 so far")
DRIVER_COMMIT = RequiredVersion(
    "amd/xdna-driver",
    "856409cafc23cee55976ebcaa0a073ab4ec6dfe2",
    "its submodule xrt is XRT 49612fa (2026-08-19), a descendant of 2a6ffe7, with all BINDINGS",
)
"""mlir-aie's utils/build_drivers.sh, as read, builds e9d2788 of July 2025 and XRT 2.20, too old for the ELF
flow.
"""
FIRMWARE = RequiredVersion("NPU firmware", "1.1.2.64", "amd/xdna-driver tools/WHENCE, amdnpu/17f0_10")
"""The firmware that the driver's plugin has for NPU2. Upstream states no minimum: the driver refuses what
does not fit.
"""

MEMLOCK_BYTES = 64 << 20
"""What the driver maps as locked memory (mlir-air .github/workflows/nightlyPerfBenchmark.yml). Buffers count
too, so upstream recommends no limit (amd/xdna-driver README.md).
"""


MAX_DIGITS = 18
"""Digits. Tools may print anything, and Python refuses to read thousands of digits."""


def version_numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "6.14.0-27-generic" gives (6, 14, 0); none gives ()."""
    parts = []
    for part in text.strip().split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits[:MAX_DIGITS]))
        if digits != part:
            break
    return tuple(parts)


def requirements() -> tuple[str, ...]:
    """The requirements for pip: mlir-air with the mlir-aie that it names, and Peano at its pin."""
    return (f"{MLIR_AIR.name}[aie]", f"{PEANO.name}=={PEANO.version}")


def pip_arguments() -> list[str]:
    """pip's arguments after `pip install`: requirements, and upstream's pages."""
    pages = [argument for page in WHEEL_PAGES for argument in ("--find-links", page)]
    return [*requirements(), *pages]
