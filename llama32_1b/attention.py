"""Decode attention on the CPU: one query position against the KV cache, with grouped heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from llama32_1b.kv_cache import Layers, write_rows
from llama32_1b.native import LayerCode, NativeAttention, Seen, native_attention
from llama32_1b.numerics import BF16Array, F32Array, bf16, widen
from runtime import HostWork
from virtual_npu import knobs

MaskRule: TypeAlias = Callable[[int], Any]
"""From the query's position to an index over key positions (a slice or a boolean array)."""


def causal(position: int) -> slice:
    """A position sees itself and every earlier one."""
    return slice(0, position + 1)


def decode_attention(
    query: BF16Array, keys: BF16Array, values: BF16Array, position: int, mask: MaskRule = causal
) -> BF16Array:
    """softmax(q k^T / sqrt(head_dim)) v for one position.

    query is (heads * head_dim,) after RoPE; keys and values are (kv_heads, capacity, head_dim).
    Query heads g * n .. g * n + n - 1 share KV head g. Scores, softmax and sums are float32; the
    result, (heads * head_dim,), is rounded to bf16 once. In C++ where that can be had (llama32_1b.native),
    else in numpy; the two differ by the order of summation.
    """
    visible = mask(position)
    arrays = query, keys, values
    native = _serving(keys, visible) if all(array.flags.c_contiguous for array in arrays) else None
    if native:
        return native(*arrays, visible, knobs.threads())
    return reference_attention(*arrays, visible)


def _serving(keys: BF16Array, visible: object) -> NativeAttention | None:
    """The C++ form where it can be had and serves these."""
    native = native_attention()
    return native if native and native.serves(keys, visible) else None


class CacheAttention:
    """What the host does in each layer of a decoded token: keep its keys and values, and attend to the cache.

    `layers` are keys and values of each layer, (kv_heads, capacity, head_dim); `out`, (width,), receives the
    attention of all heads. `see` comes before each token. The form, C++ or numpy, is chosen once, by what the
    first token sees.
    """

    def __init__(self, layers: Layers, width: int, visible: Any) -> None:
        self.out = np.empty(width, bf16)
        self._layers = layers
        self._position, self._visible, self._seen = 0, visible, Seen()
        self._native = _serving(layers[0][0], visible)
        self._threads = knobs.threads() if self._native else 1

    def serves(self, visible: Any) -> bool:
        """Whether a token that sees `visible` would be given the same form."""
        return _serving(self._layers[0][0], visible) is self._native

    def see(self, position: int, visible: Any) -> None:
        """The next token stands at `position` and sees the positions that the index `visible` picks."""
        self._position, self._visible = position, visible
        if self._native:
            self._seen.see(position, visible, self._layers[0][0].shape[1])

    def works(
        self, layer: int, query: BF16Array, key_row: BF16Array, value_row: BF16Array
    ) -> tuple[HostWork, HostWork]:
        """To keep the rows, (kv_heads * head_dim,), and to attend with the query, in arrays that stay."""
        keys, values = self._layers[layer]
        given = {"query": query, "key_row": key_row, "value_row": value_row}
        if self._native and all(array.flags.c_contiguous for array in given.values()):
            arrays = {**given, "keys": keys, "values": values, "out": self.out}
            code = LayerCode(self._native, self._seen, self._threads, **arrays)
            return code.keep_row(), code.attend()

        def keep() -> None:
            write_rows((keys, values), self._position, key_row[None], value_row[None])

        def attend() -> None:
            self.out[...] = reference_attention(query, keys, values, self._visible)

        return HostWork(keep), HostWork(attend)


def reference_attention(query: BF16Array, keys: BF16Array, values: BF16Array, visible: Any) -> BF16Array:
    """The same in numpy, over the positions that the index `visible` picks."""
    kv_heads, _, head_dim = keys.shape
    grouped = widen(query).reshape(kv_heads, -1, head_dim)
    scores = grouped @ widen(keys[:, visible]).transpose(0, 2, 1) / np.float32(math.sqrt(head_dim))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: F32Array = weights @ widen(values[:, visible])
    return mixed.reshape(-1).astype(bf16)
