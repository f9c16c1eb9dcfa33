"""Hashes of all that an artifact depends on: texts, source trees, tools.

No hash depends on where a folder is, or on when a file was written: two checkouts of one content agree.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from aerie import rooms

SOURCE_SUFFIXES = (".py", ".cc", ".cpp", ".h", ".hpp", ".inc")

NOT_BUILT_IN = ("pyxrt", "commands", "__main__.py")
"""The parts of virtual_npu that do not affect a program's C++."""

_SETTLED_SECONDS = 3.0

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
_MACRO = re.compile(r"\bVNPU_[A-Z0-9_]+")


def text_digest(text: str) -> str:
    """sha256 of a text in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path | str) -> str:
    """sha256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def hash_key(ingredients: Mapping[str, str]) -> str:
    """16 hexadecimal digits of a sha256 over all ingredients, their names and values; order does not
    matter."""
    return text_digest(json.dumps(ingredients, sort_keys=True))[:16]


def files_digest(files: Iterable[Path], root: Path) -> str:
    """sha256 of the files' contents and of their paths relative to `root`; order does not matter."""
    return _digest_of((path.relative_to(root).as_posix(), str(path)) for path in set(files))


def _digest_of(files: Iterable[tuple[str, str]]) -> str:
    """sha256 of files, from pairs (name in the hash, path)."""
    return text_digest("\n".join(sorted(f"{name} {file_digest(path)}" for name, path in files)))


def tree_digest(root: Path, skip: Sequence[str] = ()) -> str:
    """sha256 of all source files below `root`, but for entries of `root` itself with a name in `skip`."""
    return _digest_of(_tree(str(root), "", skip))


@functools.cache
def package_digest(folder: str) -> str:
    """`tree_digest` of one of our own folders, such as `device`; that of virtual_npu itself is
    without NOT_BUILT_IN. Taken once in a process, which loads its code once too."""
    return tree_digest(rooms.folder(folder), skip=NOT_BUILT_IN if folder == "virtual_npu" else ())


def _tree(folder: str, prefix: str, skip: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Source files, each with its path relative to the root and its path."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in skip:
                continue
            if entry.is_dir():
                yield from _tree(entry.path, f"{prefix}{entry.name}/")
            elif entry.name.endswith(SOURCE_SUFFIXES) and entry.is_file():
                yield prefix + entry.name, entry.path


def with_includes(sources: Iterable[Path], folders: Iterable[Path] = ()) -> set[Path]:
    """The C++ files, and all that they include, however deep, from the including file's folder, the folders
    of `sources`, or `folders`."""
    waiting = [path for path in sources if path.is_file()]
    known = {path.parent for path in waiting}
    places = [*known, *(folder for folder in folders if folder not in known)]
    reached: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            waiting += _included_paths(_facts(path)[1], (path.parent, *places))
    return reached


def _included_paths(names: Iterable[str], places: Sequence[Path]) -> list[Path]:
    """All files of these names in `places`: the compiler may choose any of them."""
    paths = (f"{place}/{name}" for name in names for place in places)
    return [Path(path) for path in paths if os.path.isfile(path)]


_Facts = tuple[str, tuple[str, ...], frozenset[str]]


def _facts(path: Path | str) -> _Facts:
    """The sha256 of a C++ file, the names that it includes, and the macros of ours that it mentions, cached
    by the file's inode, size and times.

    A file that changed within the last seconds is read again: a further change might have the same time.
    """
    status = os.stat(path)
    if abs(time.time() - status.st_ctime) < _SETTLED_SECONDS:
        return _read_facts(str(path))
    state = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return _remembered_facts(str(path), state)


def _read_facts(path: str) -> _Facts:
    content = Path(path).read_bytes()
    text = content.decode(errors="replace")
    return hashlib.sha256(content).hexdigest(), tuple(INCLUDE.findall(text)), frozenset(_MACRO.findall(text))


@functools.lru_cache(maxsize=4096)
def _remembered_facts(path: str, state: tuple[int, ...]) -> _Facts:
    del state  # another state is another entry
    return _read_facts(path)


def includes_digest(text: str, folders: Sequence[Path]) -> str:
    """sha256 of the names and contents of the files that C++ in `text` includes from `folders`, however
    deep."""
    files = with_includes(_included_paths(INCLUDE.findall(text), folders), folders)
    return text_digest("\n".join(sorted(f"{_name_below(path, folders)} {_facts(path)[0]}" for path in files)))


@functools.cache
def mentioned_macros(source: Path, folders: tuple[Path, ...]) -> frozenset[str]:
    """The names VNPU_... in a C++ file of ours and in all that it includes. Taken once in a process."""
    return frozenset().union(*(_facts(path)[2] for path in with_includes([source], folders)))


def _name_below(path: Path, folders: Sequence[Path]) -> str:
    """A path relative to the first of the folders that it is in; of one that is in none, the last part."""
    return next((path.relative_to(f).as_posix() for f in folders if path.is_relative_to(f)), path.name)


@functools.cache
def tool_version(command: str) -> str:
    """The first line of `command --version`, or the error."""
    try:
        result = subprocess.run(
            [command, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command}: {error}"
    lines = (result.stdout or result.stderr).strip().splitlines()
    return lines[0] if lines else f"{command}: no version, exit code {result.returncode}"


def package_version(name: str) -> str:
    """The version of an installed package, as importlib.metadata has it, whose import takes its time."""
    for folder in filter(os.path.isdir, sys.path):
        for found in os.listdir(folder):
            if found.startswith(f"{name}-") and found.endswith(".dist-info"):
                return found.removeprefix(f"{name}-").removesuffix(".dist-info")
    from importlib.metadata import version

    return version(name)
