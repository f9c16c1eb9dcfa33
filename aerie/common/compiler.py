"""The C++ compiler: which one, and with which flags."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.common import cpu, knobs
from aerie.common.compiler_records import remembered, version_of
from aerie.common.errors import KnobError, ToolchainError, UndefinedError

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

_UNDEFINED = re.compile("undefined (hidden )?(reference|symbol)|hidden symbol|Undefined symbols")
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
    """A C++ compiler and its flags.

    command: the words that start it; empty for one that is not there any more and made what is kept. flags:
    what it is given; but those for a CPU that is newer than itself. made_by: what the one that is not there
    said of itself.
    """

    command: tuple[str, ...]
    flags: tuple[str, ...]
    made_by: str = ""

    @property
    def version(self) -> str:
        """What it says of itself, in one line."""
        return self.made_by or version_of(self.command)

    @property
    def names_sources(self) -> bool:
        """Whether objects hold the paths of their sources: with debug information, for reports of
        sanitizers."""
        return "-g1" in self.flags

    def known(self, flags: Sequence[str]) -> list[str]:
        """The flags without those for a CPU that the compiler does not know. Raises KnobError where it does
        not know the one that VNPU_MARCH names, or this CPU has less than that one."""
        unknown = _unknown(self.command, cpu.flags())
        return [flag for flag in flags if flag not in unknown]

    def compile(self, source: Path, target: Path, extra: Sequence[str] = ()) -> None:
        """Compile one file to an object. Raises ToolchainError with the compiler's own lines, and KnobError.

        By way of pipes: a compiler that is killed leaves no temporary files.
        """
        if not self.command:
            raise _none()
        _check_links_cpp(self.command)
        self._run(
            [*self.known(self.flags), *extra, "-pipe", "-c", str(source), "-o", str(target)],
            f"compiling {source.name}",
        )

    def link(self, objects: Sequence[Path], target: Path) -> None:
        """Link objects to a shared object; undefined symbols are errors."""
        if not self.command:
            raise _none()
        names = [str(path) for path in objects]
        sanitizers = [flag for flag in self.flags if flag.startswith("-fsanitize")]
        # macOS's linker refuses what is undefined, weak references as well, unless the loader looks for it.
        whole = "-Wl,-undefined,dynamic_lookup" if sys.platform == "darwin" else "-Wl,--no-undefined"
        # The sanitizers' own symbols come with the process that loads the object.
        complete = [] if sanitizers else [whole]
        self._run(
            ["-shared", "-pthread", *sanitizers, *complete, *names, "-o", str(target), "-lm"], "linking"
        )

    def _run(self, arguments: Sequence[str], what: str) -> None:
        # A sanitizer that is preloaded watches programs, not their compiler.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        with subprocess.Popen(
            [*self.command, *arguments],
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
            error = UndefinedError if _UNDEFINED.search(said) else ToolchainError
            raise error(f"{what} failed; {shlex.join(self.command)} says:\n{said.strip()}")


# which one


def find_compiler(extra: Sequence[str] = ()) -> Compiler:
    """The compiler that the knobs or the system name. Raises ToolchainError when there is none."""
    found = present_compiler(extra)
    if found is None:
        raise _none()
    return found


def known_compilers(extra: Sequence[str] = ()) -> list[Compiler]:
    """The compiler that there is. Without one those that made what is kept, the last one first: they compile
    nothing, and what they made is found. Raises ToolchainError where there were none either.
    """
    found = present_compiler(extra)
    if found is not None:
        return [found]
    versions = dict.fromkeys(known.version for known in remembered())
    if not versions:
        raise _none()
    return [Compiler((), compiler_flags(extra), version) for version in versions]


def present_compiler(extra: Sequence[str] = ()) -> Compiler | None:
    """As find_compiler, but None when there is none. ToolchainError where VNPU_CXX names one that is gone."""
    for words in _candidates():
        path = shutil.which(words[0])
        if path:
            return Compiler((path, *words[1:]), compiler_flags(extra))
    if knobs.CXX.get():
        raise _none()
    return None


def compiler_flags(extra: Sequence[str]) -> tuple[str, ...]:
    """The flags that any compiler is given. Raises KnobError for a CPU in VNPU_MARCH that this one is not."""
    return (*_FLAGS, *cpu.defines(), f"-O{knobs.OPT.get()}", *cpu.flags(), *extra)


def _named() -> tuple[str, str]:
    """The variable that names a compiler, and what it says; empty where none does."""
    own = knobs.CXX.get().strip()
    return (knobs.CXX.name, own) if own else ("CXX", os.environ.get("CXX", "").strip())


def _candidates() -> list[list[str]]:
    """The commands to look for, in order, each in words: a compiler may come with a launcher and options."""
    variable, text = _named()
    if not text:
        return [["c++"], ["g++"], ["clang++"]]
    if shutil.which(text):  # a path, blanks and all
        return [[text]]
    try:
        return [shlex.split(text)]
    except ValueError as error:
        raise ToolchainError(
            f"{variable}={text!r} cannot be read ({error}): quote it as a shell takes it, such as "
            f"{variable}='ccache g++'"
        ) from None


def _none() -> ToolchainError:
    looked = ", ".join(words[0] for words in _candidates())
    return ToolchainError(
        f"no C++ compiler: looked for {looked}. Install one (Debian, Ubuntu: apt install g++; "
        "Fedora: dnf install gcc-c++) or name it with VNPU_CXX"
    )


_C_DRIVER = re.compile(r"(.*?)(gcc|clang|cc)((-[\d.]+)?)$")
_CPP_DRIVERS = {"gcc": "g++", "clang": "clang++", "cc": "c++"}


@functools.cache
def _links_cpp(command: tuple[str, ...]) -> bool:
    """Whether the command links C++'s library, as it tells without doing it; True where it does not tell."""
    with tempfile.TemporaryDirectory(prefix="vnpu-") as folder:
        probe = ["-###", "-shared", "-x", "c++", os.devnull, "-o", "probe.so"]
        try:
            done = subprocess.run(
                [*command, *probe], capture_output=True, text=True, timeout=30, check=False, cwd=folder
            )
        except (OSError, subprocess.TimeoutExpired):
            return True
    words = done.stderr.replace('"', " ").split()
    return "-lc" not in words or not {"-lstdc++", "-lc++"}.isdisjoint(words)


def _check_links_cpp(command: tuple[str, ...]) -> None:
    """Raises ToolchainError for a compiler of C, which takes C++ and then finds none of its library."""
    if _links_cpp(command):
        return
    variable, text = _named()
    match = _C_DRIVER.match(text)
    better = f"{match[1]}{_CPP_DRIVERS[match[2]]}{match[3]}" if match else "g++"
    raise ToolchainError(
        f"{variable}='{text or command[0]}' is a compiler of C: it does not link the library of C++. Name "
        f"the one of C++ (g++ for gcc, clang++ for clang): {variable}='{better}'"
    )


@functools.cache
def _unknown(command: tuple[str, ...], flags: tuple[str, ...]) -> frozenset[str]:
    """Those of the flags for a CPU that the compiler does not know.

    Raises KnobError where that is a CPU by its name, and where this CPU is less than that one.
    """
    taken, said = _macros(command, flags)
    if taken:
        if cpu.named():
            cpu.check_macros(said)
        return frozenset()
    if cpu.named():
        raise KnobError(
            f"{knobs.MARCH.name}='{cpu.named()}' cannot be used: {shlex.join(command)} does not know it "
            f"({said}); give one word that its -march takes, or unset it for all that this CPU has "
            f"({cpu.NATIVE})"
        )
    return frozenset(flag for flag in flags if not _macros(command, (flag,))[0])


def _macros(command: Sequence[str], flags: Sequence[str]) -> tuple[bool, str]:
    """Whether the compiler takes the flags; the macros that it defines then, else its first error.

    Where it fails for another reason it is said to take them, so that compiling tells of it.
    """
    probe = ["-E", "-dM", "-x", "c++", os.devnull]
    try:
        done = subprocess.run(
            [*command, *flags, *probe], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return True, ""
    if done.returncode == 0:
        return True, done.stdout
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    words = {part for flag in flags for part in flag.split("=")}
    about = next((line for line in errors if any(word in line for word in words)), None)
    return (True, "") if about is None else (False, about.partition("error: ")[2].strip())
