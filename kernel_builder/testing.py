"""Runs a kernel on the virtual NPU with numpy arrays, and compares it with its reference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from aerie import virtual_npu
from aerie.kernel_builder.arguments import Role
from aerie.kernel_builder.spec import Array, KernelDifference, KernelModule, KernelSpec, Parameters
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.program import Program

READ_ROLES = (Role.INPUT, Role.WEIGHT, Role.LUT)
"""Roles of arguments that a kernel reads."""


def built_kernel(kernel: KernelModule, options: BuildOptions | None = None) -> virtual_npu.Library:
    """The kernel built for the virtual NPU, and stored in its cache of built programs.

    Without `options` the environment's are used.
    """
    options = options or BuildOptions.from_knobs()
    return Program.from_text(kernel.text, kernel.name, options=options).library


def run(
    kernel: KernelModule, arrays: Mapping[str, Array], options: BuildOptions | None = None
) -> dict[str, Array]:
    """Run `kernel` on the virtual NPU, built with `options` (default: what the environment asks for).

    arrays: one array for every argument that the kernel reads, by name; they are not changed.
    Returns the arrays of its OUTPUT arguments, by name. They start as NaN, so that an element the kernel
    does not write shows.
    """
    memory = {a.name: _prepared(kernel, a.name, arrays) for a in kernel.arguments}
    built_kernel(kernel, options).run(
        kernel.name, [memory[name].ctypes.data for name in kernel.arguments.names]
    )
    return {a.name: memory[a.name] for a in kernel.arguments if a.role is Role.OUTPUT}


def _prepared(kernel: KernelModule, name: str, arrays: Mapping[str, Array]) -> Array:
    argument = kernel.arguments[name]
    if argument.role not in READ_ROLES:
        return np.full(argument.shape, np.nan, argument.dtype.numpy)
    array = np.array(arrays[name], dtype=argument.dtype.numpy, order="C")
    if array.shape != argument.shape:
        raise ValueError(f"{kernel.name} wants {argument}, the array given has shape {array.shape}")
    return array


def random_arrays(spec: KernelSpec, parameters: Parameters, rng: np.random.Generator) -> dict[str, Array]:
    """Arrays for every argument that is read: the spec's own, or standard normal numbers."""
    if spec.random_inputs is not None:
        return spec.random_inputs(parameters, rng)
    table = spec.build(**parameters).arguments
    return {a.name: rng.standard_normal(a.shape).astype(a.dtype.numpy) for a in table if a.role in READ_ROLES}


def compare(spec: KernelSpec, parameters: Parameters, seed: int = 0) -> dict[str, KernelDifference]:
    """Run one case on random arrays. Returns how each result differs from its reference, by name."""
    arrays = random_arrays(spec, parameters, np.random.default_rng(seed))
    actual = run(spec.build(**parameters), arrays)
    expected = spec.reference(parameters, arrays)
    return {name: spec.tolerance.compare(actual[name], expected[name]) for name in expected}
