"""Builds and compiles a model's programs, and reports the progress.

The programs are those of decode, and those of the variants that prompts need, each compiled at its first use;
or, with a prompt length, the six programs built for it.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aerie.common.errors import UserError
from aerie.engine.call_costs import CallCosts
from aerie.engine.communication import Communicator, SingleRank
from aerie.engine.compile_ahead import CompileAhead
from aerie.engine.config import ModelConfig
from aerie.engine.config_reader import MODELS_THAT_RUN
from aerie.engine.context_end import STOP, ContextEndPolicy, context_end
from aerie.engine.decode_paths import check_feature
from aerie.engine.errors import ConfigError
from aerie.engine.families import SOME_THAT_RUN
from aerie.engine.layer_states import check_no_states
from aerie.engine.model_family import DiffusionConfig
from aerie.engine.native import preparing_native
from aerie.engine.programs import (
    CONV_PROGRAMS,
    HEADS,
    PROGRAMS,
    SharedBufferNames,
    layers_of,
    program_flops,
)
from aerie.engine.reporter import OnProgress, Reporter
from aerie.engine.tensor_parallel import part_config
from aerie.engine.variant_set import GUIDE, MAX_TAIL_ROWS, ROWS, VariantSet
from aerie.engine.variants import default_variants, parse_variants
from aerie.multi_launch_builder import (
    Program,
    UnsupportedShapeError,
    plan_variant_programs,
    program_store,
    round_up_seq_len,
)
from aerie.multi_launch_builder.variants import attention_layer_kinds, state_layer_kinds
from aerie.multi_launch_builder.weight_kinds import split_name
from aerie.runtime import Backend, CompileStage, KernelCache, Profiler, Progress
from aerie.runtime.knobs import COMPILE_AHEAD


@dataclass(frozen=True)
class RuntimeOptions:
    """What to compile, where programs run, and the folder of compiled programs.

    seq_len: prompt length in tokens of the six programs; None means programs of variants. variants: as text
    (`aerie/engine/variants.py`); None means the model's default. fallback: where programs run after `backend`
    has failed; None means nowhere. prompt_tokens: length of a prompt that is known to come. decode: the
    decode path. context_end: the policy at the end of the largest context (`context_end.py`). devices:
    devices of this process that share the model, by their index in pyxrt, the backend's first; () means the
    backend's only. group: this process among several that share the model, each with one device. kv_pool:
    positions of the page pool; None means as many as memory suggests. compile_ahead: compile what a longer
    context needs in the background (`compile_ahead.py`), unless AERIE_COMPILE_AHEAD is 0. weights: what
    weights are on the device, one of quantised.KINDS. max_positions: of a sequence, at most; None means as
    many as the model has.
    """

    seq_len: int | None
    backend: Backend
    cache_dir: Path
    fallback: Backend | None = None
    prompt_tokens: int = 0
    variants: str | None = None
    decode: str = GUIDE
    context_end: str = STOP
    devices: tuple[int, ...] = ()
    group: Communicator = field(default_factory=SingleRank)
    kv_pool: int | None = None
    compile_ahead: bool = False
    weights: str = "auto"
    max_positions: int | None = None

    def limited(self, config: ModelConfig) -> ModelConfig:
        """The config of a model with at most `max_positions` positions."""
        return config.with_max_positions(self.max_positions)

    @property
    def world_size(self) -> int:
        """Number of devices that share the model, in all processes."""
        return max(self.group.world_size, len(self.devices), 1)

    def part_config(self, config: ModelConfig) -> ModelConfig:
        """The config of a device's part; the model's own if one device has it. Raises UserError as
        `part_config`."""
        return config if self.world_size == 1 else part_config(config, self.world_size)

    def context_end_policy(self, config: ModelConfig) -> ContextEndPolicy:
        """The policy at the end of the context. Raises as `context_end.context_end` and `variant_set`, and
        UserError for a policy that a model of block diffusion cannot have."""
        if config.diffusion and self.context_end != STOP:
            raise UserError(
                f"context_end (CONTEXT_END) is {self.context_end!r}, which drops tokens one by one, and this "
                f"model fills in blocks, from multiples of {config.diffusion.block_size} on; leave it out"
            )
        if self.context_end != STOP and config.delta:
            asked = f"context_end (CONTEXT_END) is {self.context_end!r}, which drops tokens"
            check_no_states(config.states, "context_end", asked)
        return context_end(self.context_end, self.variant_set(config), config.context, config.states.reach)

    def variant_set(self, config: ModelConfig) -> VariantSet:
        """The variants of a model with these options. Raises as choose_seq_len, and UserError for malformed
        variants, for options that several devices cannot have, and for programs that do not support block
        diffusion."""
        if config.roles.reason_against_answers and self.seq_len is None:
            return replace(self, decode=ROWS)._variant_set(config)  # which needs no programs of decode
        if config.delta:
            return replace(self, decode=ROWS)._delta_variant_set(config)
        if config.diffusion is None:
            return self._variant_set(config)
        if self.seq_len is not None:
            raise UserError(
                f"--seq-len (SEQ_LEN) asks for programs of {self.seq_len} tokens, in which a position "
                "sees none after it; in this model's blocks positions see each other: leave it out"
            )
        blocks = replace(self, decode=ROWS)._variant_set(config)
        check_diffusion_block(config.diffusion, blocks)
        return blocks

    def _delta_variant_set(self, config: ModelConfig) -> VariantSet:
        """The variants of a model with linear attention, which has programs of rows alone."""
        if self.seq_len is not None:
            raise UserError(
                f"--seq-len (SEQ_LEN) asks for programs of {self.seq_len} tokens, and linear attention has "
                "programs of rows alone, which go on from a state in pages: leave it out"
            )
        return self._variant_set(config)

    def _variant_set(self, config: ModelConfig) -> VariantSet:
        """`variant_set` without the checks for block diffusion."""
        if self.world_size > 1:
            return self._parallel_variant_set(config)
        check_shape(config)
        if self.seq_len is not None and (self.variants or self.decode == ROWS):
            option = "--variants (VARIANTS)" if self.variants else "--decode rows (DECODE)"
            raise UserError(
                f"--seq-len (SEQ_LEN) asks for the six programs of one prompt length, and {option} for those "
                "of variants; give one of the two"
            )
        if self.seq_len is not None:
            length, kinds = choose_seq_len(config, self.seq_len), state_layer_kinds(config.shape)
            return VariantSet(length, state_kinds=kinds, masks=config.masks)
        return variant_set_for(config, self.variants, self.decode, self.backend.padding_share)

    def _parallel_variant_set(self, config: ModelConfig) -> VariantSet:
        """The variants on several devices."""
        check_feature("devices", VariantSet(self.seq_len or 0, decode_path=self.decode))
        if self.fallback:
            raise UserError(
                f"{self.world_size} devices share a model without a fallback (FALLBACK), as what one has of "
                "it is of no use without the others; leave it out, or load the model on one device"
            )
        own, share = self.part_config(config), self.backend.padding_share
        blocks = variant_set_for(own, self.variants, self.decode, share)
        kinds = attention_layer_kinds(own.shape, is_shared=True)
        of_states = state_layer_kinds(own.shape, is_shared=True)
        return replace(blocks, devices=self.world_size, attention_kinds=kinds, state_kinds=of_states)


def variant_set_for(
    config: ModelConfig, variants: str | None = None, decode: str = GUIDE, padding_share: float = 1.0
) -> VariantSet:
    """These variants, or the model's default. padding_share: Backend.padding_share, where they run. Raises
    UserError if none has several rows."""
    chosen = parse_variants(variants) if variants else default_variants(config.context)
    with_rows = tuple(one for one in chosen if one.rows > 1)
    if not with_rows:
        raise UserError(
            f"VARIANTS {variants!r} has no variant of several tokens, by which prompts are read; "
            "add one, as 8x512"
        )
    costs, shape = CallCosts(config.layer_parameters, padding_share), config.shape
    kinds = attention_layer_kinds(shape), state_layer_kinds(shape)
    return VariantSet(0, with_rows, decode, costs, 1, *kinds, config.masks)


def check_diffusion_block(diffusion: DiffusionConfig, variant_set: VariantSet) -> None:
    """Raises UserError if no variant has rows for a diffusion block."""
    max_rows = max(MAX_TAIL_ROWS, *(one.rows for one in variant_set.variants))
    if diffusion.block_size > max_rows:
        raise UserError(
            f"a block of this model has {diffusion.block_size} tokens, and the largest variant takes "
            f"{max_rows}; "
            f"add one of more to VARIANTS, as {diffusion.block_size}x{variant_set.contexts[-1]}"
        )


CONFIG_NAMES = {
    "emb_dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "delta_key_heads": "linear_num_key_heads",
    "delta_value_heads": "linear_num_value_heads",
    "delta_key_dim": "linear_key_head_dim",
    "delta_value_dim": "linear_value_head_dim",
}
"""The names in config.json of sizes that have other names in a ModelShape."""
IN_CONFIG = re.compile(rf"\b({'|'.join(CONFIG_NAMES)})\b")


def choose_seq_len(config: ModelConfig, requested: int | None) -> int:
    """The prompt length of the six programs: as requested, or the model's default rounded up to a legal one.

    Raises UserError if it is above the model's positions, or above its window: the attention of the six
    programs has none. ConfigError for a model that the kernels do not accept. The program builders check
    whether `requested` is legal.
    """
    check_shape(config)
    max_seq_len = round_up_seq_len(config.context)
    if requested is not None and requested > (config.sliding_window or requested):
        raise UserError(
            f"--seq-len {requested} (SEQ_LEN) asks for programs in which a token sees all tokens before it, "
            f"and in this model it sees {config.sliding_window} (sliding_window); leave --seq-len out"
        )
    if requested is not None and requested > max_seq_len:
        raise UserError(
            f"--seq-len {requested} (SEQ_LEN) is more than the model's {config.context} positions "
            f"({config.context_entry}); ask for at most {max_seq_len}"
        )
    return requested or round_up_seq_len(config.default_seq_len)


def check_shape(config: ModelConfig) -> None:
    """Raises ConfigError for a model that the kernels do not accept."""
    try:
        program_store.check_shape(config.shape)
    except UnsupportedShapeError as error:
        problem = IN_CONFIG.sub(lambda name: CONFIG_NAMES[name[0]], error.problem)
        raise ConfigError(
            f"this model does not fit the kernels, and no option makes it fit: {problem}. Among those that "
            f"do are {SOME_THAT_RUN} ({MODELS_THAT_RUN})"
        ) from None


class ProgramLibrary:
    """A model's programs by name, compiled in a cache. They share buffers (`buffer_names`).

    config: of the model, or of a device's part. without: names that are never compiled.
    """

    def __init__(
        self,
        config: ModelConfig,
        options: RuntimeOptions,
        report: Reporter,
        without: Collection[str] = (),
    ) -> None:
        self.by_name: dict[str, Program] = {}
        self._without = without
        self.buffer_names = SharedBufferNames((), config.rope_of_layer)
        self._config, self._options, self._report = config, options, report
        self.cache = self.open_cache(options.backend, Profiler())
        is_ahead = options.compile_ahead and COMPILE_AHEAD.get() == "1"
        self.ahead = CompileAhead(config.shape, options.cache_dir, report.note) if is_ahead else None

    def open_cache(self, backend: Backend, profiler: Profiler) -> KernelCache:
        """A cache in which the programs share buffers. Nothing is compiled."""
        return KernelCache(self._options.cache_dir, backend, profiler, self._report.note, self.buffer_names)

    def ensure_compiled(self, names: Iterable[str]) -> list[Program]:
        """Compile the programs that are missing, for all kinds of weights that the model has, and return
        them. Raises as compile_into."""
        needed = [name for name in names if split_name(name)[0] not in self._without]
        missing = [name for name in names_with_kinds(self._config, needed) if name not in self.by_name]
        if not missing:
            return []
        if self.ahead:
            self.ahead.make_way(missing)
        started = time.perf_counter()
        return self.add(program_store.load_programs_by_name(self._config.shape, missing), started)

    def compile_ahead(self, names: Iterable[str]) -> None:
        """Compile those of these programs that are missing in the background. Returns at once."""
        if self.ahead:
            missing = [name for name in names if name not in self.by_name and name not in self._without]
            self.ahead.want(missing, self.cache.backend)

    def add(self, programs: Sequence[Program], started: float) -> list[Program]:
        """Compile these programs. started: when building them started, for the reported time."""
        compile_into(self.cache, programs, self._report, time.perf_counter() - started)
        for program in programs:
            self.buffer_names.add(program)
            self.by_name[program.name] = replace(program, built_from=None)  # it is compiled
        return [self.by_name[program.name] for program in programs]


def compile_programs(
    config: ModelConfig, options: RuntimeOptions, report: Reporter, all_variants: bool = False
) -> ProgramLibrary:
    """Compile the programs of decode, and those that a prompt of `options.prompt_tokens` needs.

    all_variants: compile those of all variants and, with decode in rows, of all engine steps. Raises
    ConfigError, and UnsupportedShapeError for a seq_len, before anything is compiled or written; CompileError
    and DiskFullError, which leave the cache usable.
    """
    blocks, started = options.variant_set(config), time.perf_counter()
    six = []
    if blocks.seq_len:
        names = names_with_kinds(config, programs_of(config))
        six = [*program_store.load_programs(config.shape, blocks.seq_len, names).values()]
    report.note(options.backend.reason)
    if config.context < config.max_position_embeddings:
        report.note(
            f"context: {config.context} of the model's {config.max_position_embeddings} positions, "
            f"{config.context_reason}"
        )
    own = options.part_config(config)
    needs_head = options.group.rank == 0 and not config.roles.reason_against_answers
    programs = ProgramLibrary(own, options, report, () if needs_head else blocks.lm_heads)
    with preparing_native() as native:
        if six:
            programs.add(six, started)
        else:
            programs.ensure_compiled(
                all_program_names(own, blocks)
                if all_variants
                else first_program_names(blocks, options.prompt_tokens)
            )
            more = blocks.batch_programs if all_variants and blocks.decode_path == ROWS else ()
            programs.ensure_compiled(more)
        if remark := native.result():
            report.note(remark)
    return programs


def names_with_kinds(config: ModelConfig, names: Iterable[str]) -> list[str]:
    """The programs of these names for all kinds of weights that the model has, each once."""
    kinds = config.weight_kinds
    named = (
        [name] if split_name(name)[1] else [kinds.name(name, layer) for layer in layers_of(config, name)]
        for name in names
    )
    return [*dict.fromkeys(itertools.chain.from_iterable(named))]


def programs_of(config: ModelConfig) -> Sequence[str]:
    """The programs for one prompt length and one token."""
    return (*PROGRAMS, *(CONV_PROGRAMS if config.layers_with_conv else ()))


def compile_for_other_devices(
    config: ModelConfig, options: RuntimeOptions, first: ProgramLibrary
) -> list[ProgramLibrary]:
    """Compile the same programs, without the LM head, for each further device of this process. Raises
    RunError."""
    heads = options.variant_set(config).lm_heads
    libraries = []
    for device in options.devices[1:]:
        device_options = replace(options, backend=replace(options.backend, device=device))
        libraries.append(
            ProgramLibrary(
                options.part_config(config), device_options, Reporter(terminal=False, quiet=True), heads
            )
        )
        libraries[-1].ensure_compiled(first.by_name)
    return libraries


def first_program_names(variant_set: VariantSet, prompt_tokens: int) -> list[str]:
    """The programs for a prompt of this length, and for decode after it; for 0, of one token.

    For a prompt longer than the largest context: the programs that fill that context.
    """
    tokens = min(max(1, prompt_tokens), variant_set.largest_context or prompt_tokens)
    return [
        *variant_set.decode_programs,
        *variant_set.programs_for_calls(variant_set.plan(tokens, 0), last_only=True),
    ]


def all_program_names(config: ModelConfig, variant_set: VariantSet) -> list[str]:
    """The programs of all variants, and those of decode. config: of a device's part."""
    variants = {*variant_set.variants, *variant_set.window_variants}
    plans = plan_variant_programs(config.shape, variants, variant_set.attention_kinds).values()
    return [*variant_set.decode_programs, *(each.name for each in plans if each.kind not in HEADS)]


def compile_into(
    cache: KernelCache, programs: Sequence[Program], report: Reporter, building: float = 0.0
) -> None:
    """Compile programs, with a progress bar. building: seconds that building or fetching them took, added to
    the reported time. Raises CompileError and DiskFullError."""
    if not programs:
        return
    started = time.perf_counter()
    with report.bar("compiling", len(programs)) as step:
        progress = _CompileProgress(report, step)
        cache.compile_all(programs, progress=progress)
    for program in programs:
        cache.profiler.declare(program.name, flops=program_flops(program))
    spent = building + time.perf_counter() - started
    report.note(f"programs: {progress.compiled} compiled, {progress.reused} from the cache, {spent:.1f} s")


@dataclass
class _CompileProgress:
    """Shows the cache's progress events on the bar, or as notes if there is no bar."""

    report: Reporter
    step: OnProgress
    compiled: int = 0
    reused: int = 0
    compiling: list[str] = field(default_factory=list)

    def __call__(self, event: Progress) -> None:
        if event.stage is CompileStage.COMPILING:
            self.compiling.append(event.program)
        elif event.program in self.compiling:
            self.compiling.remove(event.program)
        self.compiled += event.stage is CompileStage.COMPILED
        self.reused += event.stage is CompileStage.REUSED
        self.step(", ".join(self.compiling), event.done)
        if line := self._line(event):
            self.report.note(line)

    def _line(self, event: Progress) -> str:
        if event.stage is CompileStage.COMPILED:
            return f"compiled {event.program} in {event.seconds:.1f} s"
        if event.stage is CompileStage.COMPILING and not self.report.has_bars:
            return f"compiling {event.program} ({event.detail})"
        return ""
