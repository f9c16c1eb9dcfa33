"""Messages of XRT and the NPU's driver that are known: what each means and what to do.

pyxrt raises RuntimeError with the text of an ioctl and its errno, which says what failed and not why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runtime.npu import knobs


@dataclass(frozen=True)
class Known:
    """A message as a regular expression, its cause with what to do, and upstream's file that says so.

    lost: the NPU answers no process any more until it is reset.
    """

    pattern: re.Pattern[str]
    meaning: str
    source: str
    lost: bool


RESET = (
    "reload the driver (sudo modprobe -r amdxdna && sudo modprobe amdxdna); if it stays so, or /dev/accel is "
    "gone, power the machine off and on. `sudo journalctl -k | grep amdxdna` shows what came first"
)
MEMLOCK = (
    "the limit of locked memory is too low for the driver's buffers: `sudo prlimit -lunlimited --pid $$` "
    "raises it for this shell, and `* - memlock unlimited` in a file of /etc/security/limits.d for new logins"
)


def _known(pattern: str, meaning: str, source: str, lost: bool = False) -> Known:
    return Known(re.compile(pattern, re.IGNORECASE), meaning, source, lost)


TABLE = (
    _known(
        r"EXEC_CMD IOCTL failed \(err=-?5\)",
        f"the NPU is wedged: a command timed out and took the firmware down, and every program of every "
        f"process now fails so; {RESET}",
        "mlir-air python/test/lit.cfg.py, .github/workflows/buildAndTestRyzenAI.yml",
        lost=True,
    ),
    _known(
        r"CREATE_HWCTX IOCTL failed \(err=-?(22|28)\)",
        f"the driver has no context to give: it has {knobs.MOST_CONTEXTS} for all processes together, or the "
        f"firmware refuses them since it was wedged. Close other programs that use the NPU, lower "
        f"{knobs.CONTEXTS.name}; else {RESET}",
        "amd/xdna-driver drivers/accel/amdxdna/npu4_regs.c, PR 1585; mlir-air llms/smolvla/docs/profile.md",
        lost=True,
    ),
    _known(
        r"err=-?11\b|Resource temporarily unavailable|lock limit exceeded|failed to allocate BO",
        MEMLOCK,
        "mlir-air .github/workflows/nightlyPerfBenchmark.yml; amd/xdna-driver README.md",
    ),
    _known(
        r"err=-?12\b|Cannot allocate memory|MemoryError",
        "the machine has no memory left for this buffer: end other programs, or compile for fewer tokens "
        "with --seq-len",
        "errno(3), ENOMEM",
    ),
    _known(
        r"err=-?13\b|err=-?1\b|Permission denied|Operation not permitted",
        "this user may not use the NPU: join the group that owns /dev/accel/accel0 (`ls -l /dev/accel`, "
        "usually render) and log in again",
        "errno(3), EACCES",
    ),
    _known(
        r"err=-?(6|19)\b|No such device",
        f"the NPU is gone: the driver lost it or is not loaded; {RESET}",
        "errno(3), ENODEV; mlir-air .github/workflows/buildAndTestRyzenAI.yml",
        lost=True,
    ),
    _known(
        r"err=-?(62|110)\b|timed out",
        f"the NPU's firmware does not answer; {RESET}",
        "errno(3), ETIMEDOUT; amd/xdna-driver PR 1670",
        lost=True,
    ),
    _known(
        r"No such kernel",
        "the ELF has no kernel of that name, which is `main:` and the program's function; compile it again",
        "XRT src/runtime_src/core/common/api/xrt_kernel.cpp",
    ),
    _known(
        r"incompatible (constructor|function) arguments|has no attribute",
        "this pyxrt lacks a call of the ELF flow; `make doctor` says which, and which XRT has it",
        "XRT src/python/pybind11/src/pyxrt.cpp",
    ),
)


def find(message: str) -> Known | None:
    """The entry that tells what a message of XRT means; None for one that is not known."""
    return next((known for known in TABLE if known.pattern.search(message)), None)


def lacks_context(message: str) -> bool:
    """Whether XRT says that no further hw_context can be made now."""
    return "CREATE_HWCTX" in message
