"""bf16 on the host: storage in bf16, arithmetic in float32, one rounding per value written."""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

bf16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
BF16Array: TypeAlias = npt.NDArray[Any]  # numpy's types know no bfloat16
F32Array: TypeAlias = npt.NDArray[np.float32]


def widen(values: BF16Array) -> F32Array:
    """Convert bf16 to float32, exactly.

    A bf16 is the upper half of a float32, so a shift converts it, several times faster than a cast.
    """
    bits = values.view(np.uint16).astype(np.uint32)
    bits <<= np.uint32(16)
    return bits.view(np.float32)


def rms_norm(x: BF16Array, weight: BF16Array, eps: float, weight_offset: int = 0) -> BF16Array:
    """x / rms(x) * (weight + weight_offset) over the last axis; x is (..., hidden), weight is (hidden,)."""
    wide = widen(x)
    mean_square = np.add.reduce(wide * wide, axis=-1, keepdims=True) / np.float32(x.shape[-1])
    factors = widen(weight) + np.float32(weight_offset)
    normed: BF16Array = (wide / np.sqrt(mean_square + np.float32(eps)) * factors).astype(bf16)
    return normed


def apply_rope(keys: BF16Array, rows: BF16Array) -> BF16Array:
    """Apply RoPE to keys, (kv_heads, positions, head_dim), by the rows of their positions in a `rope_table`:
    to as many of their first elements as a row is wide.

    Bit-identical with kernels_cc/rope_halfsplit.cc: products of bf16 are exact in float32, and their sum is
    rounded once, then to bf16.
    """
    width = rows.shape[-1]
    half = width // 2
    wide, table = widen(keys), widen(rows)
    (first, second), (cos, sin) = ((each[..., :half], each[..., half:width]) for each in (wide, table))
    rest = wide[..., width:]
    both = np.concatenate([first * cos - second * sin, first * sin + second * cos, rest], axis=-1)
    result: BF16Array = both.astype(bf16)
    return result
