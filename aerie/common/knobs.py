"""Every environment variable that the virtual NPU reads, with its default, its meaning and what it may be."""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aerie.common.cpu_count import cpu_count
from aerie.common.errors import KnobError

MAX_THREADS = 1024
MAX_RACE_EVENTS = 1 << 29
MAX_DEVICES = 64


def _anything(_: str) -> bool:
    return True


@dataclass(frozen=True)
class Knob:
    """One environment variable. expected: the values that `is_valid` accepts, in words."""

    name: str
    default: str
    meaning: str
    expected: str = ""
    is_valid: Callable[[str], bool] = _anything
    replaces: tuple[tuple[str, str], ...] = ()
    """(old variable, value) pairs: this value of the variable has the effect of the old one."""

    def get(self) -> str:
        """The value in the environment, else the default.

        Raises KnobError for a wrong value, and if a replaced variable is set.
        """
        for old, value in self.replaces:
            if os.environ.get(old):
                raise KnobError(
                    f"{old} is not read any more: {self.name}={value} does the plain way what {old} turned "
                    f"off; unset {old}"
                )
        text = os.environ.get(self.name) or self.default
        if text != self.default and not self.is_valid(text):
            unset = f"unset it for the default ({self.default})" if self.default else "or unset it"
            raise KnobError(f"{self.name}='{text}' cannot be used: give {self.expected}; {unset}")
        return text


@functools.cache  # every call of a program asks
def _is_thread_count(text: str) -> bool:
    return re.fullmatch("0*[0-9]{1,4}", text) is not None and 1 <= int(text) <= MAX_THREADS


@functools.cache
def _is_event_count(text: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None and 1 <= int(text) <= MAX_RACE_EVENTS


@functools.cache
def _is_device_count(text: str) -> bool:
    return re.fullmatch("[0-9]{1,2}", text) is not None and 1 <= int(text) <= MAX_DEVICES


def _is_march(text: str) -> bool:
    return re.fullmatch(r"\w[\w.+=-]*", text) is not None


def _may_be_folder(text: str) -> bool:
    try:
        mode = os.stat(os.path.expanduser(text)).st_mode
    except OSError:
        return True
    return stat.S_ISDIR(mode)  # of one look: another process may make the folder meanwhile


THREADS = Knob(
    "VNPU_THREADS",
    "",
    "threads that run tiles and launch iterations; empty: one per CPU that the process may use",
    f"a whole number from 1 to {MAX_THREADS}",
    _is_thread_count,
)
STRICT = Knob(
    "VNPU_STRICT",
    "0",
    "1: host and device memory of virtual_npu.pyxrt are separate",
    "1 for separate memories, 0 for a shared one",
    {"0", "1"}.__contains__,
)
DEVICES = Knob(
    "VNPU_DEVICES",
    "1",
    "how many devices virtual_npu.pyxrt has, of the indices 0, 1, ...",
    f"a whole number from 1 to {MAX_DEVICES}",
    _is_device_count,
)
CXX = Knob("VNPU_CXX", "", "C++ compiler, such as g++-13 or ccache g++; empty: CXX, then c++, g++, clang++")
MARCH = Knob(
    "VNPU_MARCH",
    "native",
    "CPU that generated code and external kernels are built for; native: all that this one has; x86-64-v2, "
    "v3, v4: no more than this level, and features behind it as in x86-64-v4+avx512bf16; none: the "
    "compiler's default; else a value of its -march",
    "one word that the compiler's -march takes, such as x86-64-v3, or none",
    _is_march,
)
OPT = Knob(
    "VNPU_OPT",
    "3",
    "optimisation level of generated code and external kernels: 0 (our own C++ stays at 1), 1, 2, 3, s",
    "one of 0, 1, 2, 3, s (fast would change results)",
    {"0", "1", "2", "3", "s"}.__contains__,
)
KEEP = Knob(
    "VNPU_KEEP",
    "",
    "folder that receives a copy of the generated C++; empty: no copy",
    "a folder; this is a file",
    _may_be_folder,
)
HOME = Knob(
    "AERIE_CACHE",
    "",
    "folder of everything that Aerie stores: programs, records, reports; empty: build in a checkout, else "
    "aerie in the user's cache folder",
    "a folder; this is a file",
    _may_be_folder,
)
CACHE = Knob(
    "VNPU_CACHE",
    "",
    "folder of what the virtual NPU built; empty: virtual_npu in the folder of AERIE_CACHE; off: nowhere",
    "a folder or off; this is a file",
    _may_be_folder,
)

NUMERICS = Knob(
    "VNPU_NUMERICS",
    "exact",
    "bf16 matrix products: exact, or bfp16 (block floating point, as AIE2P emulates them)",
    "exact or bfp16",
    {"exact", "bfp16"}.__contains__,
)
ROUNDING = Knob(
    "VNPU_ROUNDING",
    "conv_even",
    "how f32 becomes bf16: conv_even (nearest, ties to even) or floor (what a core does after power-up)",
    "conv_even or floor",
    {"conv_even", "floor"}.__contains__,
)
RACE_EVENTS = Knob(
    "VNPU_RACE_EVENTS",
    str(1 << 26),
    "maximum accesses that the race check records in a run, about 100 bytes each; a note reports more",
    f"a whole number from 1 to {MAX_RACE_EVENTS}",
    _is_event_count,
)
PLAIN_PARTS = ("products", "calls", "buffers", "host_code")


def _are_plain_parts(text: str) -> bool:
    return {"all", *PLAIN_PARTS}.issuperset(_parts(text))


def _parts(text: str) -> set[str]:
    return {part.strip() for part in text.split(",")}


PLAIN = Knob(
    "AERIE_PLAIN",
    "",
    "parts that run without optimisations, for comparison: products, calls, buffers, host_code, "
    "or all; empty: none",
    f"some of {', '.join(PLAIN_PARTS)} with commas between, or all",
    _are_plain_parts,
    replaces=(
        ("VNPU_FAST", "products"),
        ("AERIE_BATCH_CALLS", "calls"),
        ("AERIE_SHARE_BUFFERS", "buffers"),
        ("AERIE_HOST_CODE", "host_code"),
    ),
)

TABLE = (THREADS, STRICT, DEVICES, CXX, MARCH, OPT, KEEP, HOME, CACHE, NUMERICS, ROUNDING, RACE_EVENTS, PLAIN)


def check() -> None:
    """Raises KnobError for the first knob with a wrong value, before any work is done."""
    for knob in TABLE:
        knob.get()


def thread_count() -> int:
    """The number of threads of a run. Raises KnobError for a wrong VNPU_THREADS."""
    text = THREADS.get()
    return int(text) if text else cpu_count()


def max_race_events() -> int:
    """The number of accesses that the race check records. Raises KnobError for a wrong VNPU_RACE_EVENTS."""
    return int(RACE_EVENTS.get())


def device_count() -> int:
    """The number of virtual devices. Raises KnobError for a wrong VNPU_DEVICES."""
    return int(DEVICES.get())


def is_strict() -> bool:
    """Whether host and device memory are separate. Raises KnobError for a wrong VNPU_STRICT."""
    return STRICT.get() == "1"


def is_plain(part: str) -> bool:
    """Whether AERIE_PLAIN selects the plain implementation of one of PLAIN_PARTS. Raises KnobError."""
    return not _parts(PLAIN.get()).isdisjoint({part, "all"})


def cpp_copy_folder() -> Path | None:
    """The folder for copies of generated C++, or None. Raises KnobError if VNPU_KEEP names a file."""
    text = KEEP.get()
    return Path(text) if text else None
