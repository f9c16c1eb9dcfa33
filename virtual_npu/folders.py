"""Where everything goes that nobody gave a place: one folder, with a folder in it for each kind.

    AERIE_CACHE              where it is set
    CHECKOUT/build           in a checkout, also one that is installed as it lies (pip install --editable)
    XDG_CACHE_HOME/aerie     where Aerie was installed; ~/.cache/aerie without that variable

The current folder has no part in it. What lies in there is listed in docs/usage.md, "Where things are kept".
"""

from __future__ import annotations

import os
from pathlib import Path

from aerie.virtual_npu.errors import KnobError
from aerie.virtual_npu.knobs import CACHE, HOME

PROGRAMS = "programs"
_ABOVE_ROOMS = Path(__file__).resolve().parents[1]

VARIABLE = HOME.name
ADVICE = f"name one that can be written with {VARIABLE}=/path/to/folder"
"""What to do where the folder cannot be used."""


def home() -> Path:
    """The folder, absolute; it may not be there yet. Raises KnobError where there is none to be found."""
    if named := HOME.get():
        return _expanded(named)
    return checkout_folder() or _of_the_user()


def checkout_folder() -> Path | None:
    """The build folder of the checkout that this file is part of; None where it was installed."""
    return _ABOVE_ROOMS / "build" if (_ABOVE_ROOMS / "pyproject.toml").is_file() else None


def _of_the_user() -> Path:
    named = Path(os.environ.get("XDG_CACHE_HOME") or "")
    # A relative one does not count (XDG Base Directory Specification).
    return (named if named.is_absolute() else _expanded("~/.cache")) / "aerie"


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:  # a user whom the system does not know, as in some containers
        raise KnobError(
            f"there is no home folder to keep compiled programs in: name one with {VARIABLE}=/path/to/folder"
        ) from None


def programs() -> Path:
    """Where a KernelCache keeps compiled programs."""
    return home() / PROGRAMS


def built_programs() -> Path | None:
    """Where the virtual NPU keeps what it built, or None where it does not. Raises KnobError."""
    text = CACHE.get()
    if text == "off":
        return None
    return _expanded(text) if text else home() / "virtual_npu"


def is_usable(folder: Path) -> bool:
    """Whether files can be written there; the folder is made where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
