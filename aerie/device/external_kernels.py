"""External kernels: their names, their C++ sources, and which parameters they do not write.

A program's text is data: it names functions, files in the kernel folders and macros. It cannot contain C++
or name files elsewhere.
"""

from __future__ import annotations

import ctypes
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from aerie import rooms
from aerie.common.shown_names import display_name, symbol_name
from aerie.device.errors import KernelSourceError

OWN_KERNELS = rooms.folder("kernels_cc")


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
    arguments: int
    """How many it is called with."""

    @property
    def cpp_name(self) -> str:
        """The name by which its source defines it. mlir-aie puts a hash before names, which may begin with a
        digit: in C++ such a function is `kernel_NAME`."""
        return f"kernel_{self.symbol}" if self.symbol[0].isdigit() else self.symbol

    def __post_init__(self) -> None:
        """Raises KernelSourceError for a name, file or macro that a program may not use."""
        _check_symbol(self)
        _check_file(self, "link_with", self.object_name)
        _check_file(self, "link_source", self.source_name)
        for define in self.defines:
            _check_define(self, define)


# ---- what a program may name ----

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SYMBOL = re.compile(r"[A-Za-z0-9_]+")
_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|[0-9]+)[uUlL]*")
_OWN = ("_", "vnpu_", "aie_host_", "VNPU_")
"""Prefixes of names that belong to the compiler or to the virtual NPU."""
_MAX_NAME_LENGTH = 250
_SUFFIXES = (".cc", ".cpp", ".cxx", ".c")


def _check_symbol(kernel: ExternalKernel) -> None:
    name = kernel.symbol
    if not _SYMBOL.fullmatch(name) or len(name) > _MAX_NAME_LENGTH or name.startswith(_OWN):
        raise _source_error(
            kernel,
            f"a function in C++ has a name of letters, digits and _, of {_MAX_NAME_LENGTH} characters at "
            f"most, which does not begin with {', '.join(_OWN)}: rename it",
        )


def _check_file(kernel: ExternalKernel, attribute: str, name: str) -> None:
    """Raises KernelSourceError for a path that leaves the kernel folders, or is no C++ file."""
    if not name.isprintable() or len(name) > _MAX_NAME_LENGTH or not _leads_below(name):
        raise _source_error(
            kernel,
            f"{attribute} = {display_name(name)} does not name a file below a kernel folder: give a relative "
            "path without .., and the folder with --kernel-dir",
        )
    if attribute == "link_source" and not name.endswith(_SUFFIXES):
        raise _source_error(
            kernel,
            f"{attribute} = {display_name(name)} is no C++ file: name one that ends in "
            f"{', '.join(_SUFFIXES)}",
        )


def _check_define(kernel: ExternalKernel, define: str) -> None:
    """Raises KernelSourceError unless a macro is an integer or an identifier that is no system function."""
    name, gives, text = define.partition("=")
    is_name = _IDENTIFIER.fullmatch(name) is not None and not name.startswith(_OWN)
    is_word = _IDENTIFIER.fullmatch(text) is not None and not text.startswith(_OWN)
    if not is_name or (gives and not is_word and not _INTEGER.fullmatch(text)):
        raise _source_error(
            kernel,
            f"link_defines has {display_name(define)}: give NAME, NAME=INTEGER or NAME=IDENTIFIER, of names "
            f"that do not begin with {', '.join(_OWN)}",
        )
    if is_word and text != kernel.cpp_name and _is_of_the_system(text):
        raise _source_error(
            kernel,
            f"link_defines has {display_name(define)}, and {text} is a function of the system, which the "
            "kernel would then call: give a name of the kernel's own",
        )


def _is_of_the_system(name: str) -> bool:
    """Whether the C library has a function of this name that does more than compute."""
    return hasattr(ctypes.CDLL(None), name) and not hasattr(math, name.removesuffix("f"))


def _source_error(kernel: ExternalKernel, why: str) -> KernelSourceError:
    return KernelSourceError(f"line {kernel.line}: {symbol_name(kernel.symbol)}: {why}")


# ---- where the sources are ----


@dataclass(frozen=True)
class KernelObject:
    """An object file to link: its source, and the -D and -I flags that it is compiled with."""

    source: Path
    flags: tuple[str, ...]
    """The macros, and the folders of headers."""

    @property
    def description(self) -> str:
        """File name and defines, for messages."""
        return " ".join([self.source.name, *self.flags])


def kernel_objects(kernels: Sequence[ExternalKernel], kernel_dirs: Sequence[Path]) -> list[KernelObject]:
    """What each link_with name stands for. The source is looked up in `kernel_dirs`, then in kernels_cc.

    Raises KernelSourceError if a source is missing, or two kernels name one object and different sources.
    """
    by_object: dict[str, tuple[ExternalKernel, list[KernelObject]]] = {}
    folders = [*map(Path, kernel_dirs), OWN_KERNELS]
    for kernel in kernels:
        items = _recorded_objects(kernel, folders) or [_named_object(kernel, folders)]
        for item in items:
            _check_parameters(kernel, item.source)
        earlier = by_object.setdefault(kernel.object_name, (kernel, items))
        if earlier[1] != items:
            raise KernelSourceError(
                f"@{earlier[0].symbol} and @{kernel.symbol} both link with {kernel.object_name}, but name "
                f"different sources or defines ({_description(earlier[1])} and {_description(items)}): give "
                "one of them another link_with"
            )
    return [item for _, items in by_object.values() for item in items]


def _description(items: Sequence[KernelObject]) -> str:
    return ", ".join(item.description for item in items)


def _named_object(kernel: ExternalKernel, folders: Sequence[Path]) -> KernelObject:
    """The source that the program names, with the program's macros."""
    return KernelObject(_find_source(kernel, folders), tuple(f"-D{define}" for define in kernel.defines))


OBJECT_MARK = "aerie kernel objects"
_OBJECT_BYTES = 1 << 16


def _recorded_objects(kernel: ExternalKernel, folders: Sequence[Path]) -> list[KernelObject]:
    """What an object file in the kernel folders holds, where our stand-in for the compiler has written it
    (aerie/virtual_npu/air_run/kernel_objects.py), several where objects were linked into one; nothing for an
    object of another compiler."""
    path = find_source(kernel.object_name, folders)
    if path is None or path.stat().st_size > _OBJECT_BYTES:
        return []
    try:
        fields = json.loads(path.read_bytes())
    except ValueError:
        return []
    if not isinstance(fields, dict) or fields.get("kind") != OBJECT_MARK:
        return []
    try:
        items = [KernelObject(Path(part["source"]), tuple(part["flags"])) for part in fields["objects"]]
    except (KeyError, TypeError):
        raise KernelSourceError(
            f"{path} does not say for each object its source and flags, so it was changed or written by another "
            "version: compile the kernel again"
        ) from None
    for item in items:
        if not item.source.is_file():
            raise KernelSourceError(
                f"{path} was made from {item.source}, which is gone: compile the kernel again"
            )
    return items


def _leads_below(name: str) -> bool:
    """Whether a path stays in the folder that it starts from."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def find_source(name: str, folders: Sequence[Path]) -> Path | None:
    """The first file of that name below the folders; None if there is none or the path leaves them."""
    if not _leads_below(name):
        return None
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _find_source(kernel: ExternalKernel, folders: Sequence[Path]) -> Path:
    source = find_source(kernel.source_name, folders)
    if source is not None:
        return source
    looked = ", ".join(str(folder) for folder in folders)
    raise KernelSourceError(
        f"line {kernel.line}: @{kernel.symbol} links with {kernel.object_name}, but {kernel.source_name} is "
        f"in none of: {looked}. Put it there, name its folder with --kernel-dir, or set link_source"
    )


def _check_parameters(kernel: ExternalKernel, source: Path) -> None:
    """Raises KernelSourceError if the function's definition and its call differ in their number of
    parameters: the function would read garbage, and the linker does not check."""
    definitions = _definitions(kernel, source)
    if len(definitions) != 1 or "#" in definitions[0]:
        return  # a macro makes it, or there is a choice
    text = _ANGLES.sub("", definitions[0]).strip()
    count = 0 if text in ("", "void") else text.count(",") + 1
    if count != kernel.arguments:
        raise KernelSourceError(
            f"line {kernel.line}: @{kernel.symbol} is called with {kernel.arguments} arguments, and "
            f"{kernel.source_name} defines it with {count} parameters: declare it as it is there"
        )


_ANGLES = re.compile(r"<[^<>]*>")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_CAST = re.compile(r"const_cast|reinterpret_cast|\(\s*(?:\w+::)*\w+\s*\*+\s*\)")
_POINTER_TO_CONST = re.compile(r"\s*const\s+(?:\w+::)*\w+\s*\*\s*(?:__restrict(?:__)?|restrict)?\s*\w*\s*")


def constant_parameters(kernel: ExternalKernel, kernel_dirs: Sequence[Path]) -> frozenset[int]:
    """The positions of the parameters that a kernel does not write: `const T *` in its definition.

    Empty if the source is missing, does not define the function exactly once, or casts pointers: it might
    then write through them.
    """
    try:
        sources = [item.source for item in kernel_objects([kernel], kernel_dirs)]
    except KernelSourceError:
        return frozenset()
    definitions = [text for source in sources for text in _definitions(kernel, source)]
    if len(definitions) != 1 or any(_CAST.search(_without_comments(source)) for source in sources):
        return frozenset()
    parameters = definitions[0].split(",")
    return frozenset(i for i, text in enumerate(parameters) if _POINTER_TO_CONST.fullmatch(text))


@dataclass(frozen=True)
class Overwrite:
    """What a kernel writes of one argument, whatever was there: a comment before the function says so.

        // overwrites: y[row : row + m]
        // overwrites: sums if first == 0

    The kernel then reads none of these elements before it writes them, and what it writes depends on its
    arguments alone: it sets the rounding mode that it needs. Tests run kernels on memory of several contents.
    """

    position: int
    begin: str
    """The first element, and the one after the last, as sums and products of parameters and numbers."""
    end: str
    """Empty: all of the argument."""
    zero: int | None
    """The position of the parameter that must be 0; None: none must."""
    parameters: tuple[str, ...]
    """The names of all parameters."""


_OVERWRITES = re.compile(r"\s*//\s*overwrites:\s*(\w+)(?:\[(.+?) : (.+?)\])?(?:\s+if\s+(\w+)\s*==\s*0)?\s*")


def overwritten_arguments(kernel: ExternalKernel, kernel_dirs: Sequence[Path]) -> tuple[Overwrite, ...]:
    """What a kernel declares to overwrite; () where its source is missing, or defines it several times.

    Raises KernelSourceError for a declaration that cannot be read.
    """
    source = find_source(kernel.source_name, [*map(Path, kernel_dirs), OWN_KERNELS])
    if source is None:
        return ()
    found = list(_definition(kernel).finditer(source.read_text(errors="replace")))
    if len(found) != 1:
        return ()
    names = tuple(re.findall(r"\w+", f"_ {text}")[-1] for text in found[0].group(1).split(","))
    lines = found[0].string[: found[0].start()].splitlines()
    declared = [line for line in _last_comment(lines) if "overwrites:" in line]
    return tuple(_overwrite(kernel, line, names) for line in declared)


def _last_comment(lines: list[str]) -> list[str]:
    """The lines of the comment before a definition, of which the last line is the definition's beginning."""
    comment: list[str] = []
    for line in reversed(lines if lines and lines[-1].lstrip().startswith("//") else lines[:-1]):
        if not line.lstrip().startswith("//"):
            break
        comment.insert(0, line)
    return comment


def _overwrite(kernel: ExternalKernel, line: str, names: tuple[str, ...]) -> Overwrite:
    found = _OVERWRITES.fullmatch(line)
    if found is None or found[1] not in names or (found[4] or names[0]) not in names:
        raise _source_error(
            kernel,
            f"{kernel.source_name} has {display_name(line.strip())}, which cannot be read: write "
            "// overwrites: NAME, NAME[BEGIN : END], or either with `if NAME == 0`, of its parameters",
        )
    zero = names.index(found[4]) if found[4] else None
    return Overwrite(names.index(found[1]), found[2] or "", found[3] or "", zero, names)


def _without_comments(source: Path) -> str:
    return _COMMENT.sub(" ", source.read_text(errors="replace"))


def _definitions(kernel: ExternalKernel, source: Path) -> list[str]:
    """The parameter text of each definition of a kernel in its source."""
    return _definition(kernel).findall(_without_comments(source))


def _definition(kernel: ExternalKernel) -> re.Pattern[str]:
    """Finds a kernel's definition, from its name on, and its parameters."""
    pairs = (define.partition("=") for define in kernel.defines)
    name = {new: old for old, _, new in pairs}.get(kernel.cpp_name, kernel.cpp_name)
    return re.compile(rf"\b{re.escape(name)}\s*\(([^()]*)\)\s*\{{")
