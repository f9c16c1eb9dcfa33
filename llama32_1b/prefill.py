"""Prefill: the whole prompt in one pass, padded to the compiled length."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from llama32_1b.errors import PromptError, PromptTooLongError
from llama32_1b.kv_cache import KVCache
from llama32_1b.model import LlamaModel
from llama32_1b.numerics import BF16Array


def check_prompt(token_ids: Sequence[int], longest: int, vocab_size: int) -> None:
    """PromptError for a prompt that is empty, too long, or holds a token the model does not have."""
    if not token_ids:
        raise PromptError("the prompt is empty; there is nothing to continue: give it some text")
    if len(token_ids) > longest:
        raise PromptTooLongError(len(token_ids), longest)
    outside = next((token for token in token_ids if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise PromptError(
            f"the prompt holds token {outside} and the model's vocabulary ends at {vocab_size - 1}; "
            f"the tokenizer and the weights do not belong together"
        )


def prefill(model: LlamaModel, token_ids: Sequence[int], cache: KVCache) -> BF16Array:
    """Run the prompt through every layer and write its keys and values to `cache`, which must be empty.

    Returns the last layer's output for each real position, (len(token_ids), hidden_size). Padding
    comes after the prompt and attention is causal, so these rows do not depend on it.
    Raises PromptError for a prompt that cannot be run.
    """
    if cache.length:
        raise ValueError(f"prefill starts at position 0, and the cache holds {cache.length} positions")
    check_prompt(token_ids, model.longest_prompt, model.config.vocab_size)
    length = len(token_ids)
    padding = [model.config.pad_token_id] * (model.seq_len - length)
    with model.host_timer("embedding"):
        x = model.embed_table[[*token_ids, *padding]]
    last = model.config.num_hidden_layers - 1
    for layer in range(last + 1):
        x = _prefill_block(model, layer, x, cache, length, on_device=() if layer == last else ("x_next",))
    cache.advance(length)
    return x[:length].copy()  # x is a view on a buffer that the next prompt overwrites


def _prefill_block(
    model: LlamaModel, layer: int, x: BF16Array, cache: KVCache, length: int, on_device: Collection[str]
) -> BF16Array:
    """One transformer block over all rows; x and the result are (seq_len, hidden_size).

    The host reads keys and values alone; the rest stays on the device, x_next where `on_device` names it.
    """
    qkv = model.run("rms_gemms_rope", layer, on_device=("q_roped",), x=x)
    with model.host_timer("KV cache write"):
        cache.write(layer, 0, qkv["k_roped"][:length], qkv["v"][:length])
    attention = model.run("flash_attn", layer, on_device=("attn_out",), **qkv)
    return model.run("o_ffn", layer, on_device=on_device, x=x, **attention)["x_next"]
