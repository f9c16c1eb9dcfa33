"""The table of cosines and sines that RoPE turns with: by the formula of Su et al. 2021, with frequencies by
the model's rule (`rope.py`)."""

from __future__ import annotations

import numpy as np

from aerie.engine.config import ModelConfig
from aerie.engine.numerics import BF16Array, F32Array, bf16
from aerie.engine.rope import inverse_frequencies


def rope_table(config: ModelConfig, positions: int) -> BF16Array:
    """Row p holds the cosines of position p, then its sines: shape (positions, head_dim), bf16.

    Angles are products in float32. This is the half-split convention of Hugging Face: pair i is elements i
    and i + head_dim / 2.
    """
    rule = config.rope_scaling
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta, rule)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    table: F32Array = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    if rule:
        table *= np.float32(rule.magnitude)
    return table.astype(bf16)
