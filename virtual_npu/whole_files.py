"""Files that appear complete or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast


def write_whole(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file in one step: `fill` writes it under another name beside it. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            fill(cast(BinaryIO, file))
            file.close()
            os.chmod(file.name, 0o644)  # temporary files are their owner's alone
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
