"""C++ for the host itself, built as the virtual NPU's programs are, and kept in the same cache folder."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path

from virtual_npu import knobs, sealed
from virtual_npu.compiler import Compiler, find_compiler
from virtual_npu.errors import ToolchainError
from virtual_npu.fingerprint import cpu_identity, file_digest, key_of, tool_version


def load_host_code(source: Path) -> ctypes.CDLL:
    """The shared object of one C++ file that includes nothing of ours, compiled where the cache lacks it.

    Raises ToolchainError where there is no compiler, where it refuses the file, and where nothing can be
    written.
    """
    compiler, folder = find_compiler(), knobs.cache_folder()
    try:
        if folder is None or not knobs.is_usable(folder):
            with tempfile.TemporaryDirectory(prefix="vnpu-") as scratch:
                return ctypes.CDLL(str(_build(compiler, source, Path(scratch))))
        kept = folder / f"{_key(compiler, source)}-{source.stem}.so"
        if sealed.content(kept) is None:
            _build_into(compiler, source, kept)
        os.utime(kept)
        return ctypes.CDLL(str(kept))
    except OSError as error:
        raise ToolchainError(f"cannot build {source.name}: {error}") from error


def _key(compiler: Compiler, source: Path) -> str:
    identity = f"{tool_version(compiler.path)} {' '.join(compiler.flags)}"
    return key_of({"compiler": identity, "CPU": cpu_identity(), "source": file_digest(source)})


def _build_into(compiler: Compiler, source: Path, kept: Path) -> None:
    """Build beside `kept` and move it there whole."""
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".work-") as scratch:
        built = _build(compiler, source, Path(scratch))
        sealed.seal(built)
        os.replace(built, kept)


def _build(compiler: Compiler, source: Path, folder: Path) -> Path:
    linked = folder / f"{source.stem}.so"
    compiler.compile(source, folder / f"{source.stem}.o")
    compiler.link([folder / f"{source.stem}.o"], linked)
    return linked
