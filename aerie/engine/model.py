"""The model: its facts, its host-side tensors, its programs, and its weights resident in buffer objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from aerie.engine.blocks import Blocks
from aerie.engine.checkpoint import Checkpoint
from aerie.engine.communication import Alone, Communication
from aerie.engine.config import ModelConfig
from aerie.engine.context_end import ContextEnd, Stop, parts
from aerie.engine.devices import Devices
from aerie.engine.kv import DeviceKVStorage, MaskRule, causal
from aerie.engine.numerics import BF16Array
from aerie.engine.pages import KVCache, PagedSequence, PagePool
from aerie.engine.planner import Step
from aerie.engine.programs import HEADS, Places, ProgramRunner, buffer_set, has_layer_weights
from aerie.engine.rope_tables import rope_table
from aerie.engine.tensors import Rows, Tensor
from aerie.multi_launch_builder import Program
from aerie.multi_launch_builder.shapes import LM_HEAD_PARTITIONS
from aerie.runtime import Recording, Static

T = TypeVar("T")

HostTimer = Callable[[str], AbstractContextManager[Any]]
"""Times a host operation: entered around it, under the operation's name."""


def untimed(operation: str) -> AbstractContextManager[Any]:  # noqa: ARG001
    return nullcontext()


Supply = Callable[[Iterable[str]], None]
"""Has the programs of these names compiled, loaded and given their weights."""


def nothing_missing(names: Iterable[str]) -> None:
    """All programs are there."""


@dataclass(frozen=True)
class LoadedModel:
    """Everything the forward pass reads. Immutable: what a prompt leaves behind is in its KVCache.

    `blocks` says how tokens are cut; `supply` is asked for programs before they are run. `embed_table` has
    the rows of (vocab_size, hidden_size), `final_norm` (hidden_size,), `rope` (positions, head_dim), all
    bf16; `rope` has a row for every position of the model, and of the padding where that goes beyond.
    `places` are those of the programs' arguments, `home` is where attention's programs read keys and values.
    `end` is what happens at the end of the largest context, and `mask` what a token sees.

    Where several devices share it, `devices` has their parts (sharding.py), which are models as well; what
    else is here is rank 0's, or this process's. `group` is how this one talks to other ranks: a part to the
    other parts, a whole model to the other processes. A part is number `part` of the `parts` of its process.
    """

    config: ModelConfig
    programs: Mapping[str, Program]
    runner: ProgramRunner
    blocks: Blocks
    embed_table: Rows
    final_norm: BF16Array
    rope: BF16Array
    home: DeviceKVStorage
    places: Places = field(default_factory=lambda: Places((), 0))
    supply: Supply = nothing_missing
    end: ContextEnd = field(default_factory=Stop)
    mask: MaskRule = causal
    host_timer: HostTimer = untimed
    devices: Devices[LoadedModel] | None = None
    group: Communication = field(default_factory=Alone)
    part: int = 0
    parts: int = 1

    def each(self, work: Callable[[LoadedModel], T]) -> T:
        """What `work` makes of this model; of one that is shared, of all its parts at once, which make the
        same. Raises as Devices.each."""
        return work(self) if self.devices is None else self.devices.each(work)[0]

    def record(self) -> Recording | None:
        """Where to note calls that are made again and again; None where the runner cannot, and on several
        devices, whose sums are the host's work between calls."""
        return self.runner.record() if self.blocks.devices == 1 else None

    @property
    def runners(self) -> Sequence[ProgramRunner]:
        """Of all devices of this process."""
        return [each.runner for each in self.devices.parts] if self.devices else [self.runner]

    @property
    def stored(self) -> ModelConfig:
        """The facts of a model whose layers are those that a KV cache here has: of every layer, the parts of
        this process's devices, one after the other."""
        if self.devices is None:
            return self.config
        part = self.devices.parts[0]
        return replace(part.config, num_hidden_layers=part.config.num_hidden_layers * part.parts)

    def at(self, layer: int) -> int:
        """Where a layer's keys and values are among those of a KV cache."""
        return layer * self.parts + self.part

    @property
    def seq_len(self) -> int:
        """The prompt length of the six programs; 0 where there are variants."""
        return self.blocks.seq_len

    @property
    def positions(self) -> int:
        """The most positions of a sequence."""
        return self.blocks.positions(self.config.context)

    @property
    def longest_prompt(self) -> int:
        """The most tokens that can be prefilled."""
        return min(self.seq_len or self.positions, self.positions)

    def plan(self, tokens: int, past: int) -> list[Step]:
        """The steps for `tokens` after `past`.

        Where the end makes room, they go on from what is left then. NoVariantError.
        """
        steps: list[Step] = []
        for before, count in parts(self.end, self.positions, tokens, past):
            steps += self.blocks.plan(count, before, anew=not self.end.drops)
        return steps

    def make_room(self, sequence: PagedSequence) -> None:
        """Drop what the end says of a sequence that fills the largest context."""
        if self.end.drops and sequence.length >= self.positions:
            with self.host_timer("context end"):
                sequence.drop(self.end.gone(sequence.length), self.rope)

    def new_pool(self, pages: int, first_key: bytes = b"", spare: int = 0) -> PagePool:
        """A pool for sequences of this model; see PagePool."""
        return PagePool(self.stored, pages, first_key, spare, with_unturned=self.end.drops)

    def new_cache(self, positions: int, with_unturned: bool = False) -> KVCache:
        """An empty KV cache for whoever runs tokens by hand: for `positions` tokens, or, with variants, for
        as many as there are."""
        room = self.positions if self.blocks.variants else min(positions, self.config.context)
        return KVCache(self.stored, room, with_unturned=with_unturned or self.end.drops)


def assemble(
    checkpoint: Checkpoint,
    programs: Mapping[str, Program],
    runner: ProgramRunner,
    blocks: Blocks,
    host_timer: HostTimer = untimed,
    places: Places | None = None,
    supply: Supply = nothing_missing,
    end: ContextEnd | None = None,
) -> LoadedModel:
    """The model of `checkpoint`, its weights not yet preloaded."""
    config, weights = checkpoint.config, checkpoint.weights
    end = end or Stop()
    return LoadedModel(
        config=config,
        programs=programs,
        runner=runner,
        blocks=blocks,
        embed_table=weights.embed_table,
        final_norm=weights.final_norm.read(),
        rope=rope_table(config, max(blocks.seq_len, config.max_position_embeddings)),
        home=DeviceKVStorage(config, [runner], blocks.window_contexts),
        places=Places((), 0) if places is None else places,
        supply=supply,
        end=end,
        mask=end.mask,
        host_timer=host_timer,
    )


def decoding_in(model: LoadedModel, decode: str) -> LoadedModel:
    """The same model in a family of decode, whose programs are there then."""
    blocks = replace(model.blocks, decode=decode)
    model.supply(blocks.of_a_token)
    return replace(model, blocks=blocks)


class OnOneDevice(Protocol):
    """The programs of a part, on a device of its own."""

    by_name: dict[str, Program]
    places: Places

    @property
    def cache(self) -> TimedRunner: ...


class TimedRunner(ProgramRunner, Protocol):
    """A runner that tells what time its programs take."""

    @property
    def profiler(self) -> Any: ...


def shared_out(
    whole: LoadedModel,
    part: ModelConfig,
    devices: Sequence[OnOneDevice],
    groups: Sequence[Communication],
    names: Sequence[str],
    begin: Callable[[], None] | None = None,
) -> LoadedModel:
    """`whole` on several devices, those of this process, each with a part with the facts `part`.

    groups, names, begin: as for Devices; without `begin` the ranks are in processes of their own, one here.
    """
    parts = [
        replace(
            whole,
            config=part,
            programs=one.by_name,
            runner=one.cache,
            places=one.places,
            supply=nothing_missing,
            host_timer=one.cache.profiler.span,
            group=group,
            part=number,
            parts=len(devices),
        )
        for number, (one, group) in enumerate(zip(devices, groups, strict=True))
    ]
    if begin is None:
        shared = replace(whole, devices=Devices(parts, names, groups), group=groups[0])
    else:
        shared = replace(whole, devices=Devices(parts, names, groups, begin))
    return replace(shared, home=DeviceKVStorage(shared.stored, shared.runners, whole.blocks.window_contexts))


class LayerWeights(Protocol):
    """What a device's buffers are filled with: weights.Weights, or the part of a rank."""

    def layer(self, layer: int) -> Mapping[str, Static]: ...

    @property
    def lm_head(self) -> Tensor: ...


def preload(
    model: LoadedModel, weights: LayerWeights, programs: Iterable[Program] | None = None
) -> Iterator[str]:
    """Fill every buffer-object set with its weights; yields what was filled, one step at a time.

    Tensors are read from their file into the buffer objects, and what sets share only once. There is one step
    per layer, and one for the LM head (`preload_steps` in all). programs: those whose sets to fill; None:
    all. Raises WeightsError.
    """
    chosen = list(model.programs.values() if programs is None else programs)
    lut = model.rope[: model.seq_len]
    for layer in range(model.config.num_hidden_layers):
        statics: dict[str, Static] = {**weights.layer(layer), "rope_lut": lut}
        for program in filter(has_layer_weights, chosen):
            _fill(model, program, layer, statics)
        yield f"layer {layer}"
    for program in chosen:
        if program.kind in HEADS:
            _fill(model, program, 0, lm_head_statics(program, weights.lm_head))
    yield "LM head"


def preload_steps(config: ModelConfig) -> int:
    return config.num_hidden_layers + 1


def _fill(model: LoadedModel, program: Program, layer: int, statics: Mapping[str, Static]) -> None:
    """Fill those weights and tables of a program that are not in a buffer which it shares and was filled."""
    bo_key = buffer_set(program, layer)
    missing = model.runner.unfilled_weights(program, bo_key=bo_key)
    model.runner.preload(program, bo_key=bo_key, **{argument: statics[argument] for argument in missing})


def lm_head_statics(program: Program, lm_head: Tensor) -> dict[str, Static]:
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
