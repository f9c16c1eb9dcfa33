"""Compiles programs for NPU2: external kernels with Peano, the program with aircc.

The command lines follow mlir-air's own (python/air/backend/xrt.py, tools/aircc/aircc.cpp and
programming_examples/llms/shared/infra/; for objects external_kernels.py there, `_PEANO_FLAGS`, and two flags
more, each with its reason). An object lies in the content store under the hash of all that made it, so it is
compiled once for all programs that link it, in whichever process. aircc has been run so up to where it starts
aiecc (stages.py); Peano, aiecc and a board never: the tests stand in for them, and show that lines, files,
environment and failures are handled.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.common.fingerprint import (
    file_digest,
    files_digest,
    hash_key,
    text_digest,
    tool_version,
    tree_digest,
    with_includes,
)
from aerie.common.processes import Children, TimeLimitError
from aerie.common.store import Store, read_content
from aerie.runtime import knobs
from aerie.runtime.artifacts import BUILD_LOG
from aerie.runtime.errors import CompileError
from aerie.runtime.npu import log_diagnosis
from aerie.runtime.npu.checks import (
    bindings_error_text,
    bindings_installed,
    bindings_status,
    elf_error_text,
    preflight,
)
from aerie.runtime.npu.tools import NpuTools, find_tools
from aerie.runtime.toolchain import KERNEL_SOURCES, external_source, program_ingredients

if TYPE_CHECKING:
    from aerie.multi_launch_builder.program import ExternalObject, Program

DEVICE = "npu2"

PROJECT = "air_project"
"""aircc's --tmpdir, in the folder of one compilation, and so empty each time. Files of an earlier compilation
corrupt later kernels (mlir-air programming_examples/llms/shared/infra/cache.py).
"""

GIB = 1 << 30
BASE_GIB, CORE_GIB, MAX_CORES = 2.0, 0.5, 32
"""An estimate, never measured: aircc and aiecc hold the module while aiecc (`-j 0`) runs one Peano process
per CPU. A program has work for as many of these as the array has cores.
"""


TARGET = "aie2p-none-unknown-elf"

FLAGS = (
    "-std=c++20",
    f"--target={TARGET}",
    "-DNDEBUG",
    "-D__AIE_API_AIE_ADF_HPP__",  # keeps aie.hpp from including Vitis' adf.h
    "-ffunction-sections",  # aiecc links with --gc-sections: functions that nothing calls leave the 16 KiB
    "-fstack-size-section",  # aiecc measures each core's stack from it, and counts 0 for an object without
    "-Wno-parentheses",
    "-Wno-attributes",
    "-Wno-macro-redefined",
    "-Wno-empty-body",
)
"""For every object. The two `-f` are those of mlir-aie's own cases (test/aiecc, stack_size_cross_object)."""

DEFAULT_OPTIMIZE = "O2"
"""For an object that declares none: what mlir-air builds its kernels with (`_PEANO_FLAGS`)."""

RunTool = Callable[[Sequence[str]], None]
"""Runs a command line in the folder of a compilation. Raises CompileError if it fails."""


@dataclass(frozen=True)
class Peano:
    """Compiles objects with the tools of one machine."""

    tools: NpuTools

    def command(self, external: ExternalObject, output: Path | str) -> list[str]:
        """The command line for one object."""
        defines = [f"-D{define}" for define in external.defines]
        level = f"-{external.optimize or DEFAULT_OPTIMIZE}"
        include = f"-I{self.tools.include}"
        arguments = ["-c", str(external_source(external)), "-o", str(output)]
        return [str(self.tools.clang), level, *FLAGS, include, *defines, *arguments]

    def ingredients(self) -> dict[str, str]:
        """What every object depends on."""
        return {
            "Peano": tool_version(str(self.tools.clang)),
            "Peano flags": text_digest("\n".join((*FLAGS, DEFAULT_OPTIMIZE))),
            "aie_api": tree_digest(self.tools.include / "aie_api"),
        }

    def key(self, external: ExternalObject) -> str:
        """The hash of everything that makes the object: source and headers, command line,
        compiler, aie_api.
        """
        sources = files_digest(with_includes([external_source(external)]), KERNEL_SOURCES)
        level = external.optimize or DEFAULT_OPTIMIZE
        own = {"source": sources, "defines": " ".join(external.defines), "optimize": level}
        return hash_key({**own, **self.ingredients()})

    def build(self, external: ExternalObject, store: Store, run: RunTool) -> bytes:
        """Return the object from the store, or compile it with `run`, which raises CompileError."""

        def compile_in(work: Path) -> Path:
            run(self.command(external, work / external.name))
            return work / external.name

        name = f"shared/{Path(external.name).stem}-{self.key(external)}.o"
        return read_content(store.get_or_make(name, compile_in))


class NpuToolchain:
    """Compiles with aircc and Peano. Never run on hardware; see the top of the file."""

    def __init__(self, tools: NpuTools | None = None) -> None:
        self._tools = tools or find_tools()
        self._peano = Peano(self._tools)
        self._children = Children()

    @property
    def memory_bytes(self) -> int:
        """Estimated bytes that compiling one program takes, see BASE_GIB."""
        return int((BASE_GIB + CORE_GIB * min(os.cpu_count() or 1, MAX_CORES)) * GIB)

    def ingredients(self, program: Program) -> Mapping[str, str]:
        drivers = (self._tools.aircc, self._tools.aiecc, self._tools.aiebu_asm)
        return {
            **program_ingredients(program),
            **self._peano.ingredients(),
            **{tool.name: _tool_digest(tool) for tool in drivers},
            "aircc flags": text_digest("\n".join(program.flags)),
        }

    def compile(self, program: Program, work: Path, object_store: Store) -> Path:
        """Check the program, write kernels and text into `work`, then run aircc there: it writes into its
        current folder.
        """
        text = work / f"{program.name}.mlir"
        text.write_text(program.text)
        self._check(program, text)
        self._link(program, work, object_store)
        self._run(program, work, self.aircc_command(program))
        return _find_elf(program, work)

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
        """The caller's environment, with the tools' folders first on PATH, and temporary files
        below `work`.
        """
        path = self._tools.search_path(os.environ.get("PATH", ""))
        own = {"PATH": path, "PEANO_INSTALL_DIR": str(self._tools.peano), "TMPDIR": str(work / "tmp")}
        return {**os.environ, **own}

    def _check(self, program: Program, text: Path) -> None:
        lines = [bindings_status(), *preflight(program)]
        text.with_name(BUILD_LOG).write_text("".join(f"{line}\n" for line in lines))
        objection = bindings_error_text(text) if bindings_installed() else ""
        if objection:
            raise CompileError(program.name, f"mlir-air's own bindings refuse its text:\n{objection}")

    def _link(self, program: Program, work: Path, shared: Store) -> None:
        """Put the objects into the current folder and aircc's: aiecc looks in both (mlir-aie
        tools/aiecc/Utils.h).
        """
        for folder in (work / "tmp", work / PROJECT):
            folder.mkdir()
        for external in program.objects:
            compile_object = functools.partial(self._compile_object, program, work)
            content = self._peano.build(external, shared, compile_object)
            for folder in (work, work / PROJECT):
                (folder / external.name).write_bytes(content)

    def _compile_object(self, program: Program, work: Path, command: Sequence[str]) -> None:
        begin = _size(work / BUILD_LOG)
        self._run(program, work, command)
        if not _size(Path(command[-1])):  # it would be kept for all programs
            tool, log_text = Path(command[0]).name, _since(work / BUILD_LOG, begin)
            raise CompileError(program.name, log_diagnosis.missing_output_text(tool, "an object", log_text))

    def _run(self, program: Program, work: Path, command: Sequence[str]) -> None:
        tool, log = Path(command[0]).name, work / BUILD_LOG
        begin = _size(log)
        seconds = int(knobs.COMPILE_TIMEOUT.get())
        try:
            code = self._children.run(command, work, log, self.environment(work), seconds)
        except OSError as error:
            raise CompileError(program.name, f"{tool} could not be started: {error}") from error
        except TimeLimitError as error:
            raise CompileError(
                program.name, log_diagnosis.timeout_text(tool, seconds, _since(log, begin))
            ) from error
        if cause := log_diagnosis.failure_text(tool, code, _since(log, begin)):
            raise CompileError(program.name, cause)


def _find_elf(program: Program, work: Path) -> Path:
    """The ELF that aircc wrote. Raises CompileError if there is none that XRT would open."""
    elf = work / f"{program.name}.elf"
    if not elf.is_file():
        log_text = _since(work / BUILD_LOG, 0)
        raise CompileError(program.name, log_diagnosis.missing_output_text("aircc", elf.name, log_text))
    if objection := elf_error_text(elf):
        raise CompileError(
            program.name,
            f"aircc ended without an error, and {elf.name} is no program of an NPU2: "
            f"{objection}; it is not stored. Is XRT's aiebu-asm as new as mlir-aie?",
        )
    return elf


def _size(path: Path) -> int:
    """Bytes of a file; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def _since(log: Path, begin: int) -> str:
    """What was appended to the log after its first `begin` bytes."""
    return log.read_bytes()[begin:].decode(errors="replace")


def _tool_digest(tool: Path) -> str:
    status = tool.stat()
    return _digest(tool, status.st_size, status.st_mtime_ns)


@functools.cache
def _digest(tool: Path, size: int, changed: int) -> str:
    """The hash, cached while the file's size and time stay the same: the drivers are large."""
    del size, changed
    return file_digest(tool)
