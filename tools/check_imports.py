"""`python tools/check_imports.py`: import-linter over the contracts of pyproject.toml.

import-linter reads a package from one folder, and five rooms of `aerie` lie beside it (aerie/rooms.py); so
this gives it the folder of each.
"""

from __future__ import annotations

import os
import sys

from grimp.adaptors.packagefinder import ImportLibPackageFinder
from grimp.application.config import settings
from grimp.application.ports.filesystem import AbstractFileSystem
from importlinter import cli

from aerie import rooms

ROOMS = {f"aerie.{room}": rooms.folder(room) for room in rooms.AT_THE_TOP}


class PackageFinder(ImportLibPackageFinder):
    """Finds the rooms at the top as packages, which the library refuses for parts of a package."""

    def determine_package_directories(self, package_name: str, file_system: AbstractFileSystem) -> set[str]:
        if package_name in ROOMS:
            return {str(ROOMS[package_name])}
        return super().determine_package_directories(package_name, file_system)


if __name__ == "__main__":
    os.chdir(rooms.SEARCH_PATH)
    settings.configure(PACKAGE_FINDER=PackageFinder())
    sys.exit(cli.lint_imports(is_debug_mode=False, no_logo=True, cache_dir=".import_linter_cache"))
