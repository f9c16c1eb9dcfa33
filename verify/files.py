"""Reports on disk: complete, or not there."""

from __future__ import annotations

from pathlib import Path

from virtual_npu import whole_files


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` in one step, its folder made if need be. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole_files.write_whole(path, lambda file: file.write(text.encode()))
