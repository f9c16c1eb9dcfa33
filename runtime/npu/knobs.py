"""Every environment variable that running on the NPU reads: its default, its meaning, what it may be."""

from __future__ import annotations

from pathlib import Path

from virtual_npu.knobs import Knob

MOST_CONTEXTS = 16
"""The driver's hwctx_limit for every NPU2, for all processes together (amd/xdna-driver npu4_regs.c)."""


def _is_seconds(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= 86_400


def _is_no_folder(text: str) -> bool:
    return not Path(text).is_dir()


def _is_context_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_CONTEXTS


TIMEOUT = Knob(
    "AERIE_NPU_TIMEOUT",
    "30",
    "seconds a program may run on the NPU before it counts as hanging",
    "a whole number of seconds from 1 to 86400",
    _is_seconds,
)
CONTEXTS = Knob(
    "AERIE_NPU_CONTEXTS",
    "8",
    "programs that stay loaded on the NPU; one more releases the least recently used",
    f"a whole number from 1 to {MOST_CONTEXTS}",
    _is_context_count,
)
LOCK = Knob(
    "AERIE_NPU_LOCK",
    "",
    "file that one process at a time locks while it has the NPU open; empty: aerie-npu.lock in the temporary "
    "folder",
    "a path to a file; this is a folder",
    _is_no_folder,
)

TABLE = (TIMEOUT, CONTEXTS, LOCK)


def check() -> None:
    """Raises KnobError, naming the first knob whose value makes no sense."""
    for knob in TABLE:
        knob.get()
