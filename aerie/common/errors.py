"""The errors that every room knows. Each message says what was given, the limit, and what to do."""

from __future__ import annotations

import os
import sys
from pathlib import Path


class AerieError(Exception):
    """What a caller can cause and mend. The message says what was given, the limit, and what to do instead.

    Every error of this package that reaches a caller derives from it, but for a wrong type, which is a
    TypeError, and what `virtual_npu.pyxrt` raises, which is a RuntimeError as pyxrt's own are.
    """


class UserError(AerieError):
    """A request that cannot be met. The message says what was given, the limit, and what to do."""


class UsageError(UserError):
    """A command line that makes no sense."""


class ProgramError(AerieError):
    """Anything that keeps a program from being built or run."""

    kind = "input"
    """What is wrong, in one word, for machines."""


class KnobError(ProgramError):
    """An environment variable has a value that makes no sense."""

    kind = "knob"


class ToolchainError(ProgramError):
    """No C++ compiler, or the compiler refused generated code or an external kernel."""

    kind = "toolchain"

    @staticmethod
    def of_system(what: object, error: OSError) -> ToolchainError:
        """The system refused a file or a folder that building `what` takes."""
        return ToolchainError(
            f"cannot build {what}: {error}. Free space, or choose another folder: AERIE_CACHE names the one "
            "that built programs are kept in, and VNPU_CACHE=off keeps none"
        )


class UndefinedError(ToolchainError):
    """The linker found functions nowhere; the message has its own lines."""

    def names(self, symbol: str) -> bool:
        """Whether the linker's lines name a function."""
        import re  # every command waits for what is imported above

        return re.search(rf"\b{re.escape(symbol)}\b", str(self)) is not None


def own_command(tool: str, module: str) -> str:
    """How a user starts a tool of this Python's environment, whose folder is seldom on PATH."""
    import shutil

    path = Path(sys.executable).with_name(tool)
    if shutil.which(tool) == str(path):
        return tool
    return _typed(path) if os.access(path, os.X_OK) else f"{_typed(Path(sys.executable))} -m {module}"


def _typed(path: Path) -> str:
    """A path as short as it can be typed in the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
