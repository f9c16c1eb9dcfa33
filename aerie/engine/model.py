"""The loaded model: config, host tensors, programs, and weights in buffer objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from aerie.engine.checkpoint import Checkpoint
from aerie.engine.communication import Communicator, SingleRank
from aerie.engine.config import ModelConfig
from aerie.engine.context_end import ContextEndPolicy, StopAtEnd, split_at_drops
from aerie.engine.devices import Devices
from aerie.engine.kv_cache import DeviceKVStorage, causal
from aerie.engine.layer_masks import MaskRule
from aerie.engine.numerics import BF16Array
from aerie.engine.page_pool import KVCache, PagedSequence, PagePool
from aerie.engine.planner import VariantCall
from aerie.engine.programs import (
    HEADS,
    ProgramRunner,
    SharedBufferNames,
    buffer_set,
    has_layer_weights,
    is_for_layer,
)
from aerie.engine.quantised import QuantisedTensor
from aerie.engine.reranking import score_rows
from aerie.engine.rope_tables import RopeTables, rope_tables
from aerie.engine.tensors import Rows, Tensor
from aerie.engine.variant_set import LayerPrograms, VariantSet
from aerie.engine.weights import HeadRows, StackedRows
from aerie.kernel_builder.arguments import Argument, byte
from aerie.kernel_builder.weight_blocks import BLOCK_ROWS, Bytes
from aerie.multi_launch_builder import Program
from aerie.multi_launch_builder.shapes import LM_HEAD_PARTITIONS
from aerie.runtime import Recording, Static

T = TypeVar("T")

HostTimer = Callable[[str], AbstractContextManager[Any]]
"""Times a host operation: a context manager for the operation with this name."""


def untimed(operation: str) -> AbstractContextManager[Any]:  # noqa: ARG001
    return nullcontext()


EnsurePrograms = Callable[[Iterable[str]], None]
"""Compiles and loads the programs with these names, and fills their weights."""


def no_programs_missing(names: Iterable[str]) -> None:
    """Does nothing: all programs are loaded."""


@dataclass(frozen=True)
class LoadedModel:
    """Everything that a forward pass reads. Immutable: keys and values are in page pools.

    variant_set: which programs take which tokens. ensure_programs: called before programs run.
    compile_ahead: compiles programs in the background, and returns at once. embed_table: rows of
    (vocab_size, hidden_size). final_norm: (hidden_size,). rope: with a row for every position of the
    model, and of padding beyond it. score_rows: of a reranker's head, (1 or 2, hidden_size). delta_gates: of
    each layer with linear attention A_log and dt_bias, (value heads,). All are bf16.
    buffer_names: the buffers that programs
    share. kv_storage: allocates buffers for attention programs. context_end: what happens at the end of the
    largest context. mask: which positions a token attends to.

    If several devices share the model, `devices` has their parts (tensor_parallel.py), which are models too;
    the other fields are those of rank 0, or of this process. group: connects this part with the other parts,
    or this process with the others. A part is number `local_rank` of the `local_world_size` parts in its
    process.
    """

    config: ModelConfig
    programs: Mapping[str, Program]
    runner: ProgramRunner
    variant_set: VariantSet
    embed_table: Rows
    final_norm: BF16Array
    rope: RopeTables
    kv_storage: DeviceKVStorage
    buffer_names: SharedBufferNames = field(default_factory=lambda: SharedBufferNames((), ()))
    ensure_programs: EnsurePrograms = no_programs_missing
    compile_ahead: EnsurePrograms = no_programs_missing
    context_end: ContextEndPolicy = field(default_factory=StopAtEnd)
    mask: MaskRule = causal
    host_timer: HostTimer = untimed
    devices: Devices[LoadedModel] | None = None
    group: Communicator = field(default_factory=SingleRank)
    local_rank: int = 0
    local_world_size: int = 1
    score_rows: BF16Array | None = None
    delta_gates: Mapping[int, tuple[BF16Array, BF16Array]] = field(default_factory=dict)

    def run_on_all(self, work: Callable[[LoadedModel], T]) -> T:
        """The result of `work` on this model, or on all its parts at the same time, which give the same
        result. Raises as Devices.run_on_all."""
        return work(self) if self.devices is None else self.devices.run_on_all(work)[0]

    def program(self, name: str, layer: int = 0) -> Program:
        """The program of this name, without kinds, for the weights of a layer."""
        return self.programs[self.config.weight_kinds.name(name, layer)]

    def record(self) -> Recording | None:
        """A recording for calls that repeat. None if the runner cannot record, and on several devices, where
        the host adds sums between calls."""
        return self.runner.record() if self.variant_set.devices == 1 else None

    @property
    def runners(self) -> Sequence[ProgramRunner]:
        """The runners of all devices of this process."""
        return [each.runner for each in self.devices.parts] if self.devices else [self.runner]

    @property
    def kv_config(self) -> ModelConfig:
        """The config whose layers are those of a KV cache here: of every layer, the parts of this process's
        devices, one after the other."""
        if self.devices is None:
            return self.config
        part = self.devices.parts[0]
        return part.config.with_repeated_layers(part.local_world_size)

    def kv_layer_index(self, layer: int) -> int:
        """The index of a layer with attention in a KV cache."""
        number = self.config.layers_with_attention.index(layer)
        return number * self.local_world_size + self.local_rank

    def state_index(self, layer: int) -> int:
        """The index of a layer without attention among those, of all parts of this process."""
        return self.config.states.layers.index(layer) * self.local_world_size + self.local_rank

    def layer_programs(self, rows: int, contexts: Sequence[int], layer: int) -> LayerPrograms:
        """The names of the programs of a layer for this many rows, in order. contexts: of the caches of the
        windows."""
        context = contexts[self.config.masks.of_layer[layer]]
        return self.variant_set.layer_programs(rows, context, layer in self.config.layers_with_conv)

    @property
    def seq_len(self) -> int:
        """The prompt length of the six programs; 0 if there are variants."""
        return self.variant_set.seq_len

    @property
    def positions(self) -> int:
        """Maximum positions of a sequence."""
        return self.variant_set.positions(self.config.context)

    @property
    def max_prompt_tokens(self) -> int:
        """Maximum tokens of a prompt."""
        return min(self.seq_len or self.positions, self.positions)

    def plan(self, tokens: int, past: int) -> list[VariantCall]:
        """The calls for `tokens` after `past` positions.

        Where the context end policy drops positions, the calls continue after the remaining ones. Raises
        NoVariantError.
        """
        calls: list[VariantCall] = []
        for position, count in split_at_drops(self.context_end, self.positions, tokens, past):
            calls += self.variant_set.plan(count, position, recompute=not self.context_end.drops)
        return calls

    def drop_positions(self, sequence: PagedSequence) -> None:
        """Let the context end policy drop positions of a sequence that fills the largest context."""
        if self.context_end.drops and sequence.length >= self.positions:
            with self.host_timer("context end"):
                sequence.drop(self.context_end.dropped_positions(sequence.length), self.rope)

    def new_pool(self, pages: int, first_key: bytes = b"", swap_pages: int = 0) -> PagePool:
        """A page pool for sequences of this model; see PagePool."""
        return PagePool(
            self.kv_config, pages, first_key, swap_pages, with_keys_before_rope=self.context_end.drops
        )

    def new_cache(self, positions: int, with_keys_before_rope: bool = False) -> KVCache:
        """An empty KV cache for code that runs tokens by hand: for `positions` tokens, or, with variants, for
        as many as the model has."""
        capacity = self.positions if self.variant_set.variants else min(positions, self.config.context)
        return KVCache(
            self.kv_config, capacity, with_keys_before_rope=with_keys_before_rope or self.context_end.drops
        )


def build_model(
    checkpoint: Checkpoint,
    programs: Mapping[str, Program],
    runner: ProgramRunner,
    variant_set: VariantSet,
    host_timer: HostTimer = untimed,
    buffer_names: SharedBufferNames | None = None,
    ensure_programs: EnsurePrograms = no_programs_missing,
    context_end: ContextEndPolicy | None = None,
) -> LoadedModel:
    """The model of `checkpoint`. Its weights are not loaded yet."""
    config, weights = checkpoint.config, checkpoint.weights
    context_end, scoring = context_end or StopAtEnd(), config.roles.scoring
    return LoadedModel(
        config=config,
        programs=programs,
        runner=runner,
        variant_set=variant_set,
        embed_table=weights.embed_table,
        final_norm=weights.final_norm.read(),
        rope=rope_tables(config, max(variant_set.seq_len, config.max_position_embeddings)),
        kv_storage=DeviceKVStorage(config, [runner], variant_set.window_contexts),
        buffer_names=SharedBufferNames((), ()) if buffer_names is None else buffer_names,
        ensure_programs=ensure_programs,
        context_end=context_end,
        mask=context_end.mask,
        host_timer=host_timer,
        score_rows=score_rows(scoring, checkpoint.tokenizer, weights) if scoring else None,
        delta_gates=weights.delta_gates,
    )


def with_decode_path(model: LoadedModel, decode_path: str) -> LoadedModel:
    """The same model with another decode path. Its programs are loaded."""
    blocks = replace(model.variant_set, decode_path=decode_path)
    model.ensure_programs(blocks.decode_programs)
    return replace(model, variant_set=blocks)


class DevicePrograms(Protocol):
    """The programs of a part, on its own device."""

    by_name: dict[str, Program]
    buffer_names: SharedBufferNames

    @property
    def cache(self) -> TimedRunner: ...


class TimedRunner(ProgramRunner, Protocol):
    """A runner with a profiler of its programs' times."""

    @property
    def profiler(self) -> Any: ...


def split_over_devices(
    model: LoadedModel,
    part: ModelConfig,
    devices: Sequence[DevicePrograms],
    groups: Sequence[Communicator],
    names: Sequence[str],
    reset: Callable[[], None] | None = None,
) -> LoadedModel:
    """`model` on the devices of this process, each with a part whose config is `part`.

    groups, names, reset: as for Devices; without `reset` the ranks are in several processes, one here.
    """
    parts = [
        replace(
            model,
            config=part,
            programs=device.by_name,
            runner=device.cache,
            buffer_names=device.buffer_names,
            ensure_programs=no_programs_missing,
            compile_ahead=no_programs_missing,
            host_timer=device.cache.profiler.span,
            group=group,
            delta_gates=_part_gates(model.delta_gates, part, group.rank),
            local_rank=rank,
            local_world_size=len(devices),
        )
        for rank, (device, group) in enumerate(zip(devices, groups, strict=True))
    ]
    if reset is None:
        shared = replace(model, devices=Devices(parts, names, groups), group=groups[0])
    else:
        shared = replace(model, devices=Devices(parts, names, groups, reset))
    return replace(
        shared,
        kv_storage=DeviceKVStorage(shared.kv_config, shared.runners, model.variant_set.window_contexts),
    )


def _part_gates(
    gates: Mapping[int, tuple[BF16Array, BF16Array]], part: ModelConfig, rank: int
) -> dict[int, tuple[BF16Array, BF16Array]]:
    """The same of the heads of linear attention that a rank has."""
    heads = part.delta.values if part.delta else 0
    own = slice(rank * heads, (rank + 1) * heads)
    return {layer: (a_log[own], dt_bias[own]) for layer, (a_log, dt_bias) in gates.items()}


class LayerWeights(Protocol):
    """The weights that fill a device's buffers: weights.Weights, or the part of a rank."""

    def layer(self, layer: int) -> Mapping[str, Static]: ...

    @property
    def lm_head(self) -> Tensor: ...


def preload(
    model: LoadedModel, weights: LayerWeights, programs: Iterable[Program] | None = None
) -> Iterator[str]:
    """Fill every buffer-object set with its weights. Yields what was filled, step by step.

    Tensors are read from their file into the buffer objects; what sets share is read once. There is one step
    per layer, and one for the LM head (`preload_steps` in all). programs: those to fill; None means all.
    Raises WeightsError.
    """
    chosen = list(model.programs.values() if programs is None else programs)
    for layer in range(model.config.num_hidden_layers):
        lut = np.ascontiguousarray(model.rope.layer(layer)[: model.seq_len])
        statics: dict[str, Static] = {**weights.layer(layer), "rope_lut": lut}
        for program in filter(has_layer_weights, chosen):
            if is_for_layer(model.config, program, layer):
                _fill(model, program, layer, statics)
        yield f"layer {layer}"
    for program in chosen:
        if program.kind in HEADS:
            _fill(model, program, 0, lm_head_statics(program, weights.lm_head))
    yield "LM head"


def preload_steps(config: ModelConfig) -> int:
    return config.num_hidden_layers + 1


def _fill(model: LoadedModel, program: Program, layer: int, statics: Mapping[str, Static]) -> None:
    """Fill the weights and tables of a program that no shared buffer has yet."""
    bo_key = buffer_set(program, layer)
    missing = model.runner.unfilled_weights(program, bo_key=bo_key)
    filled = {name: _as_argument(statics[name], program.arguments[name]) for name in missing}
    model.runner.preload(program, bo_key=bo_key, **filled)


def _as_argument(static: Static, argument: Argument) -> Static:
    """What fills an argument: of a quantised tensor the blocks, where the argument has blocks."""
    return (
        static.pack_into
        if argument.dtype is byte and isinstance(static, QuantisedTensor | HeadRows | StackedRows)
        else static
    )


def lm_head_statics(program: Program, lm_head: Tensor) -> dict[str, Static]:
    """The LM head split into the program's partitions; rows beyond the vocabulary are zero."""
    argument = program.arguments["lm_head_0"]
    is_packed = argument.dtype is byte
    rows = argument.shape[0] * (BLOCK_ROWS if is_packed else 1)
    fill: Any = _blocks_or_zero if is_packed else _rows_or_zero
    return {f"lm_head_{part}": partial(fill, lm_head, part * rows) for part in range(LM_HEAD_PARTITIONS)}


def _blocks_or_zero(table: QuantisedTensor, first: int, out: Bytes) -> None:
    """Fill `out` with the blocks of rows of the table from row `first` on, and with zeros after its last."""
    count = max(0, min(len(out) * BLOCK_ROWS, table.shape[0] - first))
    blocks = -(-count // BLOCK_ROWS)
    if count:
        table.part(first, count).pack_into(out[:blocks])
    out[blocks:] = 0


def _rows_or_zero(table: Tensor, first: int, out: BF16Array) -> None:
    """Fill `out` with rows of the table from row `first` on, and with zeros after its last row."""
    count = max(0, min(len(out), table.shape[0] - first))
    table.rows_into(out[:count], first)
    out[count:] = 0
