"""What the virtual NPU makes of one launch: in both numerics, and on cores that nobody told how to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kernel_builder.spec import Array, KernelModule
from kernel_builder.testing import READ
from virtual_npu import BuildOptions, Program

AS_WRITTEN = BuildOptions(fast=False)
"""Every product and copy one by one, as the program says and a core does it."""

NUMERICS = {"exact": AS_WRITTEN, "bfp16": replace(AS_WRITTEN, numerics="bfp16")}
"""How bf16 matrix products are made: exact in f32, or in block floating point as AIE2P emulates them."""

FLOOR = {f"{name}, rounded down": replace(options, rounding="floor") for name, options in NUMERICS.items()}
"""The same as cores start, which is for kernels that nothing tells how to round (docs/virtual_npu.md)."""


PRODUCTS = ("vector.contract", "BFP16")
"""A kernel whose text has neither makes no matrix product that can go through blocks (docs/virtual_npu.md):
its numbers are the same in both numerics."""


def has_products(kernel: KernelModule) -> bool:
    """Whether the numerics can make a difference to the kernel."""
    return any(mark in kernel.text for mark in PRODUCTS)


def run_launch(
    kernel: KernelModule, read: Mapping[str, Array], variants: Mapping[str, BuildOptions]
) -> dict[str, dict[str, Array]]:
    """For each variant every argument that the kernel writes, by name, from arrays of those that it reads."""
    results: dict[str, dict[str, Array]] = {}
    for name, options in variants.items():
        same = next(iter(results.values()), None) if not has_products(kernel) else None
        results[name] = _run(kernel, read, options) if same is None else same
    return results


def _run(kernel: KernelModule, read: Mapping[str, Array], options: BuildOptions) -> dict[str, Array]:
    given = [
        read[a.name].reshape(a.shape) if a.role in READ else np.full(a.shape, np.nan, a.dtype.numpy)
        for a in kernel.arguments
    ]
    outputs = Program.from_text(kernel.text, kernel.name, options=options).run(*given).outputs
    found = zip(kernel.arguments, outputs, strict=True)
    return {argument.name: array for argument, array in found if argument.role not in READ}
