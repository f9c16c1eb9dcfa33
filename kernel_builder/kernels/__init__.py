"""The kernels: one file each, found by looking into this folder. A new kernel is a new file."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from kernel_builder.spec import KernelSpec


@cache
def registry() -> dict[str, KernelSpec]:
    """Every kernel by name: the `KERNEL` of each module in this folder."""
    specs = {}
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        module = importlib.import_module(f"{__name__}.{found.name}")
        spec: KernelSpec = module.KERNEL
        specs[spec.name] = spec
    return specs
