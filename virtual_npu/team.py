"""The threads that all native code of a process shares: the team of the first shared object that is loaded.

include/vnpu/team.h says what a team is.
"""

from __future__ import annotations

import ctypes

_CHOSEN: dict[str, int] = {}


def use_team(library: ctypes.CDLL) -> int:
    """Have a shared object that links TEAM work with the process's team; gives that team's address.

    ctypes never unloads what it has loaded, so the team stays.
    """
    library.vnpu_own_team.restype = ctypes.c_void_p
    library.vnpu_use_team.argtypes, library.vnpu_use_team.restype = [ctypes.c_void_p], None
    team = _CHOSEN.setdefault("team", library.vnpu_own_team())
    library.vnpu_use_team(team)
    return team
