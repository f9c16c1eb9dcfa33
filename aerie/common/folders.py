"""Where everything goes that nobody gave a place: one folder, with a folder in it for each kind.

    AERIE_CACHE              where it is set
    CHECKOUT/build           in a checkout, also one that is installed as it lies (pip install --editable)
    XDG_CACHE_HOME/aerie     where Aerie was installed; ~/.cache/aerie without that variable

The current folder has no part in it. docs/how-to/storage.md lists what lies there.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from aerie import rooms
from aerie.common.errors import KnobError
from aerie.common.knobs import CACHE, HOME

PROGRAMS = "programs"

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
    return rooms.CHECKOUT / "build" if rooms.CHECKOUT else None


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


def make(folder: Path) -> None:
    """Make a folder, and those above it, that others cannot write to whatever the umask. Raises OSError."""
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(exist_ok=True)


def is_usable(folder: Path) -> bool:
    """Whether files can be written there; the folder is made where it is missing."""
    try:
        make(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def check_private(folder: Path) -> None:
    """Raises KnobError for a folder that others could put files into, or another folder in the place of.

    What is compiled is loaded from there, and runs as the user. It may belong to the user, to who owns the
    machine, and to who owns this code: they could do anything anyway. In a folder above that is sticky, as
    /tmp is, nobody can replace what another has there. A folder that is missing is judged by those above it.
    """
    named, real = folder.absolute(), folder.resolve()
    links = (link for link in (named, *named.parents) if link.is_symlink())
    above = (each for each in real.parents if not rooms.SEARCH_PATH.is_relative_to(each))
    found = [fault for link in links for fault in _strange_owner(link)]
    found += [*_strange_owner(real), *_strange_writers(real)]
    found += [
        fault for each in above for fault in (*_strange_owner(each), *_strange_writers(each, above=True))
    ]
    for what, fix in found:
        raise KnobError(
            f"{folder} is not used: {what}, so that others could put programs there, which would run as you: "
            f"{fix}, or name a folder of your own with {VARIABLE}=/path/to/folder"
        )


def is_private(path: Path) -> bool:
    """Whether a file in a private folder is one that nobody else could write; so is one that is missing."""
    return not any((*_strange_owner(path), *_strange_writers(path)))


def _strange_owner(path: Path) -> Iterator[tuple[str, str]]:
    """Who owns a path and is not trusted, with what to do."""
    with contextlib.suppress(OSError):
        owner = path.lstat().st_uid
        if owner not in _trusted():
            yield f"{path} belongs to {_name_of(owner)}", "make it yours (chown)"


def _trusted() -> set[int]:
    """Users who may own what is loaded: this one, the system's, also where it has another number in a
    container, and who owns the code."""
    return {os.geteuid(), 0, Path("/").stat().st_uid, Path(__file__).stat().st_uid}


def _strange_writers(path: Path, above: bool = False) -> Iterator[tuple[str, str]]:
    """Who can write to a path beside its owner, with what to do; above: to a folder that holds the folder."""
    with contextlib.suppress(OSError):
        about = path.lstat()
        if above and about.st_mode & stat.S_ISVTX:
            return
        if about.st_mode & stat.S_IWOTH:
            yield f"everybody can write to {path}", f"`chmod go-w {path}`"
        if about.st_mode & stat.S_IWGRP and not _is_own_group(about.st_gid):
            yield f"a group can write to {path}", f"`chmod g-w {path}`"


def _is_own_group(number: int) -> bool:
    """Whether a group is the system's, or has the user alone, as many systems make one for each."""
    try:
        group, user = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return number == 0
    return number == 0 or (number == user.pw_gid and group.gr_name == user.pw_name and not group.gr_mem)


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
