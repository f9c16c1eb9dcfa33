"""The errors of the virtual NPU. A message gives the value, the limit, the consequence, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from aerie.common.errors import ProgramError


class VnpuUsageError(ProgramError):
    """A wrong command line."""

    kind = "usage"


class OptionError(ProgramError):
    """An option of a build or a run has a wrong value, or contradicts another option."""

    kind = "option"


class UnsupportedOpError(ProgramError):
    """The program has an operation, or an assembly form of one, that the virtual NPU does not execute."""

    kind = "unsupported"


class UnsupportedTypeError(UnsupportedOpError):
    """A type without C++ in the virtual NPU. The message does not name an operation yet."""


class VnpuArgumentError(ProgramError):
    """The arguments do not fit the entry."""

    kind = "arguments"


@dataclass(frozen=True)
class ErrorReport:
    """What a message says, in parts.

    kind: one word of `ERROR_KINDS`, or that of another run error. entry: the function that ran. line: of the
    MLIR text; 0 if the message names none. op: the operation there, with the name of its channel or function.
    place: the tile or body that executed it, `herd @h (1, 0) of launch (3)`; empty outside of them. text: the
    rest, in lines: what is wrong, what follows, and what to do.
    """

    kind: str
    entry: str
    line: int
    op: str
    place: str
    text: str

    @classmethod
    def of(cls, kind: str, message: str) -> ErrorReport:
        """The parts of a message of a run."""
        found = _MESSAGE.match(message)
        if found is None:
            entry, _, text = message.partition(": ")
            writer = _WRITER.search(message)
            line, op, place = writer.groups(default="") if writer else ("0", "", "")
            return cls(kind, entry, int(line), op, place, text)
        entry, line, op, place, text = found.groups(default="")
        return cls(kind, entry, int(line), op, place, text)


_MESSAGE = re.compile(
    r"(?P<entry>\S+): line (?P<line>\d+): (?P<op>[^\n]*?)"
    r"(?: in (?P<place>(?:herd|segment|launch)[^:\n]*))?: (?P<text>.*)",
    re.DOTALL,
)


_WRITER = re.compile(
    r"written by line (?P<line>\d+): (?P<op>[^\n;]*?)"
    r"(?: in (?P<place>(?:herd|segment|launch)[^;\n]*))?(?:;|\n|$)"
)
"""What an error of `expect` ends with: the operation that wrote the wrong number."""


class VirtualNpuRuntimeError(ProgramError):
    """The program failed while it ran: an access outside its buffer, a division by zero, ..."""

    kind = "error"
    """What failed, in one word: one of `ERROR_KINDS`."""
    record: dict[str, Any] | None = None
    """The stats and trace that the run recorded before it failed."""

    @property
    def report(self) -> ErrorReport:
        """The message in parts."""
        return ErrorReport.of(self.kind, str(self))


class VirtualNpuDeadlock(VirtualNpuRuntimeError):  # noqa: N818 - the name says it all
    """No tile and no engine of the program can make progress. The message lists what each waits for."""

    kind = "deadlock"


class ScheduleError(VirtualNpuRuntimeError):
    """The results depend on the order in which engines and tiles take turns."""

    kind = "schedule"


class ExpectationError(VirtualNpuRuntimeError):
    """An argument differs from what was expected after the run."""

    kind = "expect"
    difference: Any = None
    """The first difference, an `aerie.virtual_npu.arrays.ArrayDifference`."""
    writer: str = ""
    """What wrote the element last: `line 30: air.channel.get @out in launch (3)`; empty if not known."""


class GarbageError(VirtualNpuRuntimeError):
    """The results depend on what memory held before the program wrote it."""

    kind = "garbage"


class StopNotReachedError(VirtualNpuRuntimeError):
    """The run ended, and did not come to a place where it shall stop."""

    kind = "stop"


class SanitizerError(VirtualNpuRuntimeError):
    """AddressSanitizer or UndefinedBehaviorSanitizer ended the run; the message ends with its report."""

    kind = "sanitizer"


class CrashError(VirtualNpuRuntimeError):
    """A signal ended the process that ran the program."""

    kind = "crash"


ERROR_KINDS = (
    "error", "deadlock", "race", "uninitialised", "outside", "freed", "mismatch", "leak",
    "misaligned", "lock", "offset",
)  # fmt: skip
"""The kinds of run errors, in the order of `Failure::Kind` in include/vnpu/base.h, which counts from 1."""

STOPPED = len(ERROR_KINDS) + 1
"""The `Failure::Kind` of a run that the handler of a signal, or a StopFlag, ended."""
AT_STOP_POINT = STOPPED + 1
"""The `Failure::Kind` of a run that reached a place where it shall stop."""


def run_error(kind: int, message: str, record: dict[str, Any] | None = None) -> VirtualNpuRuntimeError:
    """The error for a run that ended with a `Failure::Kind`."""
    name = ERROR_KINDS[kind - 1]
    error = VirtualNpuDeadlock(message) if name == "deadlock" else VirtualNpuRuntimeError(message)
    error.kind = name
    error.record = record
    return error
