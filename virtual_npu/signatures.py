"""What the C++ source of an external kernel promises about its parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from virtual_npu.errors import KernelSourceError
from virtual_npu.external import ExternalKernel, kernel_objects

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
