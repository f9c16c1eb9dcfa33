"""Names of a package that load when they are used.

It is read before anything else, by every command: `typing` alone would take longer than all that it imports.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def on_first_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`, so that what needs no IR does not wait for xDSL.

    homes: the defining module of each of the package's names. It is imported at the first use of the name.
    The function raises AttributeError for any other name.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
