"""Decode attention on the CPU: one query position against the KV cache, with grouped heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from llama32_1b.native import native_attention
from llama32_1b.numerics import BF16Array, F32Array, bf16, widen
from virtual_npu import knobs

MaskRule: TypeAlias = Callable[[int], Any]
"""From the query's position to an index over key positions (a slice or a boolean array)."""

Attend: TypeAlias = Callable[[BF16Array, BF16Array, BF16Array], BF16Array]
"""From query, keys and values to what decode_attention gives."""


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
    return attention_at(position, mask)(query, keys, values)


def attention_at(position: int, mask: MaskRule = causal) -> Attend:
    """decode_attention at one position, for all layers of a token: what they share is looked up once."""
    visible = mask(position)
    native = native_attention()
    threads = knobs.threads() if native else 1

    def attend(query: BF16Array, keys: BF16Array, values: BF16Array) -> BF16Array:
        if native and native.serves(query, keys, values, visible):
            return native(query, keys, values, visible, threads)
        return reference_attention(query, keys, values, visible)

    return attend


def reference_attention(query: BF16Array, keys: BF16Array, values: BF16Array, visible: Any) -> BF16Array:
    """The same in numpy, over the positions that the index `visible` picks."""
    kv_heads, _, head_dim = keys.shape
    grouped = widen(query).reshape(kv_heads, -1, head_dim)
    scores = grouped @ widen(keys[:, visible]).transpose(0, 2, 1) / np.float32(math.sqrt(head_dim))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: F32Array = weights @ widen(values[:, visible])
    return mixed.reshape(-1).astype(bf16)
