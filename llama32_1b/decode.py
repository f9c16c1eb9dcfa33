"""Decode: one token, at the position after the last one in the KV cache."""

from __future__ import annotations

from collections.abc import Collection

from llama32_1b.attention import Attend, attention_at
from llama32_1b.kv_cache import KVCache
from llama32_1b.model import LlamaModel
from llama32_1b.numerics import BF16Array


def decode_step(model: LlamaModel, token_id: int, cache: KVCache) -> BF16Array:
    """Run `token_id` through every layer, appending its keys and values to `cache`.

    Returns the last layer's output, (hidden_size,).
    """
    with model.host_timer("embedding"):
        x = model.embed_table[token_id]
    last = model.config.num_hidden_layers - 1
    attend = attention_at(cache.length, model.mask)
    for layer in range(last + 1):
        x = _decode_block(model, layer, x, cache, attend, unread=() if layer == last else ("x_next",))
    cache.advance(1)
    return x.copy()  # x is a view on a buffer that the next step overwrites


def _decode_block(
    model: LlamaModel, layer: int, x: BF16Array, cache: KVCache, attend: Attend, unread: Collection[str]
) -> BF16Array:
    """One transformer block over one row; x and the result are (hidden_size,); x_next may be `unread`."""
    position = cache.length
    qkv = model.run("rms_gemv_rope", layer, x=x, rope_row=model.rope[position])
    with model.host_timer("KV cache write"):
        cache.write(layer, position, qkv["k_roped"][None], qkv["v"][None])
    with model.host_timer("decode attention"):
        attention = attend(qkv["q_roped"], *cache.layer(layer))
    return model.run("o_gemv_ffn", layer, unread=unread, x=x, attn_out=attention)["x_next"]
