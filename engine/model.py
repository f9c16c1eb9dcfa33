"""The model: its facts, its host-side tensors, and its weights resident in buffer objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from aerie.engine.attention import KVCache, MaskRule, causal
from aerie.engine.checkpoint import Checkpoint
from aerie.engine.config import ModelConfig
from aerie.engine.numerics import BF16Array, rope_table
from aerie.engine.programs import LAYER_PROGRAMS, ProgramRunner, buffer_set
from aerie.engine.tensors import Rows, Tensor
from aerie.engine.weights import Weights
from aerie.multi_launch_builder import Program
from aerie.multi_launch_builder.shapes import LM_HEAD_PARTITIONS
from aerie.runtime import Static

HostTimer = Callable[[str], AbstractContextManager[Any]]
"""Times a host operation: entered around it, under the operation's name."""


def untimed(operation: str) -> AbstractContextManager[Any]:  # noqa: ARG001
    return nullcontext()


@dataclass(frozen=True)
class LoadedModel:
    """Everything the forward pass reads. Immutable: what a prompt leaves behind is in its KVCache.

    `seq_len` is the prefill length the programs were built for. `embed_table` has the rows of (vocab_size,
    hidden_size), `final_norm` (hidden_size,), `rope` (positions, head_dim), all bf16; `rope` has a row
    for every position of the model, and of the padding where that goes beyond.
    """

    config: ModelConfig
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
        return min(self.seq_len, self.config.context)

    def run(
        self, name: str, layer: int = 0, on_device: Collection[str] = (), **arrays: NDArray[Any]
    ) -> dict[str, NDArray[Any]]:
        """Call a program with its inputs by name, for `layer`; returns its outputs by name.

        They are views, valid until a program writes that buffer again (`programs.sharing`). Those named in
        `on_device` are for the next program alone: their contents may never come to the host.
        """
        key = buffer_set(name, layer)
        return self.runner.run(self.programs[name], bo_key=key, copy=False, on_device=on_device, **arrays)

    def new_cache(self, positions: int) -> KVCache:
        """An empty KV cache for `positions` tokens, or for the whole context where that is less."""
        return KVCache(self.config, min(positions, self.config.context))


def assemble(
    checkpoint: Checkpoint,
    programs: Mapping[str, Program],
    runner: ProgramRunner,
    seq_len: int,
    host_timer: HostTimer = untimed,
) -> LoadedModel:
    """The model of `checkpoint`, its weights not yet preloaded."""
    config, weights = checkpoint.config, checkpoint.weights
    return LoadedModel(
        config=config,
        programs=programs,
        runner=runner,
        seq_len=seq_len,
        embed_table=weights.embed_table,
        final_norm=weights.final_norm.read(),
        rope=rope_table(config, max(seq_len, config.max_position_embeddings)),
        host_timer=host_timer,
    )


def preload(model: LoadedModel, weights: Weights) -> Iterator[str]:
    """Fill every buffer-object set with its weights; yields what was filled, one step at a time.

    Tensors are read from their file into the buffer objects, and what sets share only once. There is one step
    per layer, and one for the LM head (`preload_steps` in all). Raises WeightsError.
    """
    lut = model.rope[: model.seq_len]
    for layer in range(model.config.num_hidden_layers):
        statics: dict[str, Static] = {**weights.layer(layer), "rope_lut": lut}
        for name in LAYER_PROGRAMS:
            _fill(model, name, layer, statics)
        yield f"layer {layer}"
    head = model.programs["lm_head_gemv"]
    _fill(model, head.name, 0, _lm_head_statics(head, weights.lm_head))
    yield "LM head"


def preload_steps(config: ModelConfig) -> int:
    return config.num_hidden_layers + 1


def _fill(model: LoadedModel, name: str, layer: int, statics: Mapping[str, Static]) -> None:
    """Fill those weights and tables of a program that are not in a buffer which it shares and was filled."""
    program, bo_key = model.programs[name], buffer_set(name, layer)
    missing = model.runner.unfilled(program, bo_key=bo_key)
    model.runner.preload(program, bo_key=bo_key, **{argument: statics[argument] for argument in missing})


def _lm_head_statics(program: Program, lm_head: Tensor) -> dict[str, Static]:
    """The LM head cut into the program's partitions; rows beyond the vocabulary are zero."""
    rows, _ = program.arguments["lm_head_0"].shape
    return {
        f"lm_head_{part}": partial(_rows_or_zero, lm_head, part * rows) for part in range(LM_HEAD_PARTITIONS)
    }


def _rows_or_zero(table: Tensor, first: int, out: BF16Array) -> None:
    """Fill `out` with rows of the table from row `first` on, and with zeros where it has no more."""
    held = max(0, min(len(out), table.shape[0] - first))
    table.rows_into(out[:held], first)
    out[held:] = 0
