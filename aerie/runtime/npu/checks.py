"""Checks of a program before aircc starts, and of the ELF before it becomes an artifact.

1. The static check refuses what mlir-air accepts, and fails late or not at all.
2. mlir-air's own Python bindings, if installed, parse and verify the module. They run in a child process:
they
   load MLIR's libraries, which must not meet those of another package here, and a crash becomes a message.
   Without the bindings our own verifiers are the only check.
3. The ELF that aiecc has aiebu write starts like every ELF, with its platform where others have their
operating
   system: 69 for AIE2P (XRT src/runtime_src/core/include/xrt/experimental/xrt_elf.h, `platform`; aiebu
   src/cpp/elf/aie2/aie2_blob_elfwriter.h writes it). XRT opens nothing else. The content is not checked here:
   XRT does that.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.common.errors import ProgramError
from aerie.runtime.errors import CompileError
from aerie.runtime.npu import versions
from aerie.runtime.npu.tools import installed_version
from aerie.runtime.toolchain import KERNEL_SOURCES, first_lines

if TYPE_CHECKING:
    from aerie.device import CheckReport
    from aerie.multi_launch_builder.program import Program

MAGIC = b"\x7fELF"
PLATFORM_BYTE = 7
"""The index of e_ident[EI_OSABI]."""
AIE2P = 69
IDENT_BYTES = 16

SECONDS = 120
"""Time limit of the bindings: parsing a program takes a fraction of a second, importing them a few seconds.
"""

_VERIFY = """
import pathlib, sys
from air.ir import Context, Location, Module
with Context(), Location.unknown():
    module = Module.parse(pathlib.Path(sys.argv[1]).read_text())
    sys.exit(0 if module.operation.verify() else "air.ir: the module does not verify")
"""
"""`air.ir` registers the AIR dialect by itself (mlir-air python/air/_mlir_libs/_site_initialize_0.py)."""


def preflight(program: Program) -> list[str]:
    """Return the static check's warnings for a program with its own options. Raises CompileError with its
    errors.
    """
    try:
        report = _checked(program)
    except ProgramError as error:
        raise CompileError(program.name, f"its text cannot be checked: {error}") from error
    if report.ok:
        return [f"warning: {warning}" for warning in report.warnings]
    count = len(report.faults)
    warnings = first_lines("\n".join(map(str, report.faults)))
    raise CompileError(
        program.name,
        f"the check before aircc found {count} thing{'s' * (count != 1)} that {report.device.name} cannot do "
        f"(`aerie vnpu check` shows them with the limits):\n{warnings}",
    )


def _checked(program: Program) -> CheckReport:
    from aerie.device import NPU2, check  # xDSL comes with it

    stack = program.last_option("--stack-size")
    return check(
        program.text,
        NPU2,
        omit_ping_pong=program.last_option("--omit-ping-pong-transform") or "",
        stack_bytes=int(stack) if stack else None,
        kernel_dirs=(KERNEL_SOURCES,),
        bf16_emulation=program.last_option("--bf16-emulation") is not None,
        omit_auto_broadcast=program.last_option("--omit-auto-broadcast") is not None,
        loop_tiling=[int(size) for size in program.all_options("--air-runtime-loop-tiling-sizes")],
        filename=f"{program.name}.mlir",
    )


def bindings_installed() -> bool:
    """Whether this Python can import the bindings. They are not imported."""
    try:
        return importlib.util.find_spec("air.ir") is not None
    except (ImportError, ValueError):
        return False


def bindings_status() -> str:
    """One line: the bindings and their version, or what replaces them."""
    if not bindings_installed():
        return "air.ir is not installed: modules are verified by Aerie's own dialect alone"
    version = installed_version(versions.MLIR_AIR.name) or "not from a wheel"
    return f"air.ir ({version}) parses and verifies every module before aircc sees it"


def bindings_error_text(text: Path) -> str:
    """The error of `air.ir` about the module in this file; "" if it verifies."""
    command = [sys.executable, "-c", _VERIFY, str(text)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"air.ir did not end within {SECONDS} s"
    if done.returncode == 0:
        return ""
    error_text = (done.stderr or done.stdout).strip()
    return error_text or f"the process that loads air.ir ended with exit code {done.returncode} and no word"


def elf_error_text(path: Path) -> str:
    """Why XRT would not open this file as a program of an NPU2; "" if no reason is known."""
    with path.open("rb") as file:
        ident = file.read(IDENT_BYTES)
    if not ident:
        return "it is empty"
    if not ident.startswith(MAGIC):
        return f"it is no ELF: it begins with {ident[:4].hex(' ')}"
    if len(ident) < IDENT_BYTES:
        return f"it ends after {len(ident)} bytes"
    if ident[PLATFORM_BYTE] != AIE2P:
        return f"its platform (e_ident[EI_OSABI]) is {ident[PLATFORM_BYTE]}, and AIE2P's is {AIE2P}"
    return ""
