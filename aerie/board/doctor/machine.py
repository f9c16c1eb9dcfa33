"""The machine under examination: its files, its tools, how a tool is asked; and what a check says of it.

Everything a check looks at comes from here, so that a test can put a made-up machine in its place.
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

LONGEST = 400
"""Characters of a text in a finding; tools may say anything."""


class Status(StrEnum):
    """How a layer stands. Only FAILED and UNKNOWN keep something from working."""

    OK = "ok"
    WARNING = "warning"  # works, and may disappoint
    FAILED = "failed"  # missing, too old, or broken
    UNKNOWN = "unknown"  # it could not be told; never taken for a yes
    SKIPPED = "skipped"  # not looked at, because a layer below failed


@dataclass(frozen=True)
class Finding:
    """One layer, as it was found. `fix` is empty where there is nothing to mend.

    absent: it is not there at all, as on a machine that was never set up for it; nothing of it is broken.
    """

    status: Status
    found: str
    wanted: str
    fix: str = ""
    absent: bool = False

    def printable(self) -> Finding:
        """The same with nothing that a terminal would act on, and no text longer than LONGEST characters."""
        return replace(
            self, found=_printable(self.found), wanted=_printable(self.wanted), fix=_printable(self.fix)
        )


def _printable(text: str) -> str:
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]} ..."


ANSWER_S = 10.0
"""How long a tool may take to say its version, in seconds."""


@dataclass(frozen=True)
class Answer:
    """What a tool said: its output with errors last, and why it cannot be trusted ("" if it can)."""

    text: str
    trouble: str = ""

    @property
    def first_line(self) -> str:
        """The first line that says anything."""
        return next((line.strip() for line in self.text.splitlines() if line.strip()), "nothing")

    @property
    def last_line(self) -> str:
        """The last line that says anything: of a Python traceback, the error."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return lines[-1] if lines else "nothing"


def _find(name: str) -> Path | None:
    return {**tools.FINDERS, **tools.STAGE_FINDERS}[name][0]()


@dataclass(frozen=True)
class Machine:
    """A machine to examine; by default this one.

    root: where /proc, /sys, /dev, /opt and /etc lie. find: the path of a tool of runtime.npu.tools.FINDERS.
    version: the installed version of a Python distribution. cache_dir: of all that is kept.
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
        """A small file's text without its outer blanks; None where it cannot be read."""
        try:
            return self.path(absolute).read_text(errors="replace").strip()
        except OSError:
            return None

    def ask(self, command: Sequence[str], limit_s: float = ANSWER_S) -> Answer:
        """Run a tool and take down what it says; it and its children are killed after `limit_s` seconds."""
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
            return Answer("", f"it could not be started ({error})")
        try:
            said = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return Answer(_text(_kill(process)), f"no answer within {limit_s:g} s")
        return Answer(_text(said), _end(process.returncode))

    def ask_python(self, script: str, *arguments: str, limit_s: float = ANSWER_S) -> Answer:
        """Run Python code in a process of its own, so that a crash or a hang there stays there."""
        return self.ask([self.python, "-c", script, *arguments], limit_s)


def _end(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"it was ended by {signal.Signals(-code).name}"
    return f"it ended with exit code {code}" if code else ""


def _kill(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """End the process and its children; what it had said until then."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=1)
    except subprocess.TimeoutExpired:  # a child that left the group holds the pipe
        return b"", b""


def _text(said: tuple[bytes, bytes]) -> str:
    return b"\n".join(said).decode(errors="replace").strip()
