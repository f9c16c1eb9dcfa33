"""Compiles programs for NPU2: external kernels with Peano, the program with aircc.

The command lines follow mlir-air's own (python/air/backend/xrt.py, tools/aircc/aircc.cpp and
programming_examples/llms/shared/infra/). They have never been run against the real tools or a board from
here: the tests stand in for the tools, and show that lines, files, environment and failures are handled.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runtime import knobs
from runtime.artifacts import BUILD_LOG
from runtime.errors import CompileError
from runtime.npu import air_ir, elf, readings
from runtime.npu.peano import Peano
from runtime.npu.preflight import preflight
from runtime.npu.tools import NpuTools, find_tools
from runtime.processes import Children, TimeLimitError
from runtime.toolchain import program_ingredients
from virtual_npu.fingerprint import file_digest, text_digest
from virtual_npu.store import Store

if TYPE_CHECKING:
    from multi_launch_builder.program import Program

DEVICE = "npu2"

PROJECT = "air_project"
"""aircc's --tmpdir, in the folder of one compilation: it begins empty each time. What an earlier one left
there corrupts later kernels (mlir-air programming_examples/llms/shared/infra/cache.py)."""

GIB = 1 << 30
BASE_GIB, CORE_GIB, MOST_CORES = 2.0, 0.5, 32
"""An estimate, never measured: aircc and aiecc hold the module while aiecc (`-j 0`) runs one Peano process
per CPU, of which a program has work for as many as the array has cores."""


class NpuToolchain:
    """aircc and Peano. Never run on hardware; see the module's first lines."""

    def __init__(self, tools: NpuTools | None = None) -> None:
        self._tools = tools or find_tools()
        self._peano = Peano(self._tools)
        self._children = Children()

    @property
    def memory_bytes(self) -> int:
        """What one program may take while it compiles: an estimate, see BASE_GIB."""
        return int((BASE_GIB + CORE_GIB * min(os.cpu_count() or 1, MOST_CORES)) * GIB)

    def ingredients(self, program: Program) -> Mapping[str, str]:
        drivers = (self._tools.aircc, self._tools.aiecc, self._tools.aiebu_asm)
        return {
            **program_ingredients(program),
            **self._peano.ingredients(),
            **{tool.name: _tool_digest(tool) for tool in drivers},
            "aircc flags": text_digest("\n".join(program.flags)),
        }

    def compile(self, program: Program, work: Path, shared: Store) -> Path:
        """Check, then kernels and text into `work`, then aircc, which writes into its current folder."""
        text = work / f"{program.name}.mlir"
        text.write_text(program.text)
        self._check(program, text)
        self._link(program, work, shared)
        self._run(program, work, self.aircc_command(program))
        return _product(program, work)

    def stop(self) -> None:
        """Kill the tools that run for any thread, and all that they started."""
        self._children.stop()

    def aircc_command(self, program: Program) -> list[str]:
        """aircc's command line, in the folder with the program's text and objects."""
        fixed = ["--device", DEVICE, "--output-format", "elf", "--elf-name", f"{program.name}.elf"]
        peano = ["--peano", str(self._tools.peano), "--no-xchesscc", "--no-xbridge"]
        text = f"{program.name}.mlir"
        return [str(self._tools.aircc), text, *fixed, "--tmpdir", PROJECT, *peano, *program.flags]

    def environment(self, work: Path) -> dict[str, str]:
        """The caller's, with the tools' folders first on PATH, and temporary files below `work`."""
        path = self._tools.search_path(os.environ.get("PATH", ""))
        own = {"PATH": path, "PEANO_INSTALL_DIR": str(self._tools.peano), "TMPDIR": str(work / "tmp")}
        return {**os.environ, **own}

    def _check(self, program: Program, text: Path) -> None:
        lines = [air_ir.bindings_status(), *preflight(program)]
        text.with_name(BUILD_LOG).write_text("".join(f"{line}\n" for line in lines))
        objection = air_ir.objection(text) if air_ir.installed() else ""
        if objection:
            raise CompileError(program.name, f"mlir-air's own bindings refuse its text:\n{objection}")

    def _link(self, program: Program, work: Path, shared: Store) -> None:
        """Objects into the current folder and aircc's: aiecc looks in both (mlir-aie tools/aiecc/Utils.h)."""
        for folder in (work / "tmp", work / PROJECT):
            folder.mkdir()
        for external in program.objects:
            compile_object = functools.partial(self._compile_object, program, work)
            made = self._peano.build(external, shared, compile_object)
            for folder in (work, work / PROJECT):
                (folder / external.name).write_bytes(made)

    def _compile_object(self, program: Program, work: Path, command: Sequence[str]) -> None:
        begin = _size(work / BUILD_LOG)
        self._run(program, work, command)
        if not _size(Path(command[-1])):  # it would be kept for all programs
            tool, said = Path(command[0]).name, _since(work / BUILD_LOG, begin)
            raise CompileError(program.name, readings.nothing_made(tool, "an object", said))

    def _run(self, program: Program, work: Path, command: Sequence[str]) -> None:
        tool, log = Path(command[0]).name, work / BUILD_LOG
        begin = _size(log)
        seconds = int(knobs.COMPILE_TIMEOUT.get())
        try:
            code = self._children.run(command, work, log, self.environment(work), seconds)
        except OSError as error:
            raise CompileError(program.name, f"{tool} could not be started: {error}") from error
        except TimeLimitError as error:
            raise CompileError(program.name, readings.late(tool, seconds, _since(log, begin))) from error
        if cause := readings.failure(tool, code, _since(log, begin)):
            raise CompileError(program.name, cause)


def _product(program: Program, work: Path) -> Path:
    """The ELF that aircc wrote. Raises CompileError where there is none that XRT would open."""
    made = work / f"{program.name}.elf"
    if not made.is_file():
        said = _since(work / BUILD_LOG, 0)
        raise CompileError(program.name, readings.nothing_made("aircc", made.name, said))
    if objection := elf.objection(made):
        raise CompileError(
            program.name,
            f"aircc ended without an error, and {made.name} is no program of an NPU2: {objection}; it is not "
            "kept. Is XRT's aiebu-asm as new as mlir-aie?",
        )
    return made


def _size(path: Path) -> int:
    """Bytes of a file; 0 for one that is not there."""
    return path.stat().st_size if path.exists() else 0


def _since(log: Path, begin: int) -> str:
    """What was appended to the log since it had `begin` bytes."""
    return log.read_bytes()[begin:].decode(errors="replace")


def _tool_digest(tool: Path) -> str:
    known = tool.stat()
    return _digest(tool, known.st_size, known.st_mtime_ns)


@functools.cache
def _digest(tool: Path, size: int, changed: int) -> str:
    """Hashed again only when the file's size or time did change: the drivers are large."""
    del size, changed
    return file_digest(tool)
