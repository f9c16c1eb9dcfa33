"""bf16 on the host: storage in bf16, arithmetic in float32, one rounding per value written.

The RoPE table is by the formula of Su et al. 2021, with the wavelength rule of Llama 3.1 and later ("llama3"
in transformers' modeling_rope_utils). Angles are computed in float32 in the same order of operations as
transformers, so that after rounding to bf16 both hold the same table.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from aerie.engine.config import Llama3Scaling, ModelConfig

bf16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
BF16Array: TypeAlias = npt.NDArray[Any]  # numpy's types know no bfloat16
F32Array: TypeAlias = npt.NDArray[np.float32]


def widen(values: BF16Array) -> F32Array:
    """The same values in float32, exactly.

    A bf16 is the upper half of a float32, so a shift does it, several times faster than a cast.
    """
    bits = values.view(np.uint16).astype(np.uint32)
    bits <<= np.uint32(16)
    return bits.view(np.float32)


def rms_norm(x: BF16Array, weight: BF16Array, eps: float) -> BF16Array:
    """x / rms(x) * weight over the last axis; x is (..., hidden), weight is (hidden,)."""
    wide = widen(x)
    mean_square = np.add.reduce(wide * wide, axis=-1, keepdims=True) / np.float32(x.shape[-1])
    normed: BF16Array = (wide / np.sqrt(mean_square + np.float32(eps)) * widen(weight)).astype(bf16)
    return normed


def inverse_frequencies(head_dim: int, theta: float, scaling: Llama3Scaling | None) -> F32Array:
    """Radians per position for each of the head_dim / 2 pairs, shape (head_dim // 2,)."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = np.float32(1.0) / np.float32(theta) ** exponents
    return frequencies if scaling is None else _llama3(frequencies, scaling)


def _llama3(frequencies: F32Array, scaling: Llama3Scaling) -> F32Array:
    """Keep wavelengths well inside the original context, stretch those beyond it, blend between."""
    original = np.float32(scaling.original_max_position_embeddings)
    low, high = np.float32(scaling.low_freq_factor), np.float32(scaling.high_freq_factor)
    wavelengths = np.float32(2 * math.pi) / frequencies  # in tokens per turn
    stretched = frequencies / np.float32(scaling.factor)
    share_kept = (original / wavelengths - low) / (high - low)
    blended = (1 - share_kept) * stretched + share_kept * frequencies
    long, short = wavelengths > original / low, wavelengths < original / high
    return np.where(long, stretched, np.where(short, frequencies, blended)).astype(np.float32)


def rope_table(config: ModelConfig, positions: int) -> BF16Array:
    """Row p holds the cosines of position p, then its sines: shape (positions, head_dim), bf16.

    This is the half-split convention of Hugging Face: pair i is elements i and i + head_dim / 2.
    """
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    table: F32Array = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return table.astype(bf16)
