"""The runtime's own sources, compiled once for every set of flags and kept in the cache folder."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path

from virtual_npu import knobs, sealed
from virtual_npu.compiler import INCLUDE, OWN_KERNELS, Compiler
from virtual_npu.fingerprint import cpu_identity, key_of, tool_version, tree_digest

FLAGS = (f"-I{INCLUDE}", f"-I{OWN_KERNELS / 'host'}")
"""Where generated code and runtime find their headers."""


def compile_runtime(compiler: Compiler, source: Path, target: Path) -> None:
    """The object of one of the runtime's sources, from the cache or compiled. Raises ToolchainError."""
    folder = knobs.cache_folder()
    if folder is None or not knobs.is_usable(folder):
        compiler.compile(source, target, FLAGS)
        return
    kept = folder / f"{_key(compiler)}-{source.stem}.o"
    found = sealed.content(kept)
    if found is None:
        compiler.compile(source, target, FLAGS)
        _keep(target, kept)
    else:
        target.write_bytes(found)
        os.utime(kept)


def _keep(target: Path, kept: Path) -> None:
    descriptor, name = tempfile.mkstemp(dir=kept.parent, prefix=".work-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(target.read_bytes())
    sealed.seal(Path(name))
    os.replace(name, kept)


def _key(compiler: Compiler) -> str:
    identity = f"{tool_version(compiler.path)} {' '.join(compiler.flags)}"
    return key_of({"compiler": identity, "CPU": cpu_identity(), **_sources()})


@functools.cache
def _sources() -> dict[str, str]:
    return {"include": tree_digest(INCLUDE), "host": tree_digest(OWN_KERNELS / "host")}
