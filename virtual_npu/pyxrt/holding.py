"""How one object of the API holds another.

XRT wants buffers, kernel, context, elf and device destroyed in that order, and faults on Windows otherwise.
In strict mode nobody keeps another's object alive, so that a program with the wrong order meets an error.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

from virtual_npu.pyxrt.errors import XrtError

T = TypeVar("T")

Holder = Callable[[], T]


def hold(target: T, strict: bool, complaint: str) -> Holder[T]:
    """A call that gives `target`. In strict mode it keeps nothing alive and raises `complaint` afterwards."""
    if not strict:
        return lambda: target
    reference = weakref.ref(target)

    def follow() -> T:
        found = reference()
        if found is None:
            raise XrtError(complaint)
        return found

    return follow
