"""The rotary position embedding table.

Formula: Su et al. 2021, with the wavelength rule of Llama 3.1 and later ("llama3" in transformers'
modeling_rope_utils). Angles are computed in float32 in the same order of operations as transformers,
so that after rounding to bf16 both hold the same table.
"""

from __future__ import annotations

import math

import numpy as np

from llama32_1b.config import Llama3Scaling, LlamaConfig
from llama32_1b.numerics import BF16Array, F32Array, bf16


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


def rope_table(config: LlamaConfig, positions: int) -> BF16Array:
    """Row p holds the cosines of position p, then its sines: shape (positions, head_dim), bf16.

    This is the half-split convention of Hugging Face: pair i is elements i and i + head_dim / 2.
    """
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    table: F32Array = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return table.astype(bf16)
