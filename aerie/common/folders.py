"""The default folder of everything that Aerie writes, with one subfolder per kind.

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
"""What to do if the folder cannot be used."""


def cache_folder() -> Path:
    """The absolute path of the folder, which may not exist yet. Raises KnobError if the user has no home."""
    if named := HOME.get():
        return _expanded(named)
    return checkout_folder() or _user_folder()


def checkout_folder() -> Path | None:
    """The build folder of the checkout that this file is part of; None where it was installed."""
    return rooms.CHECKOUT / "build" if rooms.CHECKOUT else None


def _user_folder() -> Path:
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


def programs_folder() -> Path:
    """The folder of a KernelCache's compiled programs."""
    return cache_folder() / PROGRAMS


def vnpu_folder() -> Path | None:
    """The folder of the virtual NPU's builds; None if VNPU_CACHE is off. Raises KnobError."""
    text = CACHE.get()
    if text == "off":
        return None
    return _expanded(text) if text else cache_folder() / "virtual_npu"


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, not writable by others whatever the umask. Raises OSError."""
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(exist_ok=True)


def is_usable(folder: Path) -> bool:
    """Whether files can be written to the folder. Makes it if it does not exist."""
    try:
        make_folder(folder)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def check_private(folder: Path) -> None:
    """Raises KnobError for a folder that other users could write to or replace.

    Programs are loaded from it and run as the user. It may belong to the user, to root, and to the owner of
    this code: these could do anything anyway. A sticky parent, such as /tmp, is accepted: users cannot
    replace each other's files there. A missing folder is judged by its parents.
    """
    named, real = folder.absolute(), folder.resolve()
    links = (link for link in (named, *named.parents) if link.is_symlink())
    above = (each for each in real.parents if not rooms.SEARCH_PATH.is_relative_to(each))
    faults = [fault for link in links for fault in _untrusted_owner(link)]
    faults += [*_untrusted_owner(real), *_untrusted_writers(real)]
    faults += [
        fault for each in above for fault in (*_untrusted_owner(each), *_untrusted_writers(each, above=True))
    ]
    for what, fix in faults:
        raise KnobError(
            f"{folder} is not used: {what}, so that others could put programs there, which would run as you: "
            f"{fix}, or name a folder of your own with {VARIABLE}=/path/to/folder"
        )


def is_private(path: Path) -> bool:
    """Whether no other user could have written a file; True for a missing one."""
    return not any((*_untrusted_owner(path), *_untrusted_writers(path)))


def _untrusted_owner(path: Path) -> Iterator[tuple[str, str]]:
    """(problem, advice) if the owner of a path is not trusted."""
    with contextlib.suppress(OSError):
        owner = path.lstat().st_uid
        if owner not in _trusted():
            yield f"{path} belongs to {_name_of(owner)}", "make it yours (chown)"


def _trusted() -> set[int]:
    """Ids of the users who may own loaded files: this one, root (also a container's), the code's owner."""
    return {os.geteuid(), 0, Path("/").stat().st_uid, Path(__file__).stat().st_uid}


def _untrusted_writers(path: Path, above: bool = False) -> Iterator[tuple[str, str]]:
    """(problem, advice) for each class of users who can write to a path beside its owner.

    above: the path is a parent of the folder, and may be sticky.
    """
    with contextlib.suppress(OSError):
        about = path.lstat()
        if above and about.st_mode & stat.S_ISVTX:
            return
        if about.st_mode & stat.S_IWOTH:
            yield f"everybody can write to {path}", f"`chmod go-w {path}`"
        if about.st_mode & stat.S_IWGRP and not _is_own_group(about.st_gid):
            yield f"a group can write to {path}", f"`chmod g-w {path}`"


def _is_own_group(number: int) -> bool:
    """Whether a group is root's, or the user's private group."""
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
