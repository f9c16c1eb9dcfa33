"""The errors that every room knows. A message gives the value, the limit, the consequence, and what to do."""

from __future__ import annotations

import os
import sys
from pathlib import Path


class AerieError(Exception):
    """The base of the errors that a caller can cause and correct.

    Errors that reach a caller and do not derive from it: a TypeError for a wrong type in the rooms below the
    Python API, and the errors of `virtual_npu.pyxrt`, which are RuntimeErrors as pyxrt's own are.

    Each can be pickled, with its attributes, whatever its constructor takes: other processes raise it too.
    """

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[AerieError], arguments: tuple[object, ...], attributes: dict[str, object]
) -> AerieError:
    """An error as it was pickled. Its constructor is not called, which may take something else."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(attributes)
    return error


class UserError(AerieError):
    """A request that cannot be met."""


class UsageError(UserError):
    """A wrong command line."""


class ProgramError(AerieError):
    """A program cannot be built or run."""

    kind = "input"
    """The kind of the error in JSON."""


class KnobError(ProgramError):
    """An environment variable has a wrong value."""

    kind = "knob"


class ToolchainError(ProgramError):
    """There is no C++ compiler, or it refused generated code or an external kernel."""

    kind = "toolchain"

    @staticmethod
    def of_system(what: object, error: OSError) -> ToolchainError:
        """The error for a file or folder that the system refused while `what` was built."""
        return ToolchainError(
            f"cannot build {what}: {error}. Free space, or choose another folder: AERIE_CACHE "
            "names the folder of built programs, and VNPU_CACHE=off stores none"
        )


class UndefinedError(ToolchainError):
    """The linker found undefined symbols. The message is the linker's output."""

    def names(self, symbol: str) -> bool:
        """Whether the linker's output names a function."""
        import re  # every command waits for what is imported above

        return re.search(rf"\b{re.escape(symbol)}\b", str(self)) is not None


def own_command(tool: str, module: str) -> str:
    """The command that starts a tool of this Python's environment, which may not be on PATH."""
    import shutil

    path = Path(sys.executable).with_name(tool)
    if shutil.which(tool) == str(path):
        return tool
    return _typed(path) if os.access(path, os.X_OK) else f"{_typed(Path(sys.executable))} -m {module}"


def _typed(path: Path) -> str:
    """A path as short as it can be typed in the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
