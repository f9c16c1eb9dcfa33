"""Toolchains: they compile a program to a file that the backend's `pyxrt.elf` opens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from aerie import rooms, virtual_npu
from aerie.common import compiler
from aerie.common.fingerprint import files_digest, text_digest, with_includes
from aerie.common.store import Store
from aerie.runtime.artifacts import BUILD_LOG, PROGRAM_TEXT, UNKNOWN
from aerie.runtime.errors import CompileError
from aerie.virtual_npu.cache import key_ingredients

if TYPE_CHECKING:
    from aerie.multi_launch_builder.program import ExternalObject, Program

KERNEL_SOURCES = rooms.folder("kernels_cc")
"""C++ for the cores. It is data, not a Python package that we import."""


SHOWN_LINES = 20
"""Lines of a failed tool's output that an error shows. The log has all of them."""


MEMORY_BYTES = 256 << 20
"""Memory for compiling one program for the virtual NPU: two compilers at a time of at most 100 MB each
(measured with programs of Llama-3.2-1B), and a reserve.
"""


class Toolchain(Protocol):
    """Compiles programs for one backend."""

    def ingredients(self, program: Program) -> Mapping[str, str]:
        """Everything that the artifact depends on, by name, as hashes or short texts."""

    def compile(self, program: Program, work: Path, object_store: Store) -> Path:
        """Compile in the empty folder `work`, and leave the tools' output in BUILD_LOG. Returns the
        artifact's path.

        object_store: for parts that several programs need. Raises CompileError with the tool's own lines.
        """

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that compiling one program takes at most, estimated; limits how many compile at
        once.
        """

    def stop(self) -> None:
        """Stop the compilations in other threads."""


def first_lines(text: str) -> str:
    """The first SHOWN_LINES lines."""
    return "\n".join(text.splitlines()[:SHOWN_LINES])


def external_source(external: ExternalObject) -> Path:
    """The C++ source of an object file that a program links."""
    return KERNEL_SOURCES / external.source


def program_ingredients(program: Program) -> dict[str, str]:
    """The ingredients of both toolchains: the program's text, and the C++ that it links, with its macros."""
    sources = with_includes(external_source(external) for external in program.objects)
    objects = [repr(dataclasses.astuple(external)) for external in program.objects]
    return {
        PROGRAM_TEXT: text_digest(program.text),
        "kernel sources": files_digest(sources, KERNEL_SOURCES),
        "kernel macros": text_digest("\n".join(objects)),
    }


@dataclasses.dataclass(frozen=True)
class VirtualToolchain:
    """Compiles for the virtual NPU: AIR text to C++ to a shared object of this machine.

    numerics: how bf16 matrices are multiplied, "exact" or "bfp16"; None means the environment decides.
    """

    numerics: str | None = None

    @property
    def options(self) -> virtual_npu.BuildOptions:
        """How programs are built. Raises ProgramError if the numerics are unknown."""
        options = virtual_npu.BuildOptions.from_knobs()
        return dataclasses.replace(options, numerics=self.numerics or options.numerics)

    def ingredients(self, program: Program) -> Mapping[str, str]:
        try:
            host_compiler = compiler.present_compiler(self.options.compiler_flags)
            own = key_ingredients(self.options, host_compiler.version if host_compiler else UNKNOWN)
        except virtual_npu.ProgramError as error:
            raise CompileError(program.name, str(error)) from error
        return {**program_ingredients(program), **own}

    @property
    def memory_bytes(self) -> int:
        return MEMORY_BYTES

    def compile(self, program: Program, work: Path, object_store: Store) -> Path:
        del object_store  # the virtual NPU has a store of its own, for programs that others build too
        output = work / f"{program.name}.elf"
        try:
            virtual_npu.build(
                program.text,
                output,
                kernel_dirs=(KERNEL_SOURCES,),
                options=self.options,
                module=program.module,
            )
        except virtual_npu.ProgramError as error:
            (work / BUILD_LOG).write_text(str(error))
            raise CompileError(program.name, first_lines(str(error))) from error
        return output

    def stop(self) -> None:
        """Kill the compilers that run for any thread."""
        compiler.stop_compilers()
