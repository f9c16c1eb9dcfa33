"""The kernels, found by looking into this folder. A new kernel is a new file with a `KERNEL`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from aerie.kernel_builder.spec import KernelSpec


@cache
def registry() -> dict[str, KernelSpec]:
    """Every kernel by name: the `KERNEL` of each module in this folder, and what else it has of the kind."""
    files = sorted(found.name for found in pkgutil.iter_modules(__path__))
    modules = (importlib.import_module(f"{__name__}.{name}") for name in files)
    found = (value for module in modules for value in vars(module).values())
    return {spec.name: spec for spec in found if isinstance(spec, KernelSpec)}
