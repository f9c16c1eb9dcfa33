"""The model: its facts, its host-side tensors, and its weights resident in buffer objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama32_1b.attention import MaskRule, causal
from llama32_1b.checkpoint import Checkpoint
from llama32_1b.config import LlamaConfig
from llama32_1b.kv_cache import KVCache
from llama32_1b.numerics import BF16Array, bf16
from llama32_1b.programs import LM_HEAD_PARTITIONS, ProgramRunner, buffer_set
from llama32_1b.rope import rope_table
from llama32_1b.weights import LayerWeights, Rows, Weights
from multi_launch_builder import Program

HostTimer = Callable[[str], AbstractContextManager[Any]]
"""Times a host operation: entered around it, under the operation's name."""

TRANSPOSED_ROWS = 16
"""Of 8, 16, 32, 64, 128 and 256 the fastest for 8192x2048 on the one machine measured (Zen 4)."""


def untimed(operation: str) -> AbstractContextManager[Any]:  # noqa: ARG001
    return nullcontext()


@dataclass(frozen=True)
class LlamaModel:
    """Everything the forward pass reads. Immutable: what a prompt leaves behind is in its KVCache.

    `seq_len` is the prefill length the programs were built for. `embed_table` has the rows of (vocab_size,
    hidden_size), `final_norm` (hidden_size,), `rope` (positions, head_dim), all bf16; `rope` has a row
    for every position of the model, and of the padding where that goes beyond.
    """

    config: LlamaConfig
    programs: Mapping[str, Program]
    runner: ProgramRunner
    seq_len: int
    embed_table: Rows
    final_norm: BF16Array
    rope: BF16Array
    mask: MaskRule = causal
    host_timer: HostTimer = untimed

    @property
    def longest_prompt(self) -> int:
        """The most tokens that can be prefilled."""
        return min(self.seq_len, self.config.max_position_embeddings)

    def run(
        self, name: str, layer: int = 0, unread: Collection[str] = (), **arrays: NDArray[Any]
    ) -> dict[str, NDArray[Any]]:
        """Call a program with its inputs by name, for `layer`; returns its outputs by name.

        They are views, valid until a program writes that buffer again (`programs.sharing`). Those of `unread`
        are for the next program alone: their contents may never come to the host.
        """
        bo_key = buffer_set(name, layer)
        return self.runner.run(self.programs[name], bo_key=bo_key, copy=False, unread=unread, **arrays)

    def new_cache(self, positions: int) -> KVCache:
        """An empty KV cache for `positions` tokens, or for the whole context where that is less."""
        return KVCache(self.config, min(positions, self.config.max_position_embeddings))


def assemble(
    checkpoint: Checkpoint,
    programs: Mapping[str, Program],
    runner: ProgramRunner,
    seq_len: int,
    host_timer: HostTimer = untimed,
) -> LlamaModel:
    """The model of `checkpoint`, its weights not yet preloaded."""
    config, weights = checkpoint.config, checkpoint.weights
    return LlamaModel(
        config=config,
        programs=programs,
        runner=runner,
        seq_len=seq_len,
        embed_table=weights.embed_table,
        final_norm=weights.final_norm,
        rope=rope_table(config, max(seq_len, config.max_position_embeddings)),
        host_timer=host_timer,
    )


def preload(model: LlamaModel, weights: Weights) -> Iterator[str]:
    """Fill every buffer-object set with its weights; yields what was filled, one step at a time.

    There is one step per layer, and one for the LM head (`preload_steps` in all).
    """
    lut = model.rope[: model.seq_len]
    for index in range(model.config.num_hidden_layers):
        layer = weights.layer(index)
        for name, static in _layer_statics(layer, lut).items():
            model.runner.preload(model.programs[name], bo_key=buffer_set(name, index), **static)
        yield f"layer {index}"
    head = model.programs["lm_head_gemv"]
    parts = _lm_head_statics(head, weights.lm_head)
    model.runner.preload(head, bo_key=buffer_set(head.name, 0), **parts)
    yield "LM head"


def preload_steps(config: LlamaConfig) -> int:
    return config.num_hidden_layers + 1


def _layer_statics(layer: LayerWeights, lut: BF16Array) -> dict[str, dict[str, BF16Array]]:
    """Static arguments of the four programs that hold a layer's weights.

    Hugging Face stores (out, in), which is what a GEMV reads; a GEMM multiplies by (in, out).
    """
    attention = {"attn_norm": layer.attn_norm, "wq": layer.wq, "wk": layer.wk, "wv": layer.wv}
    ffn = {
        "wo": layer.wo,
        "ffn_norm": layer.ffn_norm,
        "w_gate": layer.w_gate,
        "w_up": layer.w_up,
        "w_down": layer.w_down,
    }
    return {
        "rms_gemms_rope": {**_in_out(attention), "rope_lut": lut},
        "o_ffn": _in_out(ffn),
        "rms_gemv_rope": attention,
        "o_gemv_ffn": ffn,
    }


def _in_out(arrays: Mapping[str, BF16Array]) -> dict[str, BF16Array]:
    """Matrices transposed into contiguous (in, out); vectors as they are."""
    return {name: _transposed(array) if array.ndim == 2 else array for name, array in arrays.items()}


def _transposed(matrix: BF16Array) -> BF16Array:
    """A contiguous transpose, some rows at a time: three times as fast as numpy's, which thrashes caches."""
    result = np.empty(matrix.shape[::-1], bf16)
    for start in range(0, len(matrix), TRANSPOSED_ROWS):
        rows = slice(start, start + TRANSPOSED_ROWS)
        result.view(np.uint16)[:, rows] = matrix.view(np.uint16)[rows].T
    return result


def _lm_head_statics(program: Program, lm_head: BF16Array) -> dict[str, BF16Array]:
    """The LM head cut into the program's partitions, not copied; rows beyond the vocabulary are zero."""
    rows, _ = program.arguments["lm_head_0"].shape
    parts = (lm_head[part * rows : (part + 1) * rows] for part in range(LM_HEAD_PARTITIONS))
    return {f"lm_head_{number}": _with_rows(part, rows) for number, part in enumerate(parts)}


def _with_rows(matrix: BF16Array, rows: int) -> BF16Array:
    """The matrix itself if it has so many rows, else a copy filled up with zeros."""
    if len(matrix) == rows:
        return matrix
    filled = np.zeros((rows, matrix.shape[1]), bf16)
    filled[: len(matrix)] = matrix
    return filled
