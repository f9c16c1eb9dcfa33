"""What pyproject.toml cannot say: five packages lie at the top of the tree, beside `aerie/` (aerie/rooms.py).

A wheel that lacks one of them would import well and fail late, so a build without one ends here.
"""

from __future__ import annotations

import runpy
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


setup(packages=list(folders()), package_dir=folders())
