"""Compiles programs for NPU2: external kernels with Peano, the program with aircc.

The command lines follow mlir-air's own (python/air/backend/xrt.py, tools/aircc/aircc.cpp and
programming_examples/llms/shared/infra/external_kernels.py). They have never been run against the real tools
or a board from here: the tests stand in for the tools, and show that lines, files and failures are handled.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.artifacts import BUILD_LOG
from runtime.errors import CompileError
from runtime.npu.tools import NpuTools, find_tools
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


class NpuToolchain:
    """aircc and Peano. Never run on hardware; see the module's first lines."""

    def __init__(self, tools: NpuTools | None = None) -> None:
        self._tools = tools or find_tools()

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

    def _environment(self) -> dict[str, str]:
        path = self._tools.search_path(os.environ.get("PATH", ""))
        return {**os.environ, "PATH": path, "PEANO_INSTALL_DIR": str(self._tools.peano)}

    def _run(self, program: Program, command: Sequence[str], work: Path) -> None:
        tool = Path(command[0]).name
        log = work / BUILD_LOG
        with log.open("a") as output:
            output.write(f"$ {' '.join(command)}\n")
            output.flush()
            try:
                code = subprocess.run(
                    command, cwd=work, stdout=output, stderr=output, check=False, env=self._environment()
                ).returncode
            except OSError as error:
                raise CompileError(program.name, f"{tool} could not be started: {error}") from error
        if code != 0:
            raise CompileError(program.name, f"{tool} failed with exit code {code}:\n{_last_lines(log)}")


def _last_lines(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
