"""The Linux system below Aerie, as its own files name it."""

from __future__ import annotations

import re
from pathlib import Path


def distribution_name(root: Path = Path("/")) -> str:
    """Return the name of the Linux distribution, such as "Ubuntu 25.04". root: the folder that has /etc."""
    try:
        text = (root / "etc/os-release").read_text(errors="replace")
    except OSError:
        text = ""
    named = re.search(r'^PRETTY_NAME="?([^"\n]+)', text, re.MULTILINE)
    return named.group(1) if named else "unknown distribution"
