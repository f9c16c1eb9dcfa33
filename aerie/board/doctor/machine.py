"""The machine that the doctor examines: its files and its tools; and the type of a check's result.

All checks use this class, so that a test can replace it with a made-up machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from aerie.cli.checkpoints import DEMO
from aerie.runtime.npu import tools

MAX_TEXT_LENGTH = 400
"""Maximum characters of a text in a result: tools may print anything."""


class CheckStatus(StrEnum):
    """The state of a layer. Only FAILED and UNKNOWN prevent something."""

    OK = "ok"
    WARNING = "warning"  # works, and may disappoint
    FAILED = "failed"  # missing, too old, or broken
    UNKNOWN = "unknown"  # not determined; never counts as supported
    SKIPPED = "skipped"  # not looked at, because a layer below failed


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. fix: "" if nothing is to be fixed.

    absent: the layer was never set up on this machine; nothing of it is broken.
    """

    status: CheckStatus
    actual: str
    required: str
    fix: str = ""
    absent: bool = False

    def printable(self) -> CheckResult:
        """Return a copy without control characters, with texts of at most MAX_TEXT_LENGTH characters."""
        return replace(
            self, actual=_printable(self.actual), required=_printable(self.required), fix=_printable(self.fix)
        )


def _printable(text: str) -> str:
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return plain if len(plain) <= MAX_TEXT_LENGTH else f"{plain[:MAX_TEXT_LENGTH]} ..."


TOOL_TIMEOUT_S = 10.0
"""Time limit for a tool that prints its version, in seconds."""


@dataclass(frozen=True)
class ToolOutput:
    """What a tool printed, errors last. problem: why the output cannot be trusted; "" if it can."""

    text: str
    problem: str = ""

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line.strip() for line in self.text.splitlines() if line.strip()), "nothing")

    @property
    def last_line(self) -> str:
        """The last line that is not blank: of a Python traceback, the error."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return lines[-1] if lines else "nothing"


def _find(name: str) -> Path | None:
    return {**tools.FINDERS, **tools.STAGE_FINDERS}[name][0]()


@dataclass(frozen=True)
class ExaminedMachine:
    """A machine to examine; by default this one.

    root: the folder that has /proc, /sys, /dev, /opt and /etc. find: returns the path of a tool of
    runtime.npu.tools.FINDERS. version: returns the installed version of a Python distribution. cache_dir: the
    folder of all caches.
    """

    root: Path = Path("/")
    python: str = sys.executable
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    find: Callable[[str], Path | None] = _find
    version: Callable[[str], str | None] = tools.installed_version
    cache_dir: Path = Path("build")
    model: str = DEMO

    def path(self, absolute: str) -> Path:
        """A path of the machine, such as /dev/accel."""
        return self.root / absolute.lstrip("/")

    def read(self, absolute: str) -> str | None:
        """A small file's text, stripped; None if it cannot be read."""
        try:
            return self.path(absolute).read_text(errors="replace").strip()
        except OSError:
            return None

    def run_tool(self, command: Sequence[str], limit_s: float = TOOL_TIMEOUT_S) -> ToolOutput:
        """Run a tool and return its output. The tool and its children are killed after `limit_s` seconds."""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(self.environ),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return ToolOutput("", f"it could not be started ({error})")
        try:
            output = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return ToolOutput(_text(_kill(process)), f"no answer within {limit_s:g} s")
        return ToolOutput(_text(output), _end(process.returncode))

    def run_python(self, script: str, *arguments: str, limit_s: float = TOOL_TIMEOUT_S) -> ToolOutput:
        """Run Python code in a child process, so that a crash or a hang stays there."""
        return self.run_tool([self.python, "-c", script, *arguments], limit_s)


def _end(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"it was ended by {signal.Signals(-code).name}"
    return f"it ended with exit code {code}" if code else ""


def _kill(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """End the process and its children. Returns the output until then."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=1)
    except subprocess.TimeoutExpired:  # a child that left the group holds the pipe
        return b"", b""


def _text(streams: tuple[bytes, bytes]) -> str:
    return b"\n".join(streams).decode(errors="replace").strip()
