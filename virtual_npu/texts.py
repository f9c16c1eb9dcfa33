"""Reading programs."""

from __future__ import annotations

from pathlib import Path

from virtual_npu.errors import VirtualNpuError


def read_text(path: Path) -> str:
    """The text of a file. Raises VirtualNpuError when it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise VirtualNpuError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
