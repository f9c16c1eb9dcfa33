"""The threads that all native code of a process shares: the team of the first shared object that is loaded.

include/vnpu/team.h says what a team is.
"""

from __future__ import annotations

import ctypes
import threading

from aerie.common.cpu_count import cpu_count

_FIRST: list[ctypes.CDLL] = []
_LIMIT: list[int] = []
_HERE = threading.local()


def use_team(library: ctypes.CDLL) -> int:
    """Make a shared object that links TEAM use the process's team. Returns the team's address.

    ctypes never unloads what it has loaded, so the team stays.
    """
    library.vnpu_own_team.restype = ctypes.c_void_p
    library.vnpu_use_team.argtypes, library.vnpu_use_team.restype = [ctypes.c_void_p], None
    library.vnpu_watch.argtypes, library.vnpu_watch.restype = [ctypes.c_void_p], None
    if not _FIRST:
        _FIRST.append(library)
        _size_team()
        watch(getattr(_HERE, "flag", None))
    team: int = _FIRST[0].vnpu_own_team()
    library.vnpu_use_team(team)
    return team


def limit_threads(max_threads: int | None) -> None:
    """Let a loop be shared by at most so many threads, whatever VNPU_THREADS says.

    None, as it is at first: the number of CPUs that the process may use, for more threads take the CPU from
    each other.
    """
    _LIMIT[:] = [] if max_threads is None else [max_threads]
    _size_team()


def _size_team() -> None:
    for library in _FIRST:
        library.vnpu_size_team(cpu_count(), *(_LIMIT or [cpu_count()]))


def watch(flag: int | None) -> None:
    """Let native code of this thread end when the int32 at this address is not 0; None: never.

    The caller keeps the int32 alive until the next call.
    """
    _HERE.flag = flag
    for library in _FIRST:
        library.vnpu_watch(flag)
