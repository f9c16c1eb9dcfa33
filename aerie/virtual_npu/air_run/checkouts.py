"""The user's checkout of mlir-air, whose Python files are used as they lie there."""

from __future__ import annotations

from pathlib import Path

from aerie.virtual_npu.air_run.knobs import CHECKOUT
from aerie.virtual_npu.errors import OptionError

MARK = Path("python/air/dialects/_air_ops_ext.py")
"""A file that every checkout has."""


def find_checkout(start: Path | None = None) -> Path:
    """The checkout that AERIE_MLIR_AIR names, else the one around `start` (the current folder).

    Raises OptionError where there is none.
    """
    named = CHECKOUT.get()
    start = (start or Path.cwd()).resolve()
    candidates = [Path(named).expanduser().resolve()] if named else [start, *start.parents]
    for folder in candidates:
        if (folder / MARK).is_file():
            return folder
    where = f"{CHECKOUT.name}={named} is" if named else f"{start} is in"
    raise OptionError(
        f"{where} no checkout of mlir-air (one has {MARK}): clone "
        f"https://github.com/Xilinx/mlir-air, and name its folder with --mlir-air or {CHECKOUT.name}"
    )


def python_folder() -> Path:
    """The folder of the package `air` in the checkout. Raises OptionError."""
    return find_checkout() / "python" / "air"
