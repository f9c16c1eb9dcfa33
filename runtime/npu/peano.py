"""External kernels compiled by Peano for the cores of NPU2: command lines, and objects that programs share.

An object lies in the content store under the hash of all that made it, so it is compiled once for all
programs that link it, in whichever process. The flags are mlir-air's
(programming_examples/llms/shared/infra/external_kernels.py, `_PEANO_FLAGS`) and two more, each with its
reason. None of this was run with Peano.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.npu.tools import NpuTools
from runtime.toolchain import KERNEL_SOURCES, source_of
from virtual_npu.fingerprint import (
    files_digest,
    key_of,
    text_digest,
    tool_version,
    tree_digest,
    with_includes,
)
from virtual_npu.store import Store, contents

if TYPE_CHECKING:
    from multi_launch_builder.program import ExternalObject

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

Run = Callable[[Sequence[str]], None]
"""Runs a command line in the folder of a compilation; raises CompileError where it fails."""


@dataclass(frozen=True)
class Peano:
    """Compiles objects with the tools of one machine."""

    tools: NpuTools

    def command(self, external: ExternalObject, output: Path | str) -> list[str]:
        """The command line for one object."""
        defines = [f"-D{define}" for define in external.defines]
        level = f"-{external.optimize or DEFAULT_OPTIMIZE}"
        include = f"-I{self.tools.include}"
        made = ["-c", str(source_of(external)), "-o", str(output)]
        return [str(self.tools.clang), level, *FLAGS, include, *defines, *made]

    def ingredients(self) -> dict[str, str]:
        """What every object depends on."""
        return {
            "Peano": tool_version(str(self.tools.clang)),
            "Peano flags": text_digest("\n".join((*FLAGS, DEFAULT_OPTIMIZE))),
            "aie_api": tree_digest(self.tools.include / "aie_api"),
        }

    def key(self, external: ExternalObject) -> str:
        """The hash of all that makes the object: source and headers, command line, compiler, aie_api."""
        sources = files_digest(with_includes([source_of(external)]), KERNEL_SOURCES)
        level = external.optimize or DEFAULT_OPTIMIZE
        own = {"source": sources, "defines": " ".join(external.defines), "optimize": level}
        return key_of({**own, **self.ingredients()})

    def build(self, external: ExternalObject, store: Store, run: Run) -> bytes:
        """The object: the one that is in the store, or compiled now by `run`, which raises CompileError."""

        def compile_in(work: Path) -> Path:
            run(self.command(external, work / external.name))
            return work / external.name

        name = f"shared/{Path(external.name).stem}-{self.key(external)}.o"
        return contents(store.made(name, compile_in))
