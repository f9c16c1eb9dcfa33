"""The C++ compiler: which one, and with which flags."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.virtual_npu import knobs
from aerie.virtual_npu.errors import ToolchainError
from aerie.virtual_npu.options import EXACT, BuildOptions

PACKAGE = Path(__file__).resolve().parent
INCLUDE = PACKAGE / "include"
OWN_KERNELS = PACKAGE.parent / "kernels_cc"

_FLAGS = [
    "-std=c++20",
    "-fPIC",
    "-pthread",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wno-psabi",
]

_SANITIZE = (
    "-fsanitize=address,undefined",
    "-fno-sanitize=alignment",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-g1",
)


_RUNNING: set[subprocess.Popen[str]] = set()
"""Compilers under way in any thread, each with a session of its own, so that what it starts ends with it."""


def stop() -> None:
    """Kill the compilers that run for any thread; their callers get a ToolchainError."""
    for process in tuple(_RUNNING):
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler and its flags."""

    path: str
    flags: tuple[str, ...]

    @property
    def names_sources(self) -> bool:
        """Whether objects hold the paths of their sources: with debug information, for reports of
        sanitizers."""
        return "-g1" in self.flags

    def compile(self, source: Path, target: Path, extra: Sequence[str] = ()) -> None:
        """Compile one file to an object. Raises ToolchainError with the compiler's own lines.

        By way of pipes: a compiler that is killed leaves no temporary files.
        """
        self._run(
            [*self.flags, *extra, "-pipe", "-c", str(source), "-o", str(target)], f"compiling {source.name}"
        )

    def link(self, objects: Sequence[Path], target: Path) -> None:
        """Link objects to a shared object; undefined symbols are errors."""
        names = [str(path) for path in objects]
        sanitizers = [flag for flag in self.flags if flag.startswith("-fsanitize")]
        # The sanitizers' own symbols come with the process that loads the object.
        complete = [] if sanitizers else ["-Wl,--no-undefined"]
        self._run(
            ["-shared", "-pthread", *sanitizers, *complete, *names, "-o", str(target), "-lm"], "linking"
        )

    def _run(self, arguments: Sequence[str], what: str) -> None:
        # A sanitizer that is preloaded watches programs, not their compiler.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        with subprocess.Popen(
            [self.path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        ) as process:
            _RUNNING.add(process)
            try:
                _, said = process.communicate()
            except BaseException:  # Ctrl-C, which a session of its own does not get
                _kill(process)
                raise
            finally:
                _RUNNING.discard(process)
        if process.returncode != 0:
            raise ToolchainError(f"{what} failed; {self.path} says:\n{said.strip()}")


def find_compiler(options: BuildOptions = EXACT) -> Compiler:
    """The compiler that the knobs or the system name. Raises ToolchainError when there is none."""
    named = knobs.CXX.get() or os.environ.get("CXX", "")
    candidates = [named] if named else ["c++", "g++", "clang++"]
    for candidate in candidates:
        path = shutil.which(candidate)
        if path:
            march = knobs.MARCH.get()
            tuning = () if march == "none" else (f"-march={march}",)
            sanitize = _SANITIZE if options.sanitize else ()
            return Compiler(path, (*_FLAGS, f"-O{knobs.OPT.get()}", *tuning, *sanitize, *options.defines))
    raise ToolchainError(
        f"no C++ compiler: looked for {', '.join(candidates)}. Install one (Debian, Ubuntu: apt install g++; "
        "Fedora: dnf install gcc-c++) or name it with VNPU_CXX"
    )
