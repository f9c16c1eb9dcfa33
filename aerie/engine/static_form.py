"""The static form of a step of block diffusion: one computation of fixed shapes, all choices in its inputs.

A runtime that knows neither growing caches nor branches can run it. A cache of `max_len` positions goes in
and comes out. Three masks that the host makes say which of them the block sees, and whether its keys and
values are written. Shapes and masks are those of `forward_export` of DiffuLex Edge:

    kv_cache        [layers, 2, batch, kv_heads, max_len, head_dim]     keys at 0, values at 1
    attention_mask  [layers, batch, 1, block, max_len + block]          0 where it is seen, -10000 where not
    insert_matrix   [layers, batch, 1, max_len, block]                  1 where position p becomes row i
    keep_mask       [layers, batch, 1, max_len, 1]                      1 where a position stays

    full    = cache rows, then the block's own
    probs   = softmax(q full_k^T / sqrt(head_dim) + attention_mask)
    updated = cache * keep_mask + insert_matrix @ rows of the block

Embeddings and rows of RoPE's table stand where `forward_export` has token ids and positions: both are
looked up on the host. Here is the form in float32, in numpy, with its masks; the AIR program, in bf16, is in
`multi_launch_builder/static_step.py`, and `inputs`, `statics` and `results` are what it takes and makes.
A cache must hold finite numbers everywhere, as what is not seen counts by a weight of 0: begin with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.checkpoint import Checkpoint
from aerie.engine.config import ModelConfig
from aerie.engine.layer_states import check_no_states
from aerie.engine.logits import dequantise_logits
from aerie.engine.model import lm_head_statics
from aerie.engine.model_family import Multipliers
from aerie.engine.numerics import BF16Array, F32Array, bf16, widen
from aerie.engine.rope_tables import rope_table
from aerie.engine.weights import EMBED, LM_HEAD, Weights, in_layer
from aerie.kernel_builder.activations import SILU
from aerie.multi_launch_builder.program import Program
from aerie.multi_launch_builder.shapes import LM_HEAD_PARTITIONS
from aerie.multi_launch_builder.static_step import CACHE, UPDATED_CACHE, StaticSizes
from aerie.runtime import Static

MASKED = -10000.0
"""Added to the score of a position that a row does not attend to. In bf16 it is -9984, which has the same
effect."""
VISIBLE = 0.0


@dataclass(frozen=True)
class StaticMasks:
    """Masks of a step, in float32: see the top of this file for the shapes."""

    attention_mask: F32Array
    insert_matrix: F32Array
    keep_mask: F32Array

    def arrays(self) -> dict[str, F32Array]:
        """The masks by the names of the inputs."""
        return dict(vars(self))


def masks(sizes: StaticSizes, starts: Sequence[int], commit: bool) -> StaticMasks:
    """The masks of a step on the block that begins at starts[b] in each sequence b, all blocks before it
    being in the cache.

    A row sees the cache up to its block's start, and its whole block. commit: the block's keys and values are
    written to its positions; else the cache stays as it is, up to the sign of zero. Raises UserError for a
    start that is not where a block begins, or whose block does not fit the cache.
    """
    if len(starts) != sizes.batch:
        raise UserError(
            f"{len(starts)} starts for a static form of {sizes.batch} sequences (batch); give one for each"
        )
    attention = np.full(sizes.attention_mask, MASKED, np.float32)
    insert = np.zeros(sizes.insert_matrix, np.float32)
    keep = np.ones(sizes.keep_mask, np.float32)
    attention[..., sizes.max_len :] = VISIBLE
    rows = np.arange(sizes.block)
    for sequence, start in enumerate(starts):
        _check_start(sizes, start)
        attention[:, sequence, :, :, :start] = VISIBLE
        if commit:
            insert[:, sequence, :, start + rows, rows] = 1.0
            keep[:, sequence, :, start : start + sizes.block] = 0.0
    return StaticMasks(attention, insert, keep)


def _check_start(sizes: StaticSizes, start: int) -> None:
    block, last = sizes.block, sizes.max_len - sizes.block
    if start % block or not 0 <= start <= last:
        raise UserError(
            f"no block begins at position {start}: blocks of {block} tokens in a cache of "
            f"{sizes.max_len} positions begin at multiples of {block} up to {last // block * block}; where "
            "the cache is full, export with a larger --max-len"
        )


def static_sizes(config: ModelConfig, layers: int, batch: int, block: int, max_len: int) -> StaticSizes:
    """The sizes of a model's static form. Raises UserError for a model that has none."""
    check_no_states(config.states, "export", f"a {config.architecture} is exported as one program")
    if config.layers_without_rope or config.multipliers != Multipliers() or config.activation != SILU:
        raise UserError(
            f"this {config.architecture} has layers without RoPE, factors of its own or another activation "
            "than SiLU, and the static form has none of these: it cannot be exported; `aerie mlir` writes "
            "its other programs"
        )
    heads, head_dim = config.num_key_value_heads, config.head_dim
    return StaticSizes(layers, batch, block, max_len, heads, head_dim)


def empty_cache(sizes: StaticSizes) -> BF16Array:
    """The initial cache of a program: zeros in bf16."""
    return np.zeros(sizes.kv_cache, bf16)


def inputs(
    checkpoint: Checkpoint,
    program: Program,
    sizes: StaticSizes,
    token_ids: NDArray[np.int64],
    starts: Sequence[int],
    kv_cache: BF16Array,
    commit: bool,
) -> dict[str, BF16Array]:
    """The inputs of the AIR program for a step, by name, all bf16: for each sequence b the block
    token_ids[b], (block,), which starts at starts[b]. Rows of padding are zeros. Raises UserError as `masks`.
    """
    mask_arrays = {name: array.astype(bf16) for name, array in masks(sizes, starts, commit).arrays().items()}
    table, offsets = rope_table(checkpoint.config, sizes.max_len), np.arange(sizes.block)
    positions = np.array(starts)[:, None] + offsets
    rows = {
        "embeddings": checkpoint.weights.embed_table[token_ids.ravel().tolist()],
        "rope_rows": table[positions.ravel()],
    }
    padded = {name: np.zeros(program.arguments[name].shape, bf16) for name in rows}
    for name, of_blocks in rows.items():
        padded[name][: len(of_blocks)] = of_blocks
    return {**padded, "kv_cache": kv_cache, **mask_arrays}


def static_weights(weights: Weights, program: Program) -> dict[str, Static]:
    """The values of the program's weights, by name, read from the checkpoint when a cache preloads them."""
    values: dict[str, Static] = {
        "final_norm": weights.final_norm,
        **lm_head_statics(program, weights.lm_head),
    }
    for layer in range(program.arguments[CACHE].shape[0]):
        values |= {f"{name}_{layer}": tensor for name, tensor in weights.layer(layer).items()}
    return values


@dataclass(frozen=True)
class WeightSource:
    """The source of a program's weight: a tensor of the checkpoint and its first row. Rows beyond the
    tensor's end are zeros."""

    tensor: str
    first_row: int = 0


def weight_sources(config: ModelConfig, program: Program) -> dict[str, WeightSource]:
    """The sources of the program's weights, by name, as Hugging Face's modules have them in memory."""
    head = EMBED if config.tie_word_embeddings else LM_HEAD
    rows = program.arguments["lm_head_0"].shape[0]
    sources = {"final_norm": WeightSource(config.family.final_norm)}
    sources |= {f"lm_head_{part}": WeightSource(head, part * rows) for part in range(LM_HEAD_PARTITIONS)}
    for layer in range(program.arguments[CACHE].shape[0]):
        for name, tensor in config.layer_tensors(layer).items():
            sources[f"{name}_{layer}"] = WeightSource(in_layer(layer, tensor))
    return sources


def results(
    program: Program, sizes: StaticSizes, vocab_size: int, outputs: Mapping[str, BF16Array]
) -> tuple[F32Array, BF16Array]:
    """The results of a run: logits [batch, block, vocab_size], and the updated cache."""
    rows = sizes.batch * sizes.block
    logits = dequantise_logits(program.arguments, outputs, vocab_size, rows, rows)
    return logits.reshape(sizes.batch, sizes.block, vocab_size), outputs[UPDATED_CACHE]


Layer = Mapping[str, F32Array]
"""A layer's weights, by the names of the programs' arguments."""


@dataclass(frozen=True)
class StaticWeights:
    """The weights of a step in float32: `layers` by the programs' names, `final_norm` (hidden_size,),
    `lm_head` (vocab_size, hidden_size)."""

    layers: Sequence[Layer]
    final_norm: F32Array
    lm_head: F32Array

    @classmethod
    def from_weights(cls, weights: Weights, layers: int) -> StaticWeights:
        """The first `layers` layers of a checkpoint, and its head. Raises WeightsError."""
        read = [{k: widen(t.read()) for k, t in weights.layer(i).items()} for i in range(layers)]
        return cls(read, widen(weights.final_norm.read()), widen(weights.lm_head.read()))


def step(
    config: ModelConfig,
    weights: StaticWeights,
    embeddings: F32Array,
    rope_rows: F32Array,
    kv_cache: F32Array,
    attention_mask: F32Array,
    insert_matrix: F32Array,
    keep_mask: F32Array,
) -> tuple[F32Array, F32Array]:
    """A pass over a block of each sequence: logits [batch, block, vocab_size] and the updated cache.

    embeddings: [batch, block, hidden_size]. rope_rows: [batch, block, head_dim], the cosines of the position
    of each row, then its sines. All others: see the top of this file. All float32.
    """
    x, updated = embeddings, np.empty_like(kv_cache)
    for layer, of_layer in enumerate(weights.layers):
        q, new = _queries_and_new_rows(config, of_layer, x, rope_rows)
        x = x + _attend(q, kv_cache[layer], new, attention_mask[layer]) @ of_layer["wo"].T
        x = x + _ffn(config, of_layer, x)
        updated[layer] = kv_cache[layer] * keep_mask[layer] + insert_matrix[layer] @ new
    logits: F32Array = _norm(config, x, weights.final_norm) @ weights.lm_head.T
    return logits, updated


def _norm(config: ModelConfig, x: F32Array, weight: F32Array) -> F32Array:
    scale = np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(config.rms_norm_eps))
    normed: F32Array = x / scale * weight
    return normed


def _queries_and_new_rows(
    config: ModelConfig, layer: Layer, x: F32Array, rope_rows: F32Array
) -> tuple[F32Array, F32Array]:
    """Queries, [batch, heads, block, head_dim]; keys and values, [2, batch, kv_heads, block, head_dim]."""
    normed = _norm(config, x, layer["attn_norm"])

    def heads(projection: str) -> F32Array:
        projected = normed @ layer[f"w{projection}"].T + layer.get(f"b{projection}", np.float32(0))
        split = projected.reshape(*x.shape[:2], -1, config.head_dim).transpose(0, 2, 1, 3)
        return _norm(config, split, layer[f"{projection}_norm"]) if f"{projection}_norm" in layer else split

    keys = _apply_rope(heads("k"), rope_rows)
    return _apply_rope(heads("q"), rope_rows), np.stack([keys, heads("v")])


def _apply_rope(heads: F32Array, rope_rows: F32Array) -> F32Array:
    """RoPE: pairs are elements i and i + head_dim / 2, as in `numerics.apply_rope`."""
    half = heads.shape[-1] // 2
    cos, sin = rope_rows[:, None, :, :half], rope_rows[:, None, :, half:]
    first, second = heads[..., :half], heads[..., half:]
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def _attend(q: F32Array, cache: F32Array, new: F32Array, mask: F32Array) -> F32Array:
    """[batch, block, heads * head_dim]. cache: [2, batch, kv_heads, max_len, head_dim]; mask: of a layer."""
    batch, heads, block, head_dim = q.shape
    keys, values = np.concatenate([cache, new], axis=-2)
    grouped = q.reshape(batch, keys.shape[1], -1, block, head_dim)
    scores = grouped @ keys[:, :, None].swapaxes(-1, -2) / np.float32(math.sqrt(head_dim)) + mask[:, None]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed: F32Array = weights / weights.sum(axis=-1, keepdims=True) @ values[:, :, None]
    return mixed.reshape(batch, heads, block, head_dim).swapaxes(1, 2).reshape(batch, block, -1)


def _ffn(config: ModelConfig, layer: Layer, x: F32Array) -> F32Array:
    normed = _norm(config, x, layer["ffn_norm"])
    gate, up = normed @ layer["w_gate"].T, normed @ layer["w_up"].T
    down: F32Array = gate / (1 + np.exp(-gate)) * up @ layer["w_down"].T
    return down
