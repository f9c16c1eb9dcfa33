"""What pyproject.toml cannot say: five packages lie at the top of the tree, beside `aerie/` (aerie/rooms.py).

A wheel that lacks one of them would import well and fail late, so a build without one ends here.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path

from setuptools import find_namespace_packages, setup

PROJECT = Path(__file__).parent
AT_THE_TOP = runpy.run_path(str(PROJECT / "aerie" / "rooms.py"))["AT_THE_TOP"]


def folders() -> dict[str, str]:
    """Every package's folder, from the top of the tree. Raises SystemExit where a room is missing."""
    found = {"aerie": "aerie"} | {f"aerie.{room}": room for room in AT_THE_TOP}
    missing = [folder for folder in found.values() if not (PROJECT / folder / "__init__.py").is_file()]
    if missing:
        raise SystemExit(
            f"error: {PROJECT} has no package in {', '.join(missing)}, so a wheel of it would not work; "
            "build from a whole checkout, or from an archive of one"
        )
    inside = {
        f"{package}.{name}": f"{folder}/{name.replace('.', '/')}"
        for package, folder in found.items()
        for name in find_namespace_packages(str(PROJECT / folder), exclude=["__pycache__*", "*.__pycache__*"])
    }
    return found | inside


def show_rooms() -> None:
    """Links in `.rooms`, by which pyright finds `aerie.ROOM` for the rooms at the top (pyproject.toml).

    It knows neither the finder of aerie/rooms.py nor that of an editable install. A file system without
    links goes without.
    """
    shown = PROJECT / ".rooms" / "aerie"
    shown.mkdir(parents=True, exist_ok=True)
    targets = {"__init__.py": PROJECT / "aerie" / "__init__.py"} | {
        room: PROJECT / room for room in AT_THE_TOP
    }
    for name, target in targets.items():
        with contextlib.suppress(OSError):
            (shown / name).unlink(missing_ok=True)
            (shown / name).symlink_to(target, target_is_directory=target.is_dir())


if "editable_wheel" in sys.argv:  # what `pip install --editable` asks setuptools for
    show_rooms()
PACKAGES = folders()
setup(packages=list(PACKAGES), package_dir=PACKAGES)
