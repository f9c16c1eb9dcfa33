"""What leaves the machine in a record says nothing of whose machine it is."""

from __future__ import annotations

import getpass
import platform
import re
from pathlib import Path
from typing import Any

HOME, USER, HOST = "~", "USER", "HOST"
SHORTEST = 3
"""Letters that a name must have to be looked for: "ai" would be found all over."""


def without_names(
    text: str, home: str | None = None, user: str | None = None, host: str | None = None
) -> str:
    """`text` with the home folder as ~, and whole words that are the user's or the host's name replaced.

    Each defaults to this machine's. "root" and "localhost" name nobody and stay.
    """
    home = home or _home()
    names = {USER: user or _user(), HOST: host or platform.node()}
    if home.strip("/"):
        text = re.sub(re.escape(home.rstrip("/")) + r"(?=/|\W|$)", HOME, text)
    for replacement, name in names.items():
        if len(name) >= SHORTEST and name not in ("root", "localhost"):
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", replacement, text)
    return text


def record_without_names(record: Any) -> Any:
    """A record of JSON with every text in it passed through `without_names`; keys stay."""
    if isinstance(record, str):
        return without_names(record)
    if isinstance(record, dict):
        return {key: record_without_names(value) for key, value in record.items()}
    if isinstance(record, list):
        return [record_without_names(value) for value in record]
    return record


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:  # no HOME and no entry for the user
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry for the user's number
        return ""
