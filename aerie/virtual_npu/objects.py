"""Objects and shared objects in the content store, under the hash of the C++ that made them.

An object depends on its source, the files that it includes, the compiler with its flags, and the CPU; a
shared object depends on its objects. Neither depends on Python: a change of the code generator that gives the
same C++ compiles nothing.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from aerie import rooms
from aerie.common import cpu
from aerie.common.compiler import Compiler, known_compilers, stop_compilers
from aerie.common.errors import ToolchainError
from aerie.common.fingerprint import hash_key, includes_digest, mentioned_macros, text_digest
from aerie.common.store import Store, interrupt_lock_waits, programs_store
from aerie.device.external_kernels import OWN_KERNELS
from aerie.virtual_npu.precompiled import prelude, prelude_flags
from aerie.virtual_npu.thread_team import use_team

INCLUDE = rooms.folder("virtual_npu") / "include"
TEAM = INCLUDE / "vnpu" / "team.cc"
"""The threads of a process, in everything that uses them."""

HEADERS = (INCLUDE, OWN_KERNELS / "host")
"""The include folders of generated code, runtime and kernels."""

OWN = (INCLUDE, OWN_KERNELS, rooms.folder("engine"))
"""The folders of our own C++: runtime, kernels, host code."""


@dataclass(frozen=True)
class TranslationUnit:
    """A C++ file to compile, with the folders and further flags that it is compiled with.

    text: the C++, where it was generated and is in no file yet; `source` is then the name of the file to
    write.
    """

    source: Path
    text: str | None = None
    folders: tuple[Path, ...] = HEADERS
    flags: tuple[str, ...] = ()

    def compiler_for(self, compiler: Compiler) -> Compiler:
        """The compiler with the flags of this unit. Our own files are compiled once and run in many programs.

        So they are optimised a little where programs are not. A macro that neither the file nor its headers
        mention is left out: most of the runtime is then the same object for all numerics.
        """
        if self.text is not None or not any(self.source.is_relative_to(folder) for folder in OWN):
            return compiler
        mentioned = mentioned_macros(self.source, self.folders)
        flags = (
            "-O1" if flag == "-O0" else flag
            for flag in compiler.flags
            if not flag.startswith("-DVNPU_") or flag[2:].partition("=")[0] in mentioned
        )
        return replace(compiler, flags=tuple(flags))

    def key(self, compiler: Compiler) -> str:
        """The hash of all that the object depends on."""
        compiler = self.compiler_for(compiler)
        text = self.source.read_text(errors="replace") if self.text is None else self.text
        own = () if self.text is not None else (self.source.parent,)
        ingredients = {
            "C++": text_digest(text),
            "headers": includes_digest(text, (*own, *self.folders)),
            "flags": " ".join((*compiler.flags, *self.flags)),
            "compiler": compiler.version,
            "CPU": cpu.cpu_identity(),
        }
        if compiler.names_sources:
            ingredients["names"] = " ".join(map(str, (self.source, *self.folders)))
        return hash_key(ingredients)

    def compile(self, compiler: Compiler, store: Store | None, work: Path) -> Path:
        """The object, made in the folder `work`. Raises ToolchainError with the compiler's own lines.

        store: where precompiled headers are; without, none are used.
        """
        compiler, source = self.compiler_for(compiler), self.source
        if self.text is not None:
            source = work / source.name
            source.write_text(self.text)
        output = work / f"{source.stem}.o"
        first = prelude_flags(prelude(source.read_text(errors="replace")), HEADERS, compiler, store, work)
        compiler.compile(source, output, (*(f"-I{folder}" for folder in self.folders), *self.flags, *first))
        return output


def shared_object(
    compilers: Sequence[Compiler], units: Sequence[TranslationUnit], store: Store | Path
) -> Path:
    """The units in one shared object, from the store; without a store, made in the folder that is given.

    compilers: `known_compilers()`. Raises ToolchainError with the compiler's own lines, and OSError.
    """
    compiler = compilers[0]
    if isinstance(store, Path):
        return _linked(compiler, [partial(_compile_apart, unit, compiler, store) for unit in units], store)
    for earlier in compilers[1:] and compilers:
        if found := store.find(_name([unit.key(earlier) for unit in units])):
            return found
    keys = [unit.key(compiler) for unit in units]
    jobs = [
        partial(store.get_or_make, f"{key}.o", partial(_compile_as, key, unit, compiler, store))
        for key, unit in zip(keys, units, strict=True)
    ]
    return store.get_or_make(_name(keys), lambda own: _linked(compiler, jobs, own))


def _name(keys: Sequence[str]) -> str:
    """The name of a shared object in the store, from the keys of its objects."""
    return f"{hash_key({'objects': ' '.join(keys)})}.so"


def _compile_as(key: str, unit: TranslationUnit, compiler: Compiler, store: Store, work: Path) -> Path:
    """The object of a unit. Raises ToolchainError if its source changed meanwhile: the key would be wrong."""
    output = unit.compile(compiler, store, work)
    if unit.key(compiler) != key:
        raise ToolchainError(
            f"{unit.source.name}, or what it includes, changed while it was compiled: build again"
        )
    return output


def _compile_apart(unit: TranslationUnit, compiler: Compiler, work: Path) -> Path:
    return unit.compile(compiler, None, Path(tempfile.mkdtemp(dir=work)))


def _linked(compiler: Compiler, jobs: Sequence[Callable[[], Path]], work: Path) -> Path:
    """Run the jobs, two at a time, and link their objects."""
    output = work / "linked.so"
    with ThreadPoolExecutor(max_workers=2) as pool:
        objects = [pool.submit(job) for job in jobs]
        try:
            compiler.link([found.result() for found in objects], output)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            stop_compilers()
            interrupt_lock_waits()
            raise
    return output


def host_units(
    source: Path, folders: tuple[Path, ...] = (), *, with_team: bool = False
) -> list[TranslationUnit]:
    """The units of host code, by the arguments of `load_host_code`."""
    if not with_team:
        return [TranslationUnit(source, folders=folders)]
    return [TranslationUnit(source, folders=(*folders, INCLUDE)), TranslationUnit(TEAM)]


def load_host_code(source: Path, folders: tuple[Path, ...] = (), *, with_team: bool = False) -> ctypes.CDLL:
    """The shared object of one C++ file, compiled where the store lacks it.

    folders: of the headers of ours that it includes, which need nothing of the runtime but, `with_team`, the
    threads of include/vnpu/team.h, which are then those of the process.

    Raises ToolchainError where there is no compiler then, where it refuses the file, and where nothing can be
    written.
    """
    compilers, store = known_compilers(), programs_store()
    units = host_units(source, folders, with_team=with_team)
    try:
        if store is not None:
            library = ctypes.CDLL(str(shared_object(compilers, units, store)))
        else:
            with tempfile.TemporaryDirectory(prefix="vnpu-") as work:
                library = ctypes.CDLL(str(shared_object(compilers, units, Path(work))))
    except OSError as error:
        raise ToolchainError.of_system(source.name, error) from error
    if with_team:
        use_team(library)
    return library
