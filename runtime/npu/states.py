"""How a run on the NPU ends, and how one that does not end is told apart.

pyxrt's `wait(timeout_ms)` is the one timed wait there is: it gives a state, and ERT_CMD_STATE_TIMEOUT both
when the driver gave the program up and when the time is over; `state()` tells the two apart, because a run
that is still going on has none of the final states. `wait2()` has no timed form that can be called: it takes
a `std::chrono` value, and pyxrt.cpp includes no conversion from Python for it; without a time it would wait
for ever where the driver's own watchdog is off. It gives None, or raises with XRT's account of what the
program was doing, so it is asked for that once a run has ended badly. None of them lets another Python thread
or a signal handler run, hence the slices.

Sources: XRT src/python/pybind11/src/pyxrt.cpp, core/include/xrt/xrt_kernel.h, core/include/xrt/detail/ert.h;
amd/xdna-driver drivers/accel/amdxdna/aie2_ctx.c (when the driver sets which state) and README.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

SLICE_MS = 250
"""How long one wait may keep Ctrl-C from being seen."""

COMPLETED, TIMEOUT = 4, 8
"""Values of XRT's ert_cmd_state. pyxrt gives RUNNING (3) no name, so states are compared as numbers."""


@dataclass(frozen=True)
class FinalState:
    """A way to end: XRT's name, what happened, what it usually means, and whether the NPU is lost with it."""

    name: str
    meaning: str
    usually: str
    lost: bool = False


WRONG_PROGRAM = (
    "a channel whose two ends disagree, so that tiles wait for each other; a kernel compiled with other -D "
    "macros than the program was built for; a kernel name that is not in the ELF; more transfers than a shim "
    "DMA's queue takes"
)
NO_SOFT_KERNELS = "programs of Aerie have no soft kernels: this is not one of them"

FINAL = {
    COMPLETED: FinalState("ERT_CMD_STATE_COMPLETED", "it completed", ""),
    5: FinalState(
        "ERT_CMD_STATE_ERROR",
        "the NPU's firmware refused or failed it",
        "an ELF made for another device, or by tools of other versions; a buffer smaller than the program's",
    ),
    6: FinalState(
        "ERT_CMD_STATE_ABORT",
        "the driver took it off the NPU",
        "the context was reset because another program hung (the first failure is the one to look at), or "
        "firmware and driver of different releases: reinstall the driver's package",
    ),
    TIMEOUT: FinalState(
        "ERT_CMD_STATE_TIMEOUT",
        "the driver saw no progress for its limit, 2 s by default, and reset the context",
        WRONG_PROGRAM,
    ),
    9: FinalState(
        "ERT_CMD_STATE_NORESPONSE",
        "the driver gave it up, and the NPU could not be reset",
        "a hang that took the firmware along: power the machine off and on",
        lost=True,
    ),
    10: FinalState("ERT_CMD_STATE_SKERROR", "a soft kernel failed", NO_SOFT_KERNELS),
    11: FinalState("ERT_CMD_STATE_SKCRASHED", "a soft kernel crashed", NO_SOFT_KERNELS),
}


class RunFailedError(RuntimeError):
    """A run that did not complete. `usually` is what that tends to mean; `lost`: the NPU answers no more."""

    def __init__(self, message: str, usually: str, lost: bool) -> None:
        super().__init__(message)
        self.usually, self.lost = usually, lost


def wait(run: Any, limit: float) -> None:
    """Wait for a started run, `limit` seconds at most.

    Raises RunFailedError unless it completed in that time, and what pyxrt raises.
    """
    state = _final_state(run, limit)
    if state == COMPLETED:
        return
    if state is None:
        raise RunFailedError(
            f"it hangs: not ended after {limit:g} s, and the driver did not end it either",
            f"{WRONG_PROGRAM}; or the driver's watchdog is off",
            lost=True,
        )
    final = FINAL[state]
    account = _account(run)
    raise RunFailedError(f"it ended in {final.name}: {final.meaning}{account}", final.usually, final.lost)


def _final_state(run: Any, limit: float) -> int | None:
    """The state in which a run ended, or None if it goes on after `limit` seconds."""
    end = time.monotonic() + limit
    while True:
        state = run.wait(SLICE_MS)
        if state is None or int(state) == TIMEOUT:  # an old binding says nothing; the other may be our time
            state = run.state()
        if int(state) in FINAL:
            return int(state)
        if time.monotonic() >= end:
            return None


def _account(run: Any) -> str:
    """What XRT has to say of a run that ended badly, in parentheses; nothing where it says nothing."""
    try:
        run.wait2()
    except Exception as error:  # whatever the binding raises is the account
        return f" (XRT: {'; '.join(str(error).split(chr(10))).strip('; ')})"
    return ""
