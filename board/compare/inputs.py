"""Numbers like those of a model's layer, drawn from a seed.

Small random numbers would not show what large ones do: a decoder's residual stream has a few channels many
times larger than the rest, gains of a norm lie around 1, and a product's weights are scaled so that what
they are multiplied with keeps its size. RoPE's table holds cosines and sines.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernel_builder.arguments import OVERWRITTEN_ROLES, Argument, Role
from kernel_builder.kernels import registry
from kernel_builder.spec import Array
from multi_launch_builder.program import ProgramPlan

LOUD_CHANNELS, LOUDNESS = 32, 8.0
"""One channel in so many is so many times larger, as in the residual streams of trained decoders."""
ROPE_BASE = 500000.0
"""Llama 3's base of the rotation's frequencies."""


def draw(plan: ProgramPlan, seed: int) -> dict[str, Array]:
    """An array for every argument of the plan that is read, by name."""
    rng = np.random.default_rng(seed)
    read = {a.name: a for a in plan.arguments if a.role not in OVERWRITTEN_ROLES}
    arrays = {name: _numbers(argument, rng).astype(argument.dtype.numpy) for name, argument in read.items()}
    return {**arrays, **_kernels_own(plan, read, rng)}


def _numbers(argument: Argument, rng: np.random.Generator) -> Array:
    shape = argument.shape
    if "lut" in argument.name or argument.name == "rope_row":
        return _rotations(shape, rng)
    if argument.role is Role.WEIGHT and len(shape) == 1:
        return rng.normal(1, 0.1, shape)
    numbers: Array = rng.standard_normal(shape)
    if argument.role is Role.WEIGHT:
        numbers /= np.sqrt(max(shape))
    elif argument.name == "x":
        numbers[..., ::LOUD_CHANNELS] *= LOUDNESS
    return numbers


def _rotations(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Cosines, then sines: one row per position, from any position on."""
    half = shape[-1] // 2
    positions = int(rng.integers(0, 64)) + np.arange(shape[0] if len(shape) > 1 else 1)
    angles = positions[:, None] * ROPE_BASE ** (-np.arange(half) / half)
    table: Array = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
    return table.reshape(shape)


def _kernels_own(
    plan: ProgramPlan, read: Mapping[str, Argument], rng: np.random.Generator
) -> dict[str, Array]:
    """What a kernel draws for itself because other numbers make no sense to it."""
    drawn: dict[str, Array] = {}
    for step in plan.steps:
        own = registry()[step.kernel].random_inputs
        for inner, array in (own(step.parameters, rng) if own else {}).items():
            if (name := step.wiring[inner]) in read:
                drawn[name] = array.astype(read[name].dtype.numpy)
    return drawn
