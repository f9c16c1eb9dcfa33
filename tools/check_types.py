"""`python tools/check_types.py`: mypy over the whole tree, each file under the name that it is imported by.

mypy takes a module's name from its path, and five rooms of `aerie` lie beside it (aerie/rooms.py); so this
names them to it. What is checked and how strictly stands in pyproject.toml.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mypy.errors import CompileError
from mypy.fscache import FileSystemCache
from mypy.main import process_options, run_build
from mypy.modulefinder import BuildSource

from aerie import rooms

TOP = rooms.SEARCH_PATH


def main() -> int:
    _, options = process_options(["setup.py"])
    try:
        _, messages, _ = run_build(
            list(sources()), options, FileSystemCache(), time.time(), sys.stdout, sys.stderr
        )
    except CompileError as error:
        print(*error.messages, sep="\n")
        return 2
    print(f"{len(messages)} lines of errors" if messages else "no error of types")
    return bool(messages)


def sources() -> Iterator[BuildSource]:
    """Every Python file that is ours, but for lit's, which lit runs under names of its own."""
    folders = {f"aerie.{room}": rooms.folder(room) for room in rooms.AT_THE_TOP}
    for package, folder in {"aerie": rooms.PACKAGE, "benchmarks": TOP / "benchmarks", **folders}.items():
        for path in sorted(folder.rglob("*.py")):
            yield BuildSource(str(path.relative_to(TOP)), module_name(package, path.relative_to(folder)))
    for path in sorted((TOP / "tests").rglob("*.py")):
        if "lit" not in path.parts:
            yield BuildSource(
                str(path.relative_to(TOP)), module_name("tests", path.relative_to(TOP / "tests"))
            )
    tools = [*sorted((TOP / "tools").glob("*.py")), *sorted((TOP / "tools" / "docs").glob("*.py"))]
    examples = sorted((TOP / "examples").rglob("*.py"))
    for path in [*tools, TOP / "setup.py", *examples]:
        yield BuildSource(str(path.relative_to(TOP)), path.stem)


def module_name(package: str, path: Path) -> str:
    """The dotted name of a file, by its path below its package's folder."""
    parts = path.with_suffix("").parts
    return ".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))


if __name__ == "__main__":
    sys.exit(main())
