"""External kernels: functions that C++ source outside the program defines, where that source is, and what it
promises about its parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.virtual_npu.compiler import OWN_KERNELS
from aerie.virtual_npu.errors import KernelSourceError


@dataclass(frozen=True)
class ExternalKernel:
    """A function that C++ source outside the program defines."""

    symbol: str
    object_name: str
    """The object file that link_with names."""
    source_name: str
    """The source file it is built from."""
    defines: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class KernelObject:
    """An object file to link: its source, and the flags that its defines make."""

    source: Path
    flags: tuple[str, ...]

    @property
    def described(self) -> str:
        """File name and defines, for messages."""
        return " ".join([self.source.name, *self.flags])


def kernel_objects(kernels: Sequence[ExternalKernel], kernel_dirs: Sequence[Path]) -> list[KernelObject]:
    """One object per link_with name; its source is looked up in `kernel_dirs`, then in kernels_cc.

    Raises KernelSourceError for a source that is nowhere, and for two that claim one object.
    """
    found: dict[str, tuple[ExternalKernel, KernelObject]] = {}
    folders = [*map(Path, kernel_dirs), OWN_KERNELS]
    for kernel in kernels:
        flags = tuple(f"-D{define}" for define in kernel.defines)
        item = KernelObject(_find_source(kernel, folders), flags)
        known = found.setdefault(kernel.object_name, (kernel, item))
        if known[1] != item:
            raise KernelSourceError(
                f"@{known[0].symbol} and @{kernel.symbol} both link with {kernel.object_name}, but name "
                f"different sources or defines ({known[1].described} and {item.described}): give one of them "
                "another link_with"
            )
    return [item for _, item in found.values()]


def _find_source(kernel: ExternalKernel, folders: Sequence[Path]) -> Path:
    for folder in folders:
        path = folder / kernel.source_name
        if path.is_file():
            return path
    looked = ", ".join(str(folder) for folder in folders)
    raise KernelSourceError(
        f"line {kernel.line}: @{kernel.symbol} links with {kernel.object_name}, but {kernel.source_name} is "
        f"in none of: {looked}. Put it there, name its folder with --kernel-dir, or set link_source"
    )


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_CAST = re.compile(r"const_cast|reinterpret_cast|\(\s*(?:\w+::)*\w+\s*\*+\s*\)")
_POINTER_TO_CONST = re.compile(r"\s*const\s+(?:\w+::)*\w+\s*\*\s*(?:__restrict(?:__)?|restrict)?\s*\w*\s*")


def constant_parameters(kernel: ExternalKernel, kernel_dirs: Sequence[Path]) -> frozenset[int]:
    """The positions of the parameters through which a kernel does not write: `const T *` in its definition.

    None of them where the source is not found, defines the function other than once, or casts pointers, as
    it might then write all the same.
    """
    try:
        (found,) = kernel_objects([kernel], kernel_dirs)
    except KernelSourceError:
        return frozenset()
    text = _COMMENT.sub(" ", found.source.read_text(errors="replace"))
    pairs = (define.partition("=") for define in kernel.defines)
    name = {new: old for old, _, new in pairs}.get(kernel.symbol, kernel.symbol)
    definitions = re.findall(rf"\b{re.escape(name)}\s*\(([^()]*)\)\s*\{{", text)
    if len(definitions) != 1 or _CAST.search(text):
        return frozenset()
    parameters = definitions[0].split(",")
    return frozenset(i for i, text in enumerate(parameters) if _POINTER_TO_CONST.fullmatch(text))
