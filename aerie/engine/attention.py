"""Decode attention on the CPU over the KV cache: one query position, grouped heads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.common import knobs
from aerie.engine.kv_cache import KeysAndValues, Layers, write_rows
from aerie.engine.native import KVPosition, NativeAttention, NativeLayer, native_attention
from aerie.engine.numerics import BF16Array, F32Array, bf16, widen
from aerie.runtime import HostWork


def _native_for(keys: BF16Array, visible: Sequence[object]) -> NativeAttention | None:
    """The C++ functions if they can attend to these keys, else None."""
    native = native_attention()
    return native if native and all(native.can_attend(keys, each) for each in visible) else None


class NewKVRows:
    """Stores keys and values of new tokens in a cache, with C++ code if it is available.

    layers: keys and values of each layer, (kv_heads, capacity, head_dim). keys_before_rope: the same shape
    for each layer; empty if the cache does not store them. window_of_layer: which of the arrays of
    `set_positions` is for a layer; () if there is one for all. Call `set_position` or `set_positions` before
    each call.
    """

    def __init__(
        self,
        layers: Layers | Mapping[int, KeysAndValues],
        keys_before_rope: Sequence[BF16Array] = (),
        window_of_layer: Sequence[int] = (),
    ) -> None:
        self._layers, self._keys_before_rope = layers, keys_before_rope
        self._window_of_layer = window_of_layer or [0] * len(layers)
        count = 1 + max(self._window_of_layer)
        self._positions = [KVPosition() for _ in range(count)]
        first_layers = (layers[self._window_of_layer.index(window)] for window in range(count))
        self._capacities = [keys.shape[1] for keys, _ in first_layers]
        self._native = native_attention() if layers[0][0].flags.c_contiguous else None

    def set_position(self, position: int, rows: int = 1) -> None:
        """Store `rows` rows from `position` on in the next call. Raises IndexError if one is outside the
        cache."""
        _check(position, position + rows - 1, self._capacities[0])
        self._positions[0].set_rows(position, rows)

    def set_positions(self, *positions: NDArray[np.int64]) -> None:
        """Store a row at each of these positions in the next call, int64 (rows,): one array for each window.
        Raises IndexError if one is outside the cache."""
        for of_window, array, capacity in zip(self._positions, positions, self._capacities, strict=True):
            if len(array):
                _check(int(array.min()), int(array.max()), capacity)
            of_window.set_row_positions(array)

    def layer_work(
        self, layer: int, key_rows: BF16Array, value_rows: BF16Array, *keys_before_rope: BF16Array
    ) -> list[HostWork]:
        """The host work that stores the first of these rows, (rows, kv_heads * head_dim), in `layer`. The
        arrays must stay at their addresses."""
        position = self._positions[self._window_of_layer[layer]]
        work = [self._work(position, self._layers[layer], key_rows, value_rows)]
        for rows in keys_before_rope:
            stored = self._keys_before_rope[layer]
            work.append(self._work(position, (stored, stored), rows, rows))  # the same twice, at one place
        return work

    def _work(
        self, position: KVPosition, stored: KeysAndValues, key_rows: BF16Array, value_rows: BF16Array
    ) -> HostWork:
        keys, values = stored
        if self._native and key_rows.flags.c_contiguous and value_rows.flags.c_contiguous:
            arrays = {"keys": keys, "values": values, "key_rows": key_rows, "value_rows": value_rows}
            return NativeLayer(self._native, position, threads=1, scale=None, **arrays).keep_rows()

        def keep() -> None:
            positions = position.positions
            write_rows(stored, positions, key_rows[: len(positions)], value_rows[: len(positions)])

        return HostWork(keep)


def _check(first: int, last: int, capacity: int) -> None:
    """Raises IndexError for positions outside a cache."""
    if first < 0 or last >= capacity:
        raise IndexError(f"positions {first}..{last} in a cache of {capacity}")


class CacheAttention:
    """The host work of a decoded token in each layer: store its key and value, then attend to the cache.

    layers: keys and values of each layer, (kv_heads, capacity, head_dim). out: (width,) bf16, receives the
    attention of all heads. Call `set_position` before each token. C++ or numpy is chosen once, by the
    positions that the first token attends to. visible: one index for each different window.
    keys_before_rope: as in NewKVRows. scale: what scores are multiplied with; None means 1 / sqrt(head_dim).
    window_of_layer: which of the indices selects the positions of a layer, by the layer's number modulo the
    length.
    """

    def __init__(
        self,
        layers: Layers,
        width: int,
        visible: Sequence[Any],
        keys_before_rope: Sequence[BF16Array] = (),
        scale: float | None = None,
        window_of_layer: Sequence[int] = (0,),
    ) -> None:
        self._scale = scale
        self.out = np.empty(width, bf16)
        self._layers, self._rows = layers, NewKVRows(layers, keys_before_rope)
        self._visible, self._positions = visible, [KVPosition() for _ in visible]
        self._window_of_layer = window_of_layer
        self._native = _native_for(layers[0][0], visible)
        self._threads = knobs.thread_count() if self._native else 1

    def can_reuse_for(self, visible: Sequence[Any]) -> bool:
        """Whether a token that attends to `visible` would use the same implementation."""
        return _native_for(self._layers[0][0], visible) is self._native

    def set_position(self, position: int, visible: Sequence[Any]) -> None:
        """Store the next token at this position of the cache, and let it attend to the positions that the
        indices `visible` select, one for each window."""
        self._rows.set_position(position)
        self._visible = visible
        if self._native:
            for of_window, index in zip(self._positions, visible, strict=True):
                of_window.set_visible(index, self._layers[0][0].shape[1])

    def layer_work(self, layer: int, query: BF16Array, *new: BF16Array) -> tuple[list[HostWork], HostWork]:
        """The host work of a layer: store the new rows, each (kv_heads * head_dim,): key, value and, if the
        cache has it, the key before RoPE; then attend with `query`. The arrays must stay at their addresses.
        """
        keys, values = self._layers[layer]
        window = self._window_of_layer[layer % len(self._window_of_layer)]
        key_row, value_row, *keys_before_rope = (row[None] for row in new)
        keep = self._rows.layer_work(layer, key_row, value_row, *keys_before_rope)
        if self._native and query.flags.c_contiguous:
            arrays = {"query": query, "keys": keys, "values": values, "out": self.out}
            threads, scale = self._threads, self._scale
            return keep, NativeLayer(self._native, self._positions[window], threads, scale, **arrays).attend()

        def attend() -> None:
            self.out[...] = reference_attention(query, keys, values, self._visible[window], self._scale)

        return keep, HostWork(attend)


def reference_attention(
    query: BF16Array, keys: BF16Array, values: BF16Array, visible: Any, scale: float | None = None
) -> BF16Array:
    """softmax(q k^T scale) v for one position, over the positions that the index `visible` picks. scale: None
    means 1 / sqrt(head_dim).

    query is (heads * head_dim,) after RoPE; keys and values are (kv_heads, capacity, head_dim). Query heads
    g * n .. g * n + n - 1 share KV head g. Scores, softmax and sums are float32; the result,
    (heads * head_dim,), is rounded to bf16 once. The C++ form differs by the order of summation.
    """
    kv_heads, _, head_dim = keys.shape
    grouped = widen(query).reshape(kv_heads, -1, head_dim)
    products = grouped @ widen(keys[:, visible]).transpose(0, 2, 1)
    scores = products / np.float32(math.sqrt(head_dim)) if scale is None else products * np.float32(scale)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: F32Array = weights @ widen(values[:, visible])
    return mixed.reshape(-1).astype(bf16)
