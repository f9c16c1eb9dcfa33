"""How the gated delta rule has its rows and its state, for the kernel and for the host that fills them.

This needs no IR, so that running a program does not load it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LANES = 16
"""Elements of one vector operation in gated_delta_rule.cc."""
TILE = 32
"""Most columns of a unit's part of the state: of 128 keys they take 16 KiB of L1."""
DECAY, RATE, PRESENT = range(3)
"""The numbers of a row's gates, f32 in the place of LANES elements of bf16."""


def row_width(key_dim: int, value_dim: int) -> int:
    """Elements of a position's row of a head: query, key, gates, value."""
    return 2 * key_dim + LANES + value_dim


def tile_columns(value_dim: int) -> int:
    """Columns of a unit's part of the state. value_dim: a multiple of LANES."""
    return TILE if value_dim % TILE == 0 else LANES


def state_shape(heads: int, key_dim: int, value_dim: int) -> tuple[int, int, int]:
    """The shape of a state: (units, keys, columns of a unit). The units of a head follow each other."""
    tile = tile_columns(value_dim)
    return heads * (value_dim // tile), key_dim, tile


def from_tiles(state: NDArray[Any], heads: int) -> NDArray[Any]:
    """A state of `state_shape` as (heads, keys, values)."""
    units, keys, tile = state.shape
    by_head = state.reshape(heads, units // heads, keys, tile)
    return np.asarray(by_head.swapaxes(1, 2).reshape(heads, keys, -1))


def to_tiles(state: NDArray[Any]) -> NDArray[Any]:
    """A state (heads, keys, values) in the order of `state_shape`."""
    heads, keys, values = state.shape
    tile = tile_columns(values)
    return np.asarray(state.reshape(heads, keys, values // tile, tile).swapaxes(1, 2).reshape(-1, keys, tile))
