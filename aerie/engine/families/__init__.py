"""The families of models, one file each: a file more is a family more (docs/how-to/add-a-model-family.md)."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import MappingProxyType

from aerie.engine.model_family import ModelFamily


def _families() -> dict[str, ModelFamily]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    families: list[ModelFamily] = [import_module(f"{__name__}.{name}").FAMILY for name in names]
    families.sort(key=lambda family: family.diffusion is not None)
    return {family.model_type: family for family in families}


FAMILIES = MappingProxyType(_families())
"""By model_type, in the order of the files' names; those of block diffusion come last."""

SOME_THAT_RUN = ", ".join(family.published_sizes for family in FAMILIES.values())
"""Whose shapes the kernels accept, as tests/multi_launch_builder/test_mlb_shapes.py has them."""
