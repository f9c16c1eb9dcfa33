"""The environment variables of the runtime: default, meaning, and allowed values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from aerie.common.knobs import PLAIN, Knob


def _is_gibibytes(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,2})?", text) is not None and float(text) > 0


def _is_seconds(text: str) -> bool:
    return re.fullmatch("[0-9]{1,5}", text) is not None and int(text) >= 1


COMPILE_MEMORY = Knob(
    "AERIE_COMPILE_MEMORY",
    "",
    "GiB that programs which compile side by side may take together; empty: most of what the system has free",
    "a number of GiB above 0, such as 8 or 2.5",
    _is_gibibytes,
)
COMPILE_TIMEOUT = Knob(
    "AERIE_COMPILE_TIMEOUT",
    "3600",
    "seconds one tool may take for one program of the NPU before it and all it started are killed",
    "a whole number of seconds from 1 to 99999",
    _is_seconds,
)

CHECK_MEMORY = Knob(
    "AERIE_CHECK_MEMORY",
    "1",
    "1: what needs more memory than is available is refused before it begins; 0: it is tried",
    "0 or 1",
    ("0", "1").__contains__,
)

COMPILE_AHEAD = Knob(
    "AERIE_COMPILE_AHEAD",
    "1",
    "1: chats, servers and models in Python compile what a longer context needs in the background, in idle "
    "processor time; 0: when it is needed",
    "0 or 1",
    ("0", "1").__contains__,
)

NPU_MAX_CONTEXTS = 16
"""The driver's hwctx_limit for every NPU2, for all processes together (amd/xdna-driver npu4_regs.c)."""


def _is_seconds_of_a_day(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= 86_400


def _is_no_folder(text: str) -> bool:
    return not Path(text).is_dir()


def _is_context_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= NPU_MAX_CONTEXTS


NPU_TIMEOUT = Knob(
    "AERIE_NPU_TIMEOUT",
    "30",
    "seconds a program may run on the NPU before it counts as hanging",
    "a whole number of seconds from 1 to 86400",
    _is_seconds_of_a_day,
)
NPU_CONTEXTS = Knob(
    "AERIE_NPU_CONTEXTS",
    "8",
    "programs that stay loaded on the NPU; one more releases the least recently used",
    f"a whole number from 1 to {NPU_MAX_CONTEXTS}",
    _is_context_count,
)
NPU_LOCK = Knob(
    "AERIE_NPU_LOCK",
    "",
    "file that one process at a time locks while it has the NPU open; empty: aerie-npu.lock in the temporary "
    "folder",
    "a path to a file; this is a folder",
    _is_no_folder,
)

TABLE = (COMPILE_MEMORY, COMPILE_TIMEOUT, PLAIN, CHECK_MEMORY, COMPILE_AHEAD)
NPU_TABLE = (NPU_TIMEOUT, NPU_CONTEXTS, NPU_LOCK)


def check(table: Sequence[Knob] = TABLE) -> None:
    """Raise KnobError for the first knob of a table whose value is not valid."""
    for knob in table:
        knob.get()
