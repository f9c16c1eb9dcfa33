"""Building and compiling a model's programs, and telling how far it has come.

They are the programs of decode, and those of the variants that prompts are cut for, each compiled when it is
first needed; or, where a prompt length is asked for, the six that are built for it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aerie.common.errors import UserError
from aerie.engine.call_costs import CallCosts
from aerie.engine.communication import Communicator, SingleRank
from aerie.engine.config import ModelConfig
from aerie.engine.config_reader import MODELS_THAT_RUN
from aerie.engine.context_end import STOP, ContextEndPolicy, context_end
from aerie.engine.decode_paths import check_feature
from aerie.engine.errors import ConfigError
from aerie.engine.families import SOME_THAT_RUN
from aerie.engine.model_family import DiffusionConfig
from aerie.engine.native import prepare_native
from aerie.engine.programs import HEADS, SharedBufferNames, program_flops
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
from aerie.runtime import Backend, CompileStage, KernelCache, Profiler, Progress


@dataclass(frozen=True)
class RuntimeOptions:
    """What to compile, where programs run, and the folder that keeps them.

    seq_len: the prompt length, in tokens, of the six programs; None: programs of variants. variants: which,
    as text (`aerie/engine/variants.py`); None: the model's default set. `fallback` is where programs run once
    `backend` has failed; None: nowhere. `prompt_tokens`: how long a prompt is known to come. decode: the
    family. context_end: what happens at the end of the largest context (`context_end.py`).
    devices: those of this process that share the model, by their index in pyxrt, the backend's first; ()
    for that alone. group: this process among several that share it, each with one device. kv_pool: positions
    of which many requests' keys and values are kept; None: as many as memory suggests when they come.
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

    @property
    def world_size(self) -> int:
        """How many devices share the model, in all processes."""
        return max(self.group.world_size, len(self.devices), 1)

    def part_config(self, config: ModelConfig) -> ModelConfig:
        """The facts of what a device has: of the model, or of a part. UserError as `part_of`."""
        return config if self.world_size == 1 else part_config(config, self.world_size)

    def context_end_policy(self, config: ModelConfig) -> ContextEndPolicy:
        """The policy at the end of the context. Raises as `context_end.context_end` and `blocks`, and
        UserError for one that a model of block diffusion cannot have."""
        if config.diffusion and self.context_end != STOP:
            raise UserError(
                f"context_end (CONTEXT_END) is {self.context_end!r}, which drops tokens one by one, and this "
                f"model fills in blocks, from multiples of {config.diffusion.block_size} on; leave it out"
            )
        return context_end(self.context_end, self.variant_set(config), config.context)

    def variant_set(self, config: ModelConfig) -> VariantSet:
        """How prompts are cut. Raises as choose_seq_len, and UserError for variants that are none, for what
        several devices cannot share, and for what cannot fill in blocks."""
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

    def _variant_set(self, config: ModelConfig) -> VariantSet:
        """As blocks, of any model."""
        if self.world_size > 1:
            return self._parallel_variant_set(config)
        check_shape(config)
        if self.seq_len is not None and (self.variants or self.decode == ROWS):
            given = "--variants (VARIANTS)" if self.variants else "--decode rows (DECODE)"
            raise UserError(
                f"--seq-len (SEQ_LEN) asks for the six programs of one prompt length, and {given} for those "
                "of variants; give one of the two"
            )
        if self.seq_len is not None:
            return VariantSet(choose_seq_len(config, self.seq_len))
        return variant_set_for(config, self.variants, self.decode)

    def _parallel_variant_set(self, config: ModelConfig) -> VariantSet:
        """Of several devices."""
        check_feature("devices", VariantSet(self.seq_len or 0, decode_path=self.decode))
        if self.fallback:
            raise UserError(
                f"{self.world_size} devices share a model without a fallback (FALLBACK), as what one has of it is "
                "of no use without the others; leave it out, or load the model on one device"
            )
        blocks = variant_set_for(self.part_config(config), self.variants, self.decode)
        return replace(blocks, devices=self.world_size)


def variant_set_for(config: ModelConfig, variants: str | None = None, decode: str = GUIDE) -> VariantSet:
    """Blocks of these variants, or of the model's default set. UserError for variants that are none."""
    every = parse_variants(variants) if variants else default_variants(config.context)
    blocks = tuple(one for one in every if one.rows > 1)
    if not blocks:
        raise UserError(
            f"VARIANTS {variants!r} has no variant of several tokens, by which prompts are read; "
            "add one, as 8x512"
        )
    return VariantSet(0, blocks, decode, CallCosts(config.layer_parameters))


def check_diffusion_block(diffusion: DiffusionConfig, variant_set: VariantSet) -> None:
    """UserError for a block of diffusion that no step has rows for."""
    most = max(MAX_TAIL_ROWS, *(one.rows for one in variant_set.variants))
    if diffusion.block_size > most:
        raise UserError(
            f"a block of this model has {diffusion.block_size} tokens, and the largest variant takes {most}; "
            f"add one of more to VARIANTS, as {diffusion.block_size}x{variant_set.contexts[-1]}"
        )


CONFIG_NAMES = {
    "emb_dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
}
"""What config.json calls the sizes of a ModelShape that have other names there."""
IN_CONFIG = re.compile(rf"\b({'|'.join(CONFIG_NAMES)})\b")


def choose_seq_len(config: ModelConfig, requested: int | None) -> int:
    """The prompt length of the six programs: as asked, or the model's default made legal.

    Raises UserError for more than the model's positions, ConfigError for a model that the kernels do not
    accept. Whether `asked` is legal is for the program builders to say.
    """
    check_shape(config)
    most = round_up_seq_len(config.context)
    if requested is not None and requested > most:
        raise UserError(
            f"--seq-len {requested} (SEQ_LEN) is more than the model's {config.context} positions "
            f"({config.context_entry}); ask for at most {most}"
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
    """A model's programs, by name, compiled in a cache whose buffers they share (`places`).

    config: of the model, or of a device's part. `have` compiles what is missing of some variants; never
    those of `without`.
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
        self.buffer_names = SharedBufferNames((), 0)
        self._config, self._options, self._report = config, options, report
        self.cache = self.open_cache(options.backend, Profiler())

    def open_cache(self, backend: Backend, profiler: Profiler) -> KernelCache:
        """A cache in which the programs share the buffers of a pass; nothing is compiled."""
        return KernelCache(self._options.cache_dir, backend, profiler, self._report.note, self.buffer_names)

    def ensure_compiled(self, names: Iterable[str]) -> list[Program]:
        """Compile what is missing of these programs; gives those. Raises as compile_into."""
        missing = [
            name for name in dict.fromkeys(names) if name not in self.by_name and name not in self._without
        ]
        if not missing:
            return []
        started = time.perf_counter()
        return self.add(program_store.load_programs_by_name(self._config.shape, missing), started)

    def add(self, programs: Sequence[Program], started: float) -> list[Program]:
        """Compile these, whose building began at `started`."""
        compile_into(self.cache, programs, self._report, time.perf_counter() - started)
        for program in programs:
            self.buffer_names.add(program, self._config.num_hidden_layers)
            self.by_name[program.name] = program
        return [*programs]


def compile_programs(
    config: ModelConfig, options: RuntimeOptions, report: Reporter, all_variants: bool = False
) -> ProgramLibrary:
    """The programs of decode, and those that a prompt of `options.prompt_tokens` needs, compiled.

    every: those of all variants; with decode in rows, those of all steps of many requests too. Raises
    ConfigError, and UnsupportedShapeError for a seq_len, before anything is compiled or written; CompileError
    and DiskFullError, which leave the cache usable.
    """
    blocks, started = options.variant_set(config), time.perf_counter()
    six = [*program_store.load_programs(config.shape, blocks.seq_len).values()] if blocks.seq_len else []
    report.note(options.backend.reason)
    if config.context < config.max_position_embeddings:
        report.note(
            f"context: {config.context} of the model's {config.max_position_embeddings} positions, as many "
            "as its sliding window holds; attention that forgets earlier ones is not supported"
        )
    if remark := prepare_native():
        report.note(remark)
    own = options.part_config(config)
    programs = ProgramLibrary(own, options, report, () if options.group.rank == 0 else blocks.lm_heads)
    if six:
        programs.add(six, started)
    else:
        programs.ensure_compiled(
            all_program_names(own, blocks)
            if all_variants
            else first_program_names(blocks, options.prompt_tokens)
        )
        programs.ensure_compiled(blocks.batch_programs if all_variants and blocks.decode_path == ROWS else ())
    return programs


def compile_for_other_devices(
    config: ModelConfig, options: RuntimeOptions, first: ProgramLibrary
) -> list[ProgramLibrary]:
    """The same programs on each further device of this process, but for the LM head. Raises RunError."""
    heads = options.variant_set(config).lm_heads
    made = []
    for device in options.devices[1:]:
        there = replace(options, backend=replace(options.backend, device=device))
        made.append(
            ProgramLibrary(options.part_config(config), there, Reporter(terminal=False, quiet=True), heads)
        )
        made[-1].ensure_compiled(first.by_name)
    return made


def first_program_names(variant_set: VariantSet, prompt_tokens: int) -> list[str]:
    """The programs that a prompt of so many tokens needs, and decode after it; for 0, one token's.

    Of a longer prompt than the largest context, those that fill it.
    """
    tokens = min(max(1, prompt_tokens), variant_set.largest_context or prompt_tokens)
    return [
        *variant_set.decode_programs,
        *variant_set.programs_for_calls(variant_set.plan(tokens, 0), last_only=True),
    ]


def all_program_names(config: ModelConfig, variant_set: VariantSet) -> list[str]:
    """The programs of all variants, and those of decode; config: of what a device has."""
    plans = plan_variant_programs(config.shape, variant_set.variants, variant_set.layer_kinds).values()
    return [*variant_set.decode_programs, *(each.name for each in plans if each.kind not in HEADS)]


def compile_into(
    cache: KernelCache, programs: Sequence[Program], report: Reporter, building: float = 0.0
) -> None:
    """Compile programs, telling how far it has come. `building` is how long, in seconds, they took to make or
    to fetch, which is told with it. Raises CompileError and DiskFullError.
    """
    if not programs:
        return
    started = time.perf_counter()
    with report.bar("compiling", len(programs)) as step:
        telling = _CompileProgress(report, step)
        cache.compile_all(programs, progress=telling)
    for program in programs:
        cache.profiler.declare(program.name, flops=program_flops(program))
    spent = building + time.perf_counter() - started
    report.note(f"programs: {telling.compiled} compiled, {telling.reused} from the cache, {spent:.1f} s")


@dataclass
class _CompileProgress:
    """Takes the cache's progress events, one at a time, to the bar; without a bar, to notes."""

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
