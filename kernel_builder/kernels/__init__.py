"""The kernels, found by searching this folder. A new kernel is a new file with a `KERNEL`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from aerie.kernel_builder.arguments import KernelBuilderError
from aerie.kernel_builder.spec import KernelSpec


class KernelFileError(KernelBuilderError):
    """A file among the kernels defines no kernel, or one whose name is taken."""


@cache
def all_kernels() -> dict[str, KernelSpec]:
    """Every kernel by name: the `KERNEL` of each module in this folder, and its other KernelSpec values.

    Raises KernelFileError if a file has no kernel, or two kernels have one name.
    """
    by_name: dict[str, KernelSpec] = {}
    files = sorted(file.name for file in pkgutil.iter_modules(__path__))
    for file in files:
        for spec in _kernels(file):
            if spec.name in by_name:
                raise KernelFileError(
                    f"kernels/{file}.py: there is a kernel named '{spec.name}' already; give it another name"
                )
            by_name[spec.name] = spec
    return by_name


def _kernels(file: str) -> list[KernelSpec]:
    module = importlib.import_module(f"{__name__}.{file}")
    specs = [value for value in vars(module).values() if isinstance(value, KernelSpec)]
    if not isinstance(getattr(module, "KERNEL", None), KernelSpec):
        raise KernelFileError(
            f"kernels/{file}.py has no KERNEL: end it with `KERNEL = KernelSpec(...)`, as eltwise_add.py "
            "does, or move the file to another folder"
        )
    return specs
