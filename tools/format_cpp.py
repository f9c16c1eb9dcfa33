"""`python tools/format_cpp.py [--check] [FILE ...]`: clang-format over all C++ of the tree, or files.

The style is in .clang-format, and the version of clang-format in constraints.txt: another version may lay
out a few lines otherwise. With --check nothing is written; what differs is printed, and the exit status is 1.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
STYLE = PROJECT / ".clang-format"
SUFFIXES = frozenset((".cc", ".h", ".hpp"))


def sources() -> list[Path]:
    """Every C++ file of the tree, sorted."""
    rooms = runpy.run_path(str(PROJECT / "aerie" / "rooms.py"))["AT_THE_TOP"]
    folders = [PROJECT / name for name in ("aerie", "benchmarks", "tests", *rooms)]
    return sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in SUFFIXES)


def clang_format() -> str:
    """The path of the program in this environment. Raises SystemExit where it is not installed."""
    try:
        from clang_format import get_executable
    except ImportError:
        raise SystemExit(
            "error: clang-format is not installed here, so no C++ was looked at; make lint installs it into "
            ".venv: run .venv/bin/python tools/format_cpp.py"
        ) from None
    return str(get_executable("clang-format"))


def main(words: Sequence[str]) -> int:
    files = [word for word in words if word != "--check"] or sources()
    how = ("--dry-run", "--Werror") if "--check" in words else ("-i",)
    done = subprocess.run([clang_format(), f"--style=file:{STYLE}", *how, *files], cwd=PROJECT, check=False)
    if done.returncode and "--check" in words:
        print(
            "error: C++ is not formatted (above); .venv/bin/python tools/format_cpp.py does it",
            file=sys.stderr,
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
