"""The threads that all native code of a process shares: the team of the first shared object that is loaded.

include/vnpu/team.h says what a team is.
"""

from __future__ import annotations

import ctypes
import threading

_FIRST: list[ctypes.CDLL] = []
_HERE = threading.local()


def use_team(library: ctypes.CDLL) -> int:
    """Have a shared object that links TEAM work with the process's team; gives that team's address.

    ctypes never unloads what it has loaded, so the team stays.
    """
    library.vnpu_own_team.restype = ctypes.c_void_p
    library.vnpu_use_team.argtypes, library.vnpu_use_team.restype = [ctypes.c_void_p], None
    library.vnpu_watch.argtypes, library.vnpu_watch.restype = [ctypes.c_void_p], None
    if not _FIRST:
        _FIRST.append(library)
        watch(getattr(_HERE, "flag", None))
    team: int = _FIRST[0].vnpu_own_team()
    library.vnpu_use_team(team)
    return team


def watch(flag: int | None) -> None:
    """Have native code that this thread calls end once the int32 at this address is not 0.

    None: it goes on to its end. The caller keeps the int32 alive until it calls this again.
    """
    _HERE.flag = flag
    for library in _FIRST:
        library.vnpu_watch(flag)
