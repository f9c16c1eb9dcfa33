"""The kernels, found by looking into this folder. A new kernel is a new file with a `KERNEL`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from aerie.kernel_builder.arguments import KernelBuilderError
from aerie.kernel_builder.spec import KernelSpec


class KernelFileError(KernelBuilderError):
    """A file among the kernels that is none, or that has the name of another one's kernel."""


@cache
def registry() -> dict[str, KernelSpec]:
    """Every kernel by name: the `KERNEL` of each module in this folder, and what else it has of the kind.

    Raises KernelFileError for a file without a kernel, and for a name that two kernels have.
    """
    found: dict[str, KernelSpec] = {}
    files = sorted(file.name for file in pkgutil.iter_modules(__path__))
    for file in files:
        for spec in _kernels(file):
            if spec.name in found:
                raise KernelFileError(
                    f"kernels/{file}.py: there is a kernel named '{spec.name}' already; give it another name"
                )
            found[spec.name] = spec
    return found


def _kernels(file: str) -> list[KernelSpec]:
    module = importlib.import_module(f"{__name__}.{file}")
    specs = [value for value in vars(module).values() if isinstance(value, KernelSpec)]
    if not isinstance(getattr(module, "KERNEL", None), KernelSpec):
        raise KernelFileError(
            f"kernels/{file}.py has no KERNEL: end it with `KERNEL = KernelSpec(...)`, as eltwise_add.py "
            "does, or keep what is no kernel elsewhere"
        )
    return specs
