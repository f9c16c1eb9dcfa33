"""Where the rooms lie. In a checkout five of them lie beside this package, at the top of the tree; installed,
all of them are its subpackages. Their import names are the same: `aerie.ROOM`.

In a checkout the finder below lets `import aerie.kernel_builder` find `kernel_builder/`; setup.py gives a
wheel the same names.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SEARCH_PATH = PACKAGE.parent
"""The folder from which `aerie` is imported: a child process that is to import it too needs this one."""
AT_THE_TOP = ("kernel_builder", "kernels_cc", "llama32_1b", "multi_launch_builder", "verify")

CHECKOUT = None if (PACKAGE / AT_THE_TOP[0]).is_dir() else SEARCH_PATH
"""The top of the checkout that this package is part of; None where it was installed."""

_PARENT_OF_THE_FIVE = PACKAGE if CHECKOUT is None else SEARCH_PATH


def folder(room: str) -> Path:
    """The folder of a room, or of a folder in it, such as "virtual_npu/codegen"."""
    return (_PARENT_OF_THE_FIVE if room.partition("/")[0] in AT_THE_TOP else PACKAGE) / room


class RoomFinder:
    """Finds `aerie.ROOM` for the rooms at the top of a checkout, and nothing else."""

    @staticmethod
    def find_spec(name: str, *_path_and_target: object) -> ModuleSpec | None:
        package, _, room = name.partition(".")
        is_ours = package == __package__ and room in AT_THE_TOP
        return PathFinder.find_spec(name, [str(SEARCH_PATH)]) if is_ours else None


if CHECKOUT is not None:
    sys.meta_path.insert(0, RoomFinder)
