"""Reports on disk: complete, or not there."""

from __future__ import annotations

from pathlib import Path

from llama32_1b.errors import UserError
from virtual_npu import store


def make_folder(folder: Path) -> None:
    """The folder that --out names, for reports. Raises UserError where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write to {folder} ({error.strerror}); name another folder with --out"
        ) from None


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` in one step, its folder made if need be. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    store.write_whole(path, lambda file: file.write(text.encode()))
