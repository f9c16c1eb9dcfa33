"""Child processes for programs that may crash, so that the user gets a message.

An external kernel can write anywhere, so the command line continues in a child, and its parent reports how
the child ends. AddressSanitizer must be loaded first, so `--sanitize` runs the command line again with the
sanitizer preloaded, and its report becomes our error.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from aerie import rooms
from aerie.common.compiler import find_compiler
from aerie.common.errors import ToolchainError
from aerie.virtual_npu.console import print_error
from aerie.virtual_npu.errors import CrashError, OptionError, SanitizerError
from aerie.virtual_npu.options import BuildOptions

CRASHED = 1

_SUSPECTS = (
    "before it ran; please report it with the program",
    "an external kernel may have left its buffers; run it with --sanitize to see where",
    "without checks it may have left its buffers; run it without --no-checks to see where",
    "it calls no external kernel, so this is a defect of the virtual NPU; please report it with the program",
)
_suspect = mmap.mmap(-1, 1)
"""The index of the suspect for a crash: one byte that parent and child share."""


def announce_run(kernels: Sequence[str], checks: bool) -> None:
    """Record what runs now, for the message of a crash: the external kernels, and whether checks are on."""
    _suspect[0] = 1 if kernels else 3 if checks else 2


def fork_and_watch() -> None:
    """Fork and return in the child. The parent forwards signals and exits with the child's exit status."""
    if not hasattr(os, "fork"):
        return
    child = os.fork()
    if child == 0:
        end_with_parent()
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: _stop(child, number))
    _, status = os.waitpid(child, 0)
    sys.exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else _report_signal(os.WTERMSIG(status)))


SECONDS_TO_STOP = 3
"""After Ctrl-C: how long the child may take to say where everything stands."""


_terminated: list[int] = []
"""The child, once it had to be ended because it did not say where everything stands."""


def _stop(child: int, number: int) -> None:
    """Forward a signal. A loop without checks and external C++ do not see SIGINT, so SIGTERM follows."""
    os.kill(child, number)
    if number == signal.SIGINT:
        signal.signal(signal.SIGALRM, lambda *_: _terminate(child))
        signal.alarm(SECONDS_TO_STOP)


def _terminate(child: int) -> None:
    _terminated.append(child)
    os.kill(child, signal.SIGTERM)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, even by SIGKILL (Linux only)."""
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _report_signal(number: int) -> int:
    if number == signal.SIGTERM and _terminated:
        print(
            f"stopped; for {SECONDS_TO_STOP} s it did not say where it stands: external C++ does not, nor "
            "does a loop without checks, so run it without --no-checks",
            file=sys.stderr,
        )
        return 128 + signal.SIGINT
    if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        print("stopped", file=sys.stderr)
        return 128 + number
    name = signal.Signals(number).name
    memory = "; the system may have been out of memory" if number == signal.SIGKILL else ""
    print_error(
        CrashError(f"the program crashed ({name}){memory}: {_SUSPECTS[_suspect[0]]}"),
        "--json" in sys.argv,
    )
    return CRASHED


ADDRESS = re.compile(r"ERROR: AddressSanitizer: ([\w-]+)")
ACCESS = re.compile(r"^((?:READ|WRITE) of size \d+)", re.MULTILINE)
FRAME = re.compile(r"^\s+#\d+ 0x[0-9a-f]+ in (.+) (\S+?):(\d+)(?::\d+)?$", re.MULTILINE)
UNDEFINED = re.compile(r"^(\S+?):(\d+):(?:\d+:)? runtime error: (.+)$", re.MULTILINE)


def is_asan_loaded() -> bool:
    """Whether AddressSanitizer is part of this process."""
    return hasattr(ctypes.CDLL(None), "__asan_init")


def check_asan_loaded() -> None:
    """Raises OptionError if a program built with sanitizers would end this process."""
    if not is_asan_loaded():
        raise OptionError(
            "sanitize=True makes a program that only runs in a process with AddressSanitizer preloaded: use "
            "`aerie vnpu run --sanitize`, or start Python with LD_PRELOAD=" + asan_runtime()
        )


def asan_runtime() -> str:
    """The path of the compiler's AddressSanitizer runtime. Raises ToolchainError if there is none."""
    command = find_compiler(BuildOptions(sanitize=True).compiler_flags).command
    for name in ("libasan.so", f"libclang_rt.asan-{platform.machine()}.so"):
        done = subprocess.run(
            [*command, f"-print-file-name={name}"], capture_output=True, text=True, check=False
        )
        path = Path(done.stdout.strip())
        if path.is_absolute() and path.exists():
            return str(path.resolve())
    raise ToolchainError(
        f"{shlex.join(command)} has no AddressSanitizer runtime (libasan.so): install it (Debian, Ubuntu: "
        "apt install libasan8 or the version of the compiler), or leave out --sanitize"
    )


def rerun_sanitized(words: Sequence[str]) -> int:
    """Run `aerie vnpu` with these words under the sanitizers. Returns its exit status.

    Raises SanitizerError with their report.
    """
    with tempfile.TemporaryDirectory(prefix="vnpu-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "aerie.virtual_npu", *words],
            env=_environment(Path(folder) / "report"),
            text=True,
            capture_output=True,
            check=False,
        )
        reports = [path.read_text(errors="replace") for path in sorted(Path(folder).iterdir())]
    if UNDEFINED.search(done.stderr):
        reports.append(done.stderr)
    if reports:
        raise SanitizerError("\n".join([summarize_report(reports[0]), *shorten_report(reports[0])]))
    print(done.stderr, end="", file=sys.stderr)
    print(done.stdout, end="")
    return done.returncode


def _environment(log: Path) -> dict[str, str]:
    # Python keeps what it allocates at its exit: leaks are not ours to find.
    common = f"log_path={log}:halt_on_error=1:detect_leaks=0"
    path = os.pathsep.join(filter(None, [str(rooms.SEARCH_PATH), os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "LD_PRELOAD": asan_runtime(),
        "ASAN_OPTIONS": common,
        "UBSAN_OPTIONS": f"{common}:print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": path,
    }


def summarize_report(report: str) -> str:
    """A sanitizer's report in one line: source, line, function and fault."""
    undefined = UNDEFINED.search(report)
    if undefined:
        path, line, what = undefined.groups()
        return f"{Path(path).name}:{line}: undefined behaviour: {what}"
    kind, access = ADDRESS.search(report), ACCESS.search(report)
    what = ", ".join(match[1] for match in (kind, access) if match) or "the sanitizer stopped the run"
    for function, path, line in FRAME.findall(report):
        if Path(path).suffix in (".cc", ".cpp", ".h", ".hpp") and "sanitizer" not in path:
            return f"{Path(path).name}:{line}: in {function}: {what}"
    return what


def shorten_report(report: str) -> list[str]:
    """The lines of a report, without stack frames of Python and the runtime, and without memory dumps."""
    lines: list[str] = []
    outside = False
    for line in report.partition("Shadow bytes")[0].splitlines():
        is_frame = re.match(r"\s+#\d+ ", line) is not None
        outside = is_frame and (outside or " in work_on " in line or "call_entry" in line)
        if line.strip("= ") and not outside:
            lines.append(line.rstrip())
    return lines
