"""Compiles programs for NPU2: external kernels with Peano, the program with aircc.

The command lines follow mlir-air's own (python/air/backend/xrt.py, tools/aircc/aircc.cpp and
programming_examples/llms/shared/infra/external_kernels.py). They have never been run against the real tools
or a board from here: the tests stand in for the tools, and show that lines, files and failures are handled.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.artifacts import BUILD_LOG
from runtime.errors import BackendError, CompileError
from runtime.toolchain import SHOWN_LINES, program_ingredients, source_of
from virtual_npu.fingerprint import file_digest, text_digest, tool_version

if TYPE_CHECKING:
    from multi_launch_builder.program import ExternalObject, Program

DEVICE = "npu2"

PEANO_FLAGS = (
    "-O2",
    "-std=c++20",
    "--target=aie2p-none-unknown-elf",
    "-DNDEBUG",
    "-D__AIE_API_AIE_ADF_HPP__",  # keeps aie.hpp from including Vitis' adf.h
    "-Wno-parentheses",
    "-Wno-attributes",
    "-Wno-macro-redefined",
    "-Wno-empty-body",
)

TOOLS = {
    "aircc": "it comes with mlir-air",
    "aiecc": "it comes with mlir-aie, and aircc looks it up on PATH",
    "aiebu-asm": "it comes with XRT and writes the ELF",
}


@dataclass(frozen=True)
class NpuTools:
    """Where the toolchain is: `aircc`, Peano's root, and the include folder with `aie_api/aie.hpp`."""

    aircc: Path
    peano: Path
    include: Path

    @property
    def clang(self) -> Path:
        return self.peano / "bin" / "clang++"


def missing_npu_tools() -> list[str]:
    """What the NPU toolchain lacks on this machine, one line each."""
    missing = [
        f"{tool} is not on PATH ({origin})" for tool, origin in TOOLS.items() if not shutil.which(tool)
    ]
    if peano_root() is None:
        missing.append(
            "Peano is missing: set PEANO_INSTALL_DIR to the folder with bin/clang++, or install llvm-aie"
        )
    if _include_folder() is None:
        missing.append(
            "aie_api/aie.hpp is missing: put mlir-aie's aie-opt on PATH or set MLIR_AIE_INSTALL_DIR"
        )
    return missing


def peano_root() -> Path | None:
    """The folder with Peano's bin/clang++: PEANO_INSTALL_DIR or the llvm-aie wheel's; None without either."""
    candidates = [os.environ.get("PEANO_INSTALL_DIR", "")]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        candidates.append(str(importlib.metadata.distribution("llvm-aie").locate_file("llvm-aie")))
    roots = (Path(candidate) for candidate in candidates if candidate)
    return next((root for root in roots if (root / "bin" / "clang++").is_file()), None)


def find_npu_tools() -> NpuTools:
    """The tools of this machine; BackendError naming all that is missing."""
    aircc, peano, include = shutil.which("aircc"), peano_root(), _include_folder()
    missing = missing_npu_tools()
    if missing or aircc is None or peano is None or include is None:
        raise BackendError(f"cannot compile for the NPU: {'; '.join(missing)}")
    return NpuTools(Path(aircc), peano, include)


class NpuToolchain:
    """aircc and Peano. Never run on hardware; see the module's first lines."""

    def __init__(self, tools: NpuTools | None = None) -> None:
        self._tools = tools or find_npu_tools()

    def ingredients(self, program: Program) -> Mapping[str, str]:
        return {
            **program_ingredients(program),
            "aircc flags": text_digest("\n".join(program.flags)),
            "aircc": file_digest(self._tools.aircc),
            "Peano": tool_version(str(self._tools.clang)),
            "Peano flags": text_digest("\n".join(PEANO_FLAGS)),
        }

    def compile(self, program: Program, work: Path) -> Path:
        """Kernels and text into `work`, then aircc there: its current folder is where it looks and writes."""
        for external in program.objects:
            self._run(program, self.kernel_command(external), work)
        text, elf = work / f"{program.name}.mlir", work / f"{program.name}.elf"
        text.write_text(program.text)
        self._run(program, self.aircc_command(program), work)
        if not elf.is_file():
            lines = _last_lines(work / BUILD_LOG)
            raise CompileError(program.name, f"aircc ended without an error and without {elf.name}:\n{lines}")
        return elf

    def kernel_command(self, external: ExternalObject) -> list[str]:
        """Peano's command line for one object file, in the folder where the object is wanted."""
        defines = [f"-D{define}" for define in external.defines]
        source = str(source_of(external))
        include = f"-I{self._tools.include}"
        return [str(self._tools.clang), *PEANO_FLAGS, include, *defines, "-c", source, "-o", external.name]

    def aircc_command(self, program: Program) -> list[str]:
        """aircc's command line, in the folder with the program's text and objects."""
        fixed = ["--device", DEVICE, "--output-format", "elf", "--elf-name", f"{program.name}.elf"]
        peano = ["--peano", str(self._tools.peano), "--no-xchesscc", "--no-xbridge"]
        text = f"{program.name}.mlir"
        return [str(self._tools.aircc), text, *fixed, "--tmpdir", "air_project", *peano, *program.flags]

    def _run(self, program: Program, command: Sequence[str], work: Path) -> None:
        tool = Path(command[0]).name
        log = work / BUILD_LOG
        with log.open("a") as output:
            output.write(f"$ {' '.join(command)}\n")
            output.flush()
            try:
                code = subprocess.run(command, cwd=work, stdout=output, stderr=output, check=False).returncode
            except OSError as error:
                raise CompileError(program.name, f"{tool} could not be started: {error}") from error
        if code != 0:
            raise CompileError(program.name, f"{tool} failed with exit code {code}:\n{_last_lines(log)}")


def _include_folder() -> Path | None:
    aie_opt, installed = shutil.which("aie-opt"), os.environ.get("MLIR_AIE_INSTALL_DIR")
    candidates = [Path(aie_opt).resolve().parent.parent / "include"] if aie_opt else []
    candidates += [Path(installed) / "include"] if installed else []
    return next((folder for folder in candidates if (folder / "aie_api" / "aie.hpp").is_file()), None)


def _last_lines(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
