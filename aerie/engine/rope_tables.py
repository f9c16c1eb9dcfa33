"""The tables of cosines and sines that RoPE turns with: by the formula of Su et al. 2021, with frequencies by
the model's rule (`rope.py`). Layers may have different tables; one without RoPE has one that turns by
nothing, so that all layers run the same programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from aerie.engine.config import ModelConfig
from aerie.engine.numerics import BF16Array, F32Array, bf16
from aerie.engine.rope import RopeScaling, inverse_frequencies


def rope_table(config: ModelConfig, positions: int) -> BF16Array:
    """Row p holds the cosines of position p, then its sines: shape (positions, rotary_dim), bf16.

    Angles are products in float32. This is the half-split convention of Hugging Face: pair i is elements i
    and i + rotary_dim / 2.
    """
    return _table(config.rotary_dim, config.rope_theta, config.rope_scaling, positions)


def _table(rotary_dim: int, theta: float, rule: RopeScaling | None, positions: int) -> BF16Array:
    frequencies = inverse_frequencies(rotary_dim, theta, rule)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    table: F32Array = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    if rule:
        table *= np.float32(rule.magnitude)
    return table.astype(bf16)


@dataclass(frozen=True, eq=False)
class RopeTables:
    """The different tables of a model, each (positions, rotary_dim) bf16, and of each layer the number of its
    own."""

    tables: tuple[BF16Array, ...]
    of_layer: tuple[int, ...]

    @property
    def positions(self) -> int:
        """The rows of each table."""
        return len(self.tables[0])

    def layer(self, layer: int) -> BF16Array:
        """The table of a layer."""
        return self.tables[self.of_layer[layer]]

    def each(self, config: ModelConfig) -> Iterator[BF16Array]:
        """A table for each layer with attention of a KV cache of this config, which has every layer as many
        times as there are parts of the model, one after the other."""
        parts = config.num_hidden_layers // len(self.of_layer)
        return (self.layer(layer // parts) for layer in config.layers_with_attention)

    def first(self, positions: int) -> RopeTables:
        """The rows of the first positions."""
        return RopeTables(tuple(table[:positions] for table in self.tables), self.of_layer)


def rope_tables(config: ModelConfig, positions: int) -> RopeTables:
    """The tables of all layers, with rows for so many positions."""
    table = rope_table(config, positions)
    if not any(config.rope_of_layer):
        return RopeTables((table,), config.rope_of_layer)
    if config.local_rope_theta is not None:
        local = _table(config.rotary_dim, config.local_rope_theta, None, positions)
        return RopeTables((table, local), config.rope_of_layer)
    row = np.zeros(table.shape[1], bf16)
    row[: len(row) // 2] = 1
    without = np.broadcast_to(row, table.shape)
    return RopeTables((table, without), config.rope_of_layer)
