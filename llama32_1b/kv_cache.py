"""The KV cache: keys and values of every position seen, owned by one object."""

from __future__ import annotations

import numpy as np

from llama32_1b.config import LlamaConfig
from llama32_1b.numerics import BF16Array, bf16


class KVCache:
    """Keys (after RoPE) and values, each (layers, kv_heads, capacity, head_dim) in bf16.

    Head-major, so that attention reads one head's positions as one contiguous block. `length` is the
    number of positions that every layer holds; a decode step writes its position in each layer and
    then calls `advance`.
    """

    def __init__(self, config: LlamaConfig, capacity: int) -> None:
        shape = (config.num_hidden_layers, config.num_key_value_heads, capacity, config.head_dim)
        keys, values = np.zeros(shape, bf16), np.zeros(shape, bf16)
        self._layers = list(zip(keys, values, strict=True))
        self.capacity = capacity
        self.length = 0

    def layer(self, layer: int) -> tuple[BF16Array, BF16Array]:
        """Keys and values of one layer, each (kv_heads, capacity, head_dim), not copied."""
        return self._layers[layer]

    def write(self, layer: int, position: int, keys: BF16Array, values: BF16Array) -> None:
        """Store rows for positions from `position` on; keys and values are (rows, kv_heads * head_dim)."""
        rows = keys.shape[0]
        if position + rows > self.capacity:
            raise IndexError(f"positions {position}..{position + rows - 1} in a cache of {self.capacity}")
        for stored, given in zip(self._layers[layer], (keys, values), strict=True):
            heads, _, head_dim = stored.shape
            by_head = given.reshape(rows, heads, head_dim).transpose(1, 0, 2)
            stored[:, position : position + rows] = by_head

    def advance(self, positions: int) -> None:
        """Count `positions` more as held, once every layer has written them."""
        self.length += positions
