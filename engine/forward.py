"""The forward pass: a prompt in one pass, then token by token, and from a hidden row to logits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.engine.attention import CacheAttention, KVCache
from aerie.engine.config import ModelConfig
from aerie.engine.embeddings import Token, embed, ids_among
from aerie.engine.errors import PromptError, PromptTooLongError
from aerie.engine.logits import last_row
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array, bf16, rms_norm, widen
from aerie.engine.programs import PREFILL_PROGRAMS, buffer_set
from aerie.engine.progress import Step, no_step
from aerie.multi_launch_builder import Program, legal_seq_len
from aerie.runtime import HostWork, Recording


def check_prompt(token_ids: Sequence[Token], config: ModelConfig, seq_len: int | None = None) -> None:
    """PromptError for a prompt that is empty, too long, or holds a token the model does not have.

    seq_len: the length that the programs are compiled for; None: whatever it takes.
    """
    if not token_ids:
        raise PromptError("the prompt is empty; there is nothing to continue: give it some text")
    length, positions = len(token_ids), config.context
    if length > positions:
        raise PromptTooLongError(length, positions, None)
    if seq_len is not None and length > seq_len:
        raise PromptTooLongError(length, seq_len, legal_seq_len(length))
    outside = next((token for token in ids_among(token_ids) if not 0 <= token < config.vocab_size), None)
    if outside is not None:
        raise PromptError(
            f"the prompt holds token {outside} and the model's vocabulary ends at {config.vocab_size - 1}; "
            f"the tokenizer and the weights do not belong together"
        )


def prefill_steps(config: ModelConfig) -> int:
    """How many programs `prefill` runs."""
    return config.num_hidden_layers * len(PREFILL_PROGRAMS)


def prefill(
    model: LoadedModel, token_ids: Sequence[Token], cache: KVCache, step: Step = no_step
) -> BF16Array:
    """Run the prompt through every layer and write its keys and values to `cache`, which must be empty.

    A token is an id or an embedding. Returns the last layer's output for each real position,
    (len(token_ids), hidden_size). Padding comes after the prompt and attention is causal, so these rows do
    not depend on it. `step` is told of every program that has run. An exception in between, KeyboardInterrupt
    too, leaves `cache` empty.
    Raises PromptError for a prompt that cannot be run.
    """
    if cache.length:
        raise ValueError(f"prefill starts at position 0, and the cache holds {cache.length} positions")
    check_prompt(token_ids, model.config, model.seq_len)
    length = len(token_ids)
    padding = [model.config.pad_token_id] * (model.seq_len - length)
    with model.host_timer("embedding"):
        x = embed(model.embed_table, [*token_ids, *padding])
    last = model.config.num_hidden_layers - 1
    numbers = itertools.count(1)

    def ran(program: str) -> None:
        step(program, next(numbers))

    for layer in range(last + 1):
        on_device = () if layer == last else ("x_next",)
        x = _prefill_block(model, layer, x, cache, length, on_device, ran)
    cache.advance(length)
    return x[:length].copy()  # x is a view on a buffer that the next prompt overwrites


def _prefill_block(
    model: LoadedModel,
    layer: int,
    x: BF16Array,
    cache: KVCache,
    length: int,
    on_device: Collection[str],
    ran: Callable[[str], None],
) -> BF16Array:
    """One transformer block over all rows; x and the result are (seq_len, hidden_size).

    The host reads keys and values alone; the rest stays on the device, x_next where `on_device` names it.
    `ran` is told of every program.
    """
    qkv = model.run("rms_gemms_rope", layer, on_device=("q_roped",), x=x)
    ran("rms_gemms_rope")
    with model.host_timer("KV cache write"):
        cache.write(layer, 0, qkv["k_roped"][:length], qkv["v"][:length])
    attention = model.run("flash_attn", layer, on_device=("attn_out",), **qkv)
    ran("flash_attn")
    x_next = model.run("o_ffn", layer, on_device=on_device, x=x, **attention)["x_next"]
    ran("o_ffn")
    return x_next


def decode_step(model: LoadedModel, token_id: int, cache: KVCache) -> BF16Array:
    """Run `token_id` through every layer, at the position after the last one in `cache`, which receives its
    keys and values.

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

    Where the model's runner records calls, they are noted once and repeated for every token; else they are
    made layer by layer.
    """

    def __init__(self, model: LoadedModel, cache: KVCache, visible: Any) -> None:
        config = model.config
        self._model = model
        self._x = np.empty(config.hidden_size, bf16)
        self._rope_row = np.empty_like(model.rope[0])
        self._attention = CacheAttention(cache.layers, config.num_attention_heads * config.head_dim, visible)
        self._recording = model.runner.record()
        if self._recording:
            self._recorded = self._layers(self._recording)

    def serves(self, model: LoadedModel, visible: Any) -> bool:
        """Whether it is this model's, for a token that sees `visible`, and its buffers are there still."""
        is_current = self._recording is None or self._recording.is_current
        return model is self._model and is_current and self._attention.serves(visible)

    def __call__(self, token_id: int, position: int, visible: Any) -> BF16Array:
        """The last layer's output, (hidden_size,), for a token at a position."""
        with self._model.host_timer("embedding"):
            self._x[...] = self._model.embed_table[token_id]
            self._rope_row[...] = self._model.rope[position]
        self._attention.move_to(position, visible)
        if self._recording is None:
            row = self._layers(_AtOnce(self._model))
        else:
            self._recording()
            row = self._recorded
        return row.copy()  # a view on a buffer that the next token overwrites

    def _layers(self, steps: Recording | _AtOnce) -> BF16Array:
        x = self._x
        last = self._model.config.num_hidden_layers - 1
        for layer in range(last + 1):
            x = self._block(steps, layer, x, on_device=() if layer == last else ("x_next",))
        return x

    def _block(
        self, steps: Recording | _AtOnce, layer: int, x: BF16Array, on_device: Collection[str]
    ) -> BF16Array:
        """One transformer block over one row; x and the result are (hidden_size,)."""
        qkv, o_ffn = (self._model.programs[name] for name in ("rms_gemv_rope", "o_gemv_ffn"))
        key = buffer_set(qkv.name, layer)
        rows = steps.run(qkv, bo_key=key, on_device=(), x=x, rope_row=self._rope_row)
        keep, attend = self._attention.works(layer, rows["q_roped"], rows["k_roped"], rows["v"])
        steps.host("KV cache write", keep)
        steps.host("decode attention", attend)
        key, out = buffer_set(o_ffn.name, layer), self._attention.out
        return steps.run(o_ffn, bo_key=key, on_device=on_device, x=x, attn_out=out)["x_next"]


class _AtOnce:
    """Takes at once the steps that a Recording would note."""

    def __init__(self, model: LoadedModel) -> None:
        self._runner, self._timer = model.runner, model.host_timer

    def run(
        self, program: Program, /, *, bo_key: str, on_device: Collection[str], **arrays: NDArray[Any]
    ) -> dict[str, NDArray[Any]]:
        return self._runner.run(program, bo_key=bo_key, copy=False, on_device=on_device, **arrays)

    def host(self, name: str, work: HostWork) -> None:
        with self._timer(name):
            work.do()


def next_token_logits(model: LoadedModel, hidden: BF16Array) -> F32Array:
    """Logits after one position: `hidden` is that row of the last layer's output, (hidden_size,).

    Returns (vocab_size,) in float32 (values of bf16 precision); the padding of the vocabulary is cut.
    """
    row = next_token_row(model, hidden)
    return widen(row) if row.dtype == bf16 else row


def all_logits(model: LoadedModel, hidden: BF16Array) -> F32Array:
    """As next_token_logits for rows of the last layer's output, (rows, hidden_size): (rows, vocab_size)."""
    return np.stack([next_token_logits(model, row) for row in hidden])


def next_token_row(model: LoadedModel, hidden: BF16Array) -> BF16Array | F32Array:
    """As next_token_logits, in bf16 where the program gives them so: what a Sampler takes as well."""
    with model.host_timer("final RMSNorm"):
        x = rms_norm(hidden, model.final_norm, model.config.rms_norm_eps)
    made = model.run("lm_head_gemv", x=x)
    return last_row(model.programs["lm_head_gemv"].arguments, made, model.config.vocab_size)
