"""Hashes of everything that makes an artifact: texts, source trees, tools, the CPU."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

SOURCE_SUFFIXES = frozenset({".py", ".cc", ".cpp", ".h", ".hpp", ".inc"})

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file's content, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def key_of(ingredients: Mapping[str, str]) -> str:
    """16 hexadecimal digits that change when any ingredient does."""
    return text_digest(json.dumps(ingredients, sort_keys=True))[:16]


def files_digest(files: Iterable[Path], root: Path) -> str:
    """One hash of the files' contents and of their paths relative to `root`; order does not matter."""
    lines = [f"{path.relative_to(root).as_posix()} {file_digest(path)}" for path in set(files)]
    return text_digest("\n".join(sorted(lines)))


def tree_digest(root: Path, skip: Sequence[str] = ()) -> str:
    """One hash of all source files below `root`, but for what `root` itself holds under a name in `skip`."""
    files = (path for path in root.rglob("*") if path.suffix in SOURCE_SUFFIXES and path.is_file())
    return files_digest((path for path in files if path.relative_to(root).parts[0] not in skip), root)


def with_includes(sources: Iterable[Path]) -> set[Path]:
    """The C++ files and all that they `#include` from next to the includer, or from a source's folder."""
    waiting = [path for path in sources if path.is_file()]
    folders = {path.parent for path in waiting}
    reached: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        reached.add(path)
        names = INCLUDE.findall(path.read_text(errors="replace"))
        places = [folder / name for name in names for folder in (path.parent, *folders)]
        waiting += [place for place in places if place.is_file()]
    return reached


@functools.cache
def tool_version(command: str) -> str:
    """The first line of `command --version`, or why there is none."""
    try:
        result = subprocess.run(
            [command, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command}: {error}"
    lines = (result.stdout or result.stderr).strip().splitlines()
    return lines[0] if lines else f"{command}: no version, exit code {result.returncode}"


@functools.cache
def cpu_identity() -> str:
    """Machine type and, on Linux, a hash of the CPU's model and instruction-set flags."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return f"{platform.machine()} {platform.processor()}"
    first_core = cpuinfo.read_text(errors="replace").split("\n\n")[0].splitlines()
    kept = [line for line in first_core if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return f"{platform.machine()} {text_digest(chr(10).join(kept))[:16]}"
