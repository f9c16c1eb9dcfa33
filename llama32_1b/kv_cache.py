"""The KV cache: keys and values of every position seen, owned by one object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from llama32_1b.config import LlamaConfig
from llama32_1b.numerics import BF16Array, bf16

KeysAndValues: TypeAlias = tuple[BF16Array, BF16Array]
Layers: TypeAlias = Sequence[KeysAndValues]


class KVCache:
    """Keys (after RoPE) and values, each (layers, kv_heads, capacity, head_dim) in bf16.

    Head-major, so that attention reads one head's positions as one contiguous block. `layers` are keys and
    values of each layer. `length` is the number of positions that every layer holds; a decode step writes its
    position in each layer and then calls `advance`. `token_pass` is decode's, which keeps there what is the
    same for all tokens.
    """

    def __init__(self, config: LlamaConfig, capacity: int) -> None:
        shape = (config.num_hidden_layers, config.num_key_value_heads, capacity, config.head_dim)
        keys, values = np.zeros(shape, bf16), np.zeros(shape, bf16)
        self.layers: Layers = list(zip(keys, values, strict=True))
        self.capacity = capacity
        self.length = 0
        self.token_pass: object = None

    def write(self, layer: int, position: int, keys: BF16Array, values: BF16Array) -> None:
        """Store rows for positions from `position` on; keys and values are (rows, kv_heads * head_dim)."""
        self.check_room(position, len(keys))
        write_rows(self.layers[layer], position, keys, values)

    def check_room(self, position: int, rows: int) -> None:
        """IndexError where so many rows from `position` on do not fit."""
        if position + rows > self.capacity:
            raise IndexError(f"positions {position}..{position + rows - 1} in a cache of {self.capacity}")

    def advance(self, positions: int) -> None:
        """Count `positions` more as held, once every layer has written them."""
        self.length += positions


def write_rows(stored: KeysAndValues, position: int, keys: BF16Array, values: BF16Array) -> None:
    """Store rows, (rows, kv_heads * head_dim), at the positions of a layer from `position` on."""
    for cache, given in zip(stored, (keys, values), strict=True):
        heads, _, head_dim = cache.shape
        rows = len(given)
        cache[:, position : position + rows] = given.reshape(rows, heads, head_dim).transpose(1, 0, 2)
