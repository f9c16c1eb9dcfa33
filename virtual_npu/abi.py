"""What the writer and the reader of a built program agree on."""

from __future__ import annotations

import re

FORMAT = 5
"""Version of the metadata and of the entries' calling convention."""


def identifier(name: str) -> str:
    """An MLIR symbol as part of a C++ identifier: what C++ does not allow becomes `_`."""
    return re.sub(r"[^0-9A-Za-z_]", "_", name)


def entry_symbol(name: str) -> str:
    """The exported C function of a public func.func."""
    return f"vnpu_entry_{identifier(name)}"
