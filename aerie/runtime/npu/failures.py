"""How a run on the NPU ends, how a hanging run is detected, and what XRT's messages mean.

pyxrt's `wait(timeout_ms)` is the only wait with a timeout. It returns a state: ERT_CMD_STATE_TIMEOUT if the
driver gave the program up, and also if the time is over. `state()` separates the two, because a run that
still runs has none of the final states. `wait2()` cannot be called with a timeout: it takes a `std::chrono`
value, and pyxrt.cpp includes no conversion from Python for it; without a timeout it waits for ever if the
driver's own watchdog is off. It returns None, or raises with XRT's report of what the program was doing, so
it is called once after a run has failed. None of them lets another Python thread or a signal handler run, so
we wait in slices.

Sources: XRT src/python/pybind11/src/pyxrt.cpp, core/include/xrt/xrt_kernel.h, core/include/xrt/detail/ert.h;
amd/xdna-driver drivers/accel/amdxdna/aie2_ctx.c (when the driver sets which state) and README.md.

pyxrt raises RuntimeError with the text of an ioctl and its errno, which says what failed and not why. The
known messages of XRT and the driver are explained here, with what to do.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from aerie.runtime.knobs import NPU_CONTEXTS, NPU_MAX_CONTEXTS

SLICE_MS = 100
"""Longest single wait: Ctrl-C is seen after it."""

COMPLETED, TIMEOUT = 4, 8
"""Values of XRT's ert_cmd_state. pyxrt gives RUNNING (3) no name, so states are compared as numbers."""


@dataclass(frozen=True)
class FinalState:
    """A final state: XRT's name, what happened, its likely cause, and whether the NPU is lost with it."""

    name: str
    meaning: str
    likely_cause: str
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
    """A run did not complete. likely_cause: what usually leads to it. lost: the NPU answers no process any
    more.
    """

    def __init__(self, message: str, likely_cause: str, lost: bool) -> None:
        super().__init__(message)
        self.likely_cause, self.lost = likely_cause, lost


def wait(run: Any, limit: float) -> None:
    """Wait for a started run, at most `limit` seconds.

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
    account = _xrt_report(run)
    raise RunFailedError(
        f"it ended in {final.name}: {final.meaning}{account}", final.likely_cause, final.lost
    )


def _final_state(run: Any, limit: float) -> int | None:
    """The state in which a run ended, or None if it still runs after `limit` seconds."""
    end = time.monotonic() + limit
    while True:
        state = run.wait(SLICE_MS)
        if state is None or int(state) == TIMEOUT:  # an old binding says nothing; the other may be our time
            state = run.state()
        if int(state) in FINAL:
            return int(state)
        if time.monotonic() >= end:
            return None


def _xrt_report(run: Any) -> str:
    """XRT's report of a failed run, in parentheses; "" if it has none."""
    try:
        run.wait2()
    except Exception as error:  # whatever the binding raises is the account
        return f" (XRT: {'; '.join(str(error).split(chr(10))).strip('; ')})"
    return ""


@dataclass(frozen=True)
class KnownXrtMessage:
    """A message as a regular expression, its cause with what to do, and the upstream file that says so.

    lost: the NPU answers no process until it is reset.
    """

    pattern: re.Pattern[str]
    meaning: str
    source: str
    lost: bool


RESET = (
    "reload the driver (sudo modprobe -r amdxdna && sudo modprobe amdxdna); if that does not help, "
    "or /dev/accel is missing, power the machine off and on. `sudo journalctl -k | grep amdxdna` "
    "shows the first error"
)
MEMLOCK = (
    "the limit of locked memory is too low for the driver's buffers: `sudo prlimit -lunlimited --pid $$` "
    "raises it for this shell, and `* - memlock unlimited` in a file of /etc/security/limits.d for new logins"
)


def _message(pattern: str, meaning: str, source: str, lost: bool = False) -> KnownXrtMessage:
    return KnownXrtMessage(re.compile(pattern, re.IGNORECASE), meaning, source, lost)


TABLE = (
    _message(
        r"EXEC_CMD IOCTL failed \(err=-?5\)",
        f"the NPU is wedged: a command timed out and took the firmware down, and every program of every "
        f"process now fails so; {RESET}",
        "mlir-air python/test/lit.cfg.py, .github/workflows/buildAndTestRyzenAI.yml",
        lost=True,
    ),
    _message(
        r"CREATE_HWCTX IOCTL failed \(err=-?(22|28)\)",
        f"the driver has no context to give: it has {NPU_MAX_CONTEXTS} for all processes together, or the "
        f"firmware refuses them since it was wedged. Close other programs that use the NPU, lower "
        f"{NPU_CONTEXTS.name}; else {RESET}",
        "amd/xdna-driver drivers/accel/amdxdna/npu4_regs.c, PR 1585; mlir-air llms/smolvla/docs/profile.md",
        lost=True,
    ),
    _message(
        r"err=-?11\b|Resource temporarily unavailable|lock limit exceeded|failed to allocate BO",
        MEMLOCK,
        "mlir-air .github/workflows/nightlyPerfBenchmark.yml; amd/xdna-driver README.md",
    ),
    _message(
        r"err=-?12\b|Cannot allocate memory|MemoryError",
        "the machine has no memory left for this buffer: end other programs, or compile for fewer tokens "
        "with --seq-len (SEQ_LEN)",
        "errno(3), ENOMEM",
    ),
    _message(
        r"err=-?13\b|err=-?1\b|Permission denied|Operation not permitted",
        "this user may not use the NPU: join the group that owns /dev/accel/accel0 (`ls -l /dev/accel`, "
        "usually render) and log in again",
        "errno(3), EACCES",
    ),
    _message(
        r"err=-?(6|19)\b|No such device",
        f"the NPU is gone: the driver lost it or is not loaded; {RESET}",
        "errno(3), ENODEV; mlir-air .github/workflows/buildAndTestRyzenAI.yml",
        lost=True,
    ),
    _message(
        r"err=-?(62|110)\b|timed out",
        f"the NPU's firmware does not answer; {RESET}",
        "errno(3), ETIMEDOUT; amd/xdna-driver PR 1670",
        lost=True,
    ),
    _message(
        r"No such kernel",
        "the ELF has no kernel of that name, which is `main:` and the program's function; compile it again",
        "XRT src/runtime_src/core/common/api/xrt_kernel.cpp",
    ),
    _message(
        r"incompatible (constructor|function) arguments|has no attribute",
        "this pyxrt lacks a call of the ELF flow; `make doctor` shows which, and which XRT has it",
        "XRT src/python/pybind11/src/pyxrt.cpp",
    ),
)


def find_known_message(message: str) -> KnownXrtMessage | None:
    """The entry for an XRT message; None if the message is not known."""
    return next((known for known in TABLE if known.pattern.search(message)), None)


def is_out_of_contexts(message: str) -> bool:
    """Whether XRT says that no further hw_context can be created now."""
    return "CREATE_HWCTX" in message
