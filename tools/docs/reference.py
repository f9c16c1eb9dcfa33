"""All pages that are made from the code, by their path in docs/.

`python tools/docs/reference.py FOLDER` writes them, to look at; the site has them by hooks.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import commands
import designs
import device
import forms
import http_api
import models
import settings
from md_text import page, section

import aerie
import examples

INHERITED = "\n    options:\n      inherited_members: true"
"""A model's methods are in several files."""


def python_page() -> str:
    """One entry for each public name of `aerie`; mkdocstrings fills them in."""
    return page(
        "Python API",
        "All names that `from aerie import ...` has. [Use a model from Python](../how-to/python.md) has "
        "examples.",
        *(f"::: aerie.{name}{INHERITED * (name == 'Model')}" for name in _public()),
        section("The virtual NPU", "Names of `aerie.virtual_npu`.", "::: aerie.virtual_npu.program"),
    )


def _public() -> list[str]:
    first = ["load", "Model", "Result", "Stream"]
    return [*first, *sorted(set(aerie.__all__) - {*first, "__version__"}, key=str.lower)]


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": commands.commands_page,
    "reference/make.md": commands.make_page,
    "reference/environment.md": settings.environment_page,
    "reference/http.md": http_api.http_page,
    "reference/python.md": python_page,
    "reference/structured-output.md": forms.forms_page,
    "reference/errors.md": forms.errors_page,
    "reference/models.md": models.models_page,
    "reference/programs.md": models.programs_page,
    "reference/kernels.md": device.kernels_page,
    "reference/lowering.md": device.lowering_page,
    "reference/toolchain.md": device.toolchain_page,
    "reference/mlir-air-examples.md": examples.examples_page,
    "reference/aie-designs.md": designs.designs_page,
}


def main(folder: str) -> None:
    for name, make in PAGES.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make())


if __name__ == "__main__":
    main(sys.argv[1])
