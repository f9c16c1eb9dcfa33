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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.common import cpu, knobs
from aerie.common.compiler_records import compiler_version, recorded_compilers
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
"""Running compilers of all threads. Each has a session of its own, so that a kill reaches its children."""


def stop_compilers() -> None:
    """Kill the running compilers of all threads. Their callers get a ToolchainError."""
    for process in tuple(_RUNNING):
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler and its flags.

    command: the words that start it; empty for a compiler that is gone, whose programs are still in the
    store. flags: its arguments, without those for a CPU that is newer than it. made_by: the version text of a
    compiler that is gone.
    """

    command: tuple[str, ...]
    flags: tuple[str, ...]
    recorded_version: str = ""

    @property
    def version(self) -> str:
        """The first line of `--version`, with the command's options."""
        return self.recorded_version or compiler_version(self.command)

    @property
    def names_sources(self) -> bool:
        """Whether objects contain the paths of their sources (debug information for sanitizer reports)."""
        return "-g1" in self.flags

    def supported_flags(self, flags: Sequence[str]) -> list[str]:
        """The flags without the CPU flags that the compiler does not know.

        Raises KnobError if the compiler does not know the CPU in VNPU_MARCH, or this CPU lacks its features.
        """
        unknown = _unsupported_cpu_flags(self.command, cpu.cpu_flags())
        return [flag for flag in flags if flag not in unknown]

    def compile(self, source: Path, target: Path, extra: Sequence[str] = ()) -> None:
        """Compile one file to an object. Raises ToolchainError with the compiler's own lines, and KnobError.

        A killed compiler leaves no files elsewhere: `-pipe` makes none but for a precompiled header,
        and those lie beside the object.
        """
        if not self.command:
            raise _no_compiler_error()
        _check_links_cpp(self.command, target.parent)
        self._run(
            [*self.supported_flags(self.flags), *extra, "-pipe", "-c", str(source), "-o", str(target)],
            f"compiling {source.name}",
            TMPDIR=str(target.parent),
        )

    def link(self, objects: Sequence[Path], target: Path) -> None:
        """Link objects to a shared object; undefined symbols are errors.

        What a killed linker leaves lies beside the target.
        """
        if not self.command:
            raise _no_compiler_error()
        names = [str(path) for path in objects]
        sanitizers = [flag for flag in self.flags if flag.startswith("-fsanitize")]
        # macOS's linker refuses what is undefined, weak references as well, unless the loader looks for it.
        whole = "-Wl,-undefined,dynamic_lookup" if sys.platform == "darwin" else "-Wl,--no-undefined"
        # The sanitizers' own symbols come with the process that loads the object.
        complete = [] if sanitizers else [whole]
        words = ["-shared", "-pthread", *sanitizers, *complete, *names, "-o", str(target), "-lm"]
        self._run(words, "linking", TMPDIR=str(target.parent))

    def _run(self, arguments: Sequence[str], what: str, **variables: str) -> None:
        # A sanitizer that is preloaded watches programs, not their compiler.
        inherited = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        environment = {**inherited, **variables}
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
                _, error_text = process.communicate()
            except BaseException:  # Ctrl-C, which a session of its own does not get
                _kill(process)
                raise
            finally:
                _RUNNING.discard(process)
        if process.returncode != 0:
            error = UndefinedError if _UNDEFINED.search(error_text) else ToolchainError
            raise error(f"{what} failed; {shlex.join(self.command)} says:\n{error_text.strip()}")


# which one


def find_compiler(extra: Sequence[str] = ()) -> Compiler:
    """The compiler that VNPU_CXX, CXX or the system names. Raises ToolchainError if there is none."""
    compiler = present_compiler(extra)
    if compiler is None:
        raise _no_compiler_error()
    return compiler


def known_compilers(extra: Sequence[str] = ()) -> list[Compiler]:
    """The installed compiler; without one, the recorded compilers, the last one first.

    A recorded compiler cannot compile, but its artifacts are found in the store. Raises ToolchainError if
    there is neither.
    """
    compiler = present_compiler(extra)
    if compiler is not None:
        return [compiler]
    versions = dict.fromkeys(record.version for record in recorded_compilers())
    if not versions:
        raise _no_compiler_error()
    return [Compiler((), compiler_flags(extra), version) for version in versions]


def present_compiler(extra: Sequence[str] = ()) -> Compiler | None:
    """The installed compiler, or None. Raises ToolchainError if VNPU_CXX names one that does not exist."""
    for words in _candidates():
        path = shutil.which(words[0])
        if path:
            return Compiler((path, *words[1:]), compiler_flags(extra))
    if knobs.CXX.get():
        raise _no_compiler_error()
    return None


def compiler_flags(extra: Sequence[str]) -> tuple[str, ...]:
    """The flags for every compiler. Raises KnobError if this CPU lacks features of the one in VNPU_MARCH."""
    return (*_FLAGS, *cpu.cpu_defines(), f"-O{knobs.OPT.get()}", *cpu.cpu_flags(), *extra)


def _named_command() -> tuple[str, str]:
    """(name, value) of the environment variable that names the compiler; the value is empty if none does."""
    own = knobs.CXX.get().strip()
    return (knobs.CXX.name, own) if own else ("CXX", os.environ.get("CXX", "").strip())


def _candidates() -> list[list[str]]:
    """The commands to try, in order, split into words: a launcher and options may come with the compiler."""
    variable, text = _named_command()
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


def _no_compiler_error() -> ToolchainError:
    looked = ", ".join(words[0] for words in _candidates())
    return ToolchainError(
        f"no C++ compiler: looked for {looked}. Install one (Debian, Ubuntu: apt install g++; "
        "Fedora: dnf install gcc-c++) or name it with VNPU_CXX"
    )


_C_DRIVER = re.compile(r"(.*?)(gcc|clang|cc)((-[\d.]+)?)$")
_CPP_DRIVERS = {"gcc": "g++", "clang": "clang++", "cc": "c++"}


_LINKS_CPP: dict[tuple[str, ...], bool] = {}
"""What `_links_cpp` said of the commands of this process."""


def _links_cpp(command: tuple[str, ...], work: Path) -> bool:
    """Whether the command links the C++ library, according to a dry run (`-###`); True if that fails.

    work: where a command that makes a file all the same puts it.
    """
    probe = ["-###", "-shared", "-x", "c++", os.devnull, "-o", "probe.so"]
    try:
        done = subprocess.run(
            [*command, *probe], capture_output=True, text=True, timeout=30, check=False, cwd=work
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    words = done.stderr.replace('"', " ").split()
    return "-lc" not in words or not {"-lstdc++", "-lc++"}.isdisjoint(words)


def _check_links_cpp(command: tuple[str, ...], work: Path) -> None:
    """Raises ToolchainError for a C compiler: it compiles C++ but does not link the C++ library."""
    if command not in _LINKS_CPP:
        _LINKS_CPP[command] = _links_cpp(command, work)
    if _LINKS_CPP[command]:
        return
    variable, text = _named_command()
    match = _C_DRIVER.match(text)
    better = f"{match[1]}{_CPP_DRIVERS[match[2]]}{match[3]}" if match else "g++"
    raise ToolchainError(
        f"{variable}='{text or command[0]}' is a compiler of C: it does not link the library of C++. Name "
        f"the one of C++ (g++ for gcc, clang++ for clang): {variable}='{better}'"
    )


@functools.cache
def _unsupported_cpu_flags(command: tuple[str, ...], flags: tuple[str, ...]) -> frozenset[str]:
    """The CPU flags that the compiler does not know.

    Raises KnobError for an unknown CPU name, and if this CPU lacks features of the named one.
    """
    accepted, output = _macros(command, flags)
    if accepted:
        if cpu.named_cpu():
            cpu.check_macros(output)
        return frozenset()
    if cpu.named_cpu():
        raise KnobError(
            f"{knobs.MARCH.name}='{cpu.named_cpu()}' cannot be used: {shlex.join(command)} does not know it "
            f"({output}); give one word that its -march takes, or unset it for all that this CPU has "
            f"({cpu.NATIVE})"
        )
    return frozenset(flag for flag in flags if not _macros(command, (flag,))[0])


def _macros(command: Sequence[str], flags: Sequence[str]) -> tuple[bool, str]:
    """(True, the macros that it defines) if the compiler accepts the flags, else (False, its first error).

    A failure for another reason counts as accepted: the compilation then reports it.
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
