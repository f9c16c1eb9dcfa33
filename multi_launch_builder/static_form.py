"""The static form of a step of block diffusion: the shapes of its inputs.

They are those of `forward_export` of DiffuLex Edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Extents = tuple[int, ...]


@dataclass(frozen=True)
class StaticSizes:
    """What fixes the inputs of a static form: layers, sequences of a call (batch), tokens of a block,
    positions of the cache (max_len), key/value heads, and elements of each."""

    layers: int
    batch: int
    block: int
    max_len: int
    n_kv_heads: int
    head_dim: int

    @property
    def kv_cache(self) -> Extents:
        """Keys at 0 and values at 1 of each layer, heads first."""
        return (self.layers, 2, self.batch, self.n_kv_heads, self.max_len, self.head_dim)

    @property
    def attention_mask(self) -> Extents:
        """Of every row of a block: the cache, then the block's own rows."""
        return (self.layers, self.batch, 1, self.block, self.max_len + self.block)

    @property
    def insert_matrix(self) -> Extents:
        """Which row of the block a position receives."""
        return (self.layers, self.batch, 1, self.max_len, self.block)

    @property
    def keep_mask(self) -> Extents:
        """Which positions stay."""
        return (self.layers, self.batch, 1, self.max_len, 1)

    def cache_bytes(self, itemsize: int = 2) -> int:
        """Bytes of a cache with elements of so many bytes; a step has two of it, one in and one out."""
        return math.prod(self.kv_cache) * itemsize
