"""Block floating point as include/vnpu/bfp16.h describes it, in numpy, number by number."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
BLOCK = 8


def round_even(steps: Array) -> Array:
    return np.rint(steps)


def converted(values: Array, axis: int, rounding: Any = round_even) -> Array:
    """What bfp16 keeps of f32 numbers; each 8 in a row along `axis` are a block. Float64."""
    blocks = np.moveaxis(values.astype(np.float64), axis, -1)
    shape = blocks.shape
    blocks = blocks.reshape(*shape[:-1], -1, BLOCK)
    largest = np.abs(blocks).max(-1, keepdims=True)
    finite = np.isfinite(largest)
    exponent = np.frexp(np.where(finite, np.maximum(largest, 2.0**-126), 1.0))[1] - 1
    step = np.ldexp(1.0, exponent - 6)
    finite_blocks = np.where(finite, blocks, 0.0)
    is_above = rounding(finite_blocks / step).max(-1, keepdims=True) > 127
    step = np.where(is_above, 2 * step, step)
    kept = np.where(finite, rounding(finite_blocks / step) * step, np.nan)
    kept = np.where(np.abs(kept) == 2.0**128, np.copysign(np.inf, kept), kept)
    return np.moveaxis(kept.reshape(shape), -1, axis)


def product(a: Array, b: Array, c: Array, rounding: Any = round_even) -> Array:
    """c + a @ b, f32; one rounding for every 8 of K."""
    left, right = converted(a, 1, rounding), converted(b, 0, rounding)
    total = c.astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for k in range(0, a.shape[1], BLOCK):
            block = left[:, k : k + BLOCK] @ right[k : k + BLOCK]
            total = (total + block.astype(np.float32)).astype(np.float32)
    return total
