"""What every run needs, with or without an NPU: Python, a C++ compiler, memory, disk."""

from __future__ import annotations

import platform
import sys

from board.doctor.findings import Finding, Status

OLDEST_PYTHON = (3, 10)


def python() -> Finding:
    """The interpreter that runs this."""
    wanted = f"{'.'.join(map(str, OLDEST_PYTHON))} or newer"
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return Finding(Status.OK, platform.python_version(), wanted)
    return Finding(Status.FAILED, platform.python_version(), wanted, "make distclean setup PYTHON=python3.12")
