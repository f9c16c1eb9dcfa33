"""Decode: one token, at the position after the last one in the KV cache."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np

from llama32_1b.attention import CacheAttention
from llama32_1b.kv_cache import KVCache
from llama32_1b.model import LlamaModel
from llama32_1b.numerics import BF16Array, bf16
from runtime import HostWork


def decode_step(model: LlamaModel, token_id: int, cache: KVCache) -> BF16Array:
    """Run `token_id` through every layer, appending its keys and values to `cache`.

    Returns the last layer's output, (hidden_size,). IndexError where the cache is full.
    """
    cache.check_room(cache.length, 1)
    visible = model.mask(cache.length)
    kept = cache.token_pass
    if not (isinstance(kept, TokenPass) and kept.serves(model, visible)):
        kept = cache.token_pass = TokenPass(model, cache, visible)
    row = kept(token_id, cache.length, visible)
    cache.advance(1)
    return row


class TokenPass:
    """A token's way through all layers, on arrays that stay in place from token to token.

    Where the model's runner records calls, they are noted once and replayed for every token; else they are
    made layer by layer.
    """

    def __init__(self, model: LlamaModel, cache: KVCache, visible: Any) -> None:
        config = model.config
        self._model = model
        self._x = np.empty(config.hidden_size, bf16)
        self._rope_row = np.empty_like(model.rope[0])
        self._attention = CacheAttention(cache.layers, config.num_attention_heads * config.head_dim, visible)
        self._recording = model.runner.record()
        self._recorded = self._layers() if self._recording else None

    def serves(self, model: LlamaModel, visible: Any) -> bool:
        """Whether it is this model's, for a token that sees `visible`, and its buffers are there still."""
        is_current = self._recording is None or self._recording.is_current
        return model is self._model and is_current and self._attention.serves(visible)

    def __call__(self, token_id: int, position: int, visible: Any) -> BF16Array:
        """The last layer's output, (hidden_size,), for a token at a position."""
        with self._model.host_timer("embedding"):
            self._x[...] = self._model.embed_table[token_id]
            self._rope_row[...] = self._model.rope[position]
        self._attention.see(position, visible)
        if self._recording:
            self._recording()
        row = self._layers() if self._recorded is None else self._recorded
        return row.copy()  # a view on a buffer that the next token overwrites

    def _layers(self) -> BF16Array:
        x = self._x
        last = self._model.config.num_hidden_layers - 1
        for layer in range(last + 1):
            x = self._block(layer, x, on_device=() if layer == last else ("x_next",))
        return x

    def _block(self, layer: int, x: BF16Array, on_device: Collection[str]) -> BF16Array:
        """One transformer block over one row; x and the result are (hidden_size,)."""
        run = partial(self._model.run_by, self._recording or self._model.runner)
        qkv = run("rms_gemv_rope", layer, (), x=x, rope_row=self._rope_row)
        keep, attend = self._attention.works(layer, qkv["q_roped"], qkv["k_roped"], qkv["v"])
        self._host("KV cache write", keep)
        self._host("decode attention", attend)
        return run("o_gemv_ffn", layer, on_device, x=x, attn_out=self._attention.out)["x_next"]

    def _host(self, name: str, work: HostWork) -> None:
        if self._recording:
            self._recording.host(name, work)
            return
        with self._model.host_timer(name):
            work.do()
