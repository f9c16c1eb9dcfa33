"""The environment variables of this room, for every backend: default, meaning, and what they may be."""

from __future__ import annotations

import re

from virtual_npu.knobs import PLAIN, Knob


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

TABLE = (COMPILE_MEMORY, COMPILE_TIMEOUT, PLAIN, CHECK_MEMORY)


def check() -> None:
    """Raises KnobError, naming the first knob whose value makes no sense."""
    for knob in TABLE:
        knob.get()
