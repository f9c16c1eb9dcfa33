"""The cache of built programs, by the hash of everything that makes them.

    PLAN.json       under the hash of a program's text and of all that turns it into C++ and compiles that:
                    the external kernels it calls, the hash of what makes these, and the name of the shared
                    object
    PROGRAM.so      the shared object, under the hash of the C++ that made it (objects.py)
    misfits-*.json  what the static check finds in a program for a device

So a cached program needs neither parser nor compiler. All are entries of the content store (store.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.common import cpu
from aerie.common.compiler import compiler_flags, known_compilers
from aerie.common.errors import ToolchainError
from aerie.common.fingerprint import (
    file_digest,
    hash_key,
    includes_digest,
    package_digest,
    package_version,
    text_digest,
)
from aerie.common.knobs import cpp_copy_folder
from aerie.common.store import Store, append_checksum, programs_store
from aerie.device.external_kernels import ExternalKernel, KernelObject, kernel_objects
from aerie.virtual_npu.library import Library
from aerie.virtual_npu.options import BuildOptions

if TYPE_CHECKING:
    from aerie.virtual_npu.toolchain import Cpp


def key_ingredients(options: BuildOptions, compiler: str) -> dict[str, str]:
    """Everything of Aerie and of this machine that a built program depends on, as hashes or short texts.

    compiler: its version line.
    """
    flags = " ".join(compiler_flags(()))
    chosen = {"numerics": options.numerics, "rounding": options.rounding, "fast": str(options.fast)}
    return {
        **_own_digests(),
        "CPU": cpu.cpu_identity(),
        "compiler": compiler,
        "compiler flags": flags,
        **chosen,
    }


@functools.cache
def _own_digests() -> dict[str, str]:
    return {
        **{room: package_digest(room) for room in ("air_dialect", "common", "device")},
        "virtual_npu": package_digest("virtual_npu"),
        "AIE API for the host": package_digest("kernels_cc/host"),
        "xdsl": package_version("xdsl"),
    }


@dataclasses.dataclass(frozen=True)
class ProgramSource:
    """A program to build: AIR text, the name it has in messages, folders of external kernels, options."""

    text: str
    filename: str
    kernel_dirs: tuple[Path, ...]
    options: BuildOptions

    def cpp(self, keep: Path | None) -> Cpp:
        """The C++ of the program. keep: a folder for a copy of the generated C++. Raises ProgramError."""
        from aerie.virtual_npu.toolchain import generate_cpp  # xDSL comes with it

        return generate_cpp(
            self.text, "program", self.options, self.kernel_dirs, filename=self.filename, keep=keep
        )

    def plan_key(self, compiler: str) -> str:
        """The hash of everything that the program depends on, except its external kernels."""
        own = {**key_ingredients(self.options, compiler), "options": repr(self.options)}
        if self.options.stop_lines:
            own["stop lines"] = repr(self.options.stop_lines)
        return hash_key({**own, "text": text_digest(self.text)})

    def kernels_key(self, kernels: Sequence[ExternalKernel]) -> str:
        """The hash of everything that the external kernels depend on. Raises KernelSourceError."""
        objects = kernel_objects(kernels, self.kernel_dirs)
        return hash_key({str(number): _kernel_digest(kernel) for number, kernel in enumerate(objects)})


def _kernel_digest(kernel: KernelObject) -> str:
    text = kernel.source.read_text(errors="replace")
    further = [Path(flag[2:]) for flag in kernel.flags if flag.startswith("-I")]
    included = includes_digest(text, [kernel.source.parent, *further])
    return " ".join([*kernel.flags, kernel.source.name, file_digest(kernel.source), included])


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The contents of PLAN.json: a program's external kernels, their key, and its shared object's name."""

    kernels: list[ExternalKernel]
    made_from: str
    program: str

    @staticmethod
    def read(content: bytes) -> _Plan:
        fields: dict[str, Any] = json.loads(content)
        kernels = [
            ExternalKernel(**{**kernel, "defines": tuple(kernel["defines"])}) for kernel in fields["kernels"]
        ]
        return _Plan(kernels, fields["made_from"], fields["program"])


def load(source: ProgramSource, *, use_cache: bool = True, keep: Path | None = None) -> Library:
    """The program, from the cache or newly built. keep: a folder for its C++; if given, it is built anew.

    Raises ProgramError if the build fails. A cache folder that cannot be written is not used.
    """
    store, keep = programs_store() if use_cache else None, keep or cpp_copy_folder()
    try:
        if store is not None:
            return Library(_find_or_build(source, store, keep))
        with tempfile.TemporaryDirectory(prefix="vnpu-") as work:
            return Library(source.cpp(keep).shared_object(Path(work)))
    except OSError as error:
        raise ToolchainError.of_system(source.filename, error) from error


def misfits(source: ProgramSource, device: str, find: Callable[[], list[str]]) -> list[str]:
    """What keeps a program without external kernels from being built for a device, a sentence each: from the
    store, or as `find` says. So a program that is known is not parsed for that either.
    """
    store = programs_store()
    if store is None:
        return find()
    of = {"text": text_digest(source.text), "filename": source.filename, "device": device}
    name = f"misfits-{hash_key({**_own_digests(), **of})}.json"
    content = store.read(name)
    if content is None:
        found = find()
        with contextlib.suppress(OSError):  # a full disk: they are found again the next time
            store.get_or_make(name, lambda work: _written(work / name, found))
        return found
    sentences: list[str] = json.loads(content)
    return sentences


def _written(path: Path, content: list[str]) -> Path:
    path.write_text(json.dumps(content))
    return path


def _find_or_build(source: ProgramSource, store: Store, keep: Path | None) -> Path:
    names = [
        f"{source.plan_key(compiler.version)}.json"
        for compiler in known_compilers(source.options.compiler_flags)
    ]
    program = None if keep else next(filter(None, (_find(source, store, name) for name in names)), None)
    if program is None:
        name = names[0]
        with store.locked_work_folder(name) as work:
            program = (None if keep else _find(source, store, name)) or _build(
                source, store, name, work, keep
            )
    return program


def _find(source: ProgramSource, store: Store, name: str) -> Path | None:
    content = store.read(name)
    plan = _Plan.read(content) if content else None
    if plan is None or plan.made_from != source.kernels_key(plan.kernels):
        return None
    return store.find(plan.program)


def _build(source: ProgramSource, store: Store, name: str, work: Path, keep: Path | None) -> Path:
    cpp = source.cpp(keep)
    made_from = source.kernels_key(cpp.kernels)
    program = cpp.shared_object(store)
    if source.kernels_key(cpp.kernels) == made_from:  # nobody edited a kernel meanwhile
        plan = work / name
        plan.write_text(json.dumps(dataclasses.asdict(_Plan(cpp.kernels, made_from, program.name))))
        store.move_in(append_checksum(plan), name)
    return program
