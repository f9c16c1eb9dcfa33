"""What every room does alike, kept in the lowest: names that load when they are used, and command lines."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn


class AerieError(Exception):
    """What a caller can cause and mend. The message says what was given, the limit, and what to do instead.

    Every error of this package that reaches a caller derives from it, but for a wrong type, which is a
    TypeError, and what `virtual_npu.pyxrt` raises, which is a RuntimeError as pyxrt's own are.
    """


def on_first_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`, so that what needs no IR does not wait for xDSL.

    `homes` tells for each of the package's names the module that defines it, which is imported with the first
    use of the name. Raises AttributeError for any other name.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load


class OneLineParser(argparse.ArgumentParser):
    """Says in one line what is wrong with a command line, without the usage, and ends with exit status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")
