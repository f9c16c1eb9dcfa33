"""Building and compiling the six programs, and telling how far it has come."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aerie.engine.config import ModelConfig
from aerie.engine.errors import ConfigError, UserError
from aerie.engine.facts import MODELS_THAT_RUN
from aerie.engine.families import SOME_THAT_RUN
from aerie.engine.native import prepare_native
from aerie.engine.programs import program_flops, sharing
from aerie.engine.progress import Reporter, Step
from aerie.multi_launch_builder import Program, UnsupportedShapeError, cached, legal_seq_len
from aerie.runtime import Backend, KernelCache, Profiler, Progress, Stage


@dataclass(frozen=True)
class RuntimeOptions:
    """Prefill length in tokens (None: the model's default), where programs run, artifact folder.

    `fallback` is where they run once `backend` has failed; None: nowhere. `prompt_tokens`: how long a prompt
    is known to come; the default length is one that holds it.
    """

    seq_len: int | None
    backend: Backend
    cache_dir: Path
    fallback: Backend | None = None
    prompt_tokens: int = 0

    def length(self, config: ModelConfig) -> int:
        """The prefill length to compile for (choose_seq_len)."""
        return choose_seq_len(config, self.seq_len, self.prompt_tokens)


CONFIG_NAMES = {
    "emb_dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
}
"""What config.json calls the sizes of a ModelShape that have other names there."""
IN_CONFIG = re.compile(rf"\b({'|'.join(CONFIG_NAMES)})\b")


def choose_seq_len(config: ModelConfig, asked: int | None, prompt_tokens: int = 0) -> int:
    """The prefill length to compile for: as asked, or the model's default for such a prompt made legal.

    Raises UserError for more than the model's positions, ConfigError for a model that the kernels do not
    accept. Whether `asked` is legal is for the program builders to say.
    """
    check_shape(config)
    most = legal_seq_len(config.context)
    if asked is not None and asked > most:
        raise UserError(
            f"--seq-len {asked} (SEQ_LEN) is more than the model's {config.context} positions "
            f"({config.context_entry}); ask for at most {most}"
        )
    return asked or legal_seq_len(config.default_seq_len(prompt_tokens))


def check_shape(config: ModelConfig) -> None:
    """Raises ConfigError for a model that the kernels do not accept."""
    try:
        cached.check_shape(config.shape)
    except UnsupportedShapeError as error:
        problem = IN_CONFIG.sub(lambda name: CONFIG_NAMES[name[0]], error.problem)
        raise ConfigError(
            f"this model does not fit the kernels, and no option makes it fit: {problem}. Among those that "
            f"do are {SOME_THAT_RUN} ({MODELS_THAT_RUN})"
        ) from None


def compile_programs(
    config: ModelConfig, options: RuntimeOptions, report: Reporter
) -> tuple[dict[str, Program], KernelCache]:
    """The six programs, and the cache that holds each of them compiled.

    Raises ConfigError, and UnsupportedShapeError for a seq_len, before anything is compiled or written;
    CompileError and DiskFullError, which leave the cache usable.
    """
    started = time.perf_counter()
    programs = cached.programs(config.shape, options.length(config))
    spent = time.perf_counter() - started
    report.note(options.backend.reason)
    if config.context < config.max_position_embeddings:
        report.note(
            f"context: {config.context} of the model's {config.max_position_embeddings} positions, "
            f"{config.context_reason}"
        )
    if remark := prepare_native():
        report.note(remark)
    cache = open_cache(options.cache_dir, options.backend, programs, config, Profiler(), report)
    compile_into(cache, programs, report, spent)
    return programs, cache


def open_cache(
    folder: Path,
    backend: Backend,
    programs: Mapping[str, Program],
    config: ModelConfig,
    profiler: Profiler,
    report: Reporter,
) -> KernelCache:
    """A cache for the programs of a model, in which they share the buffers of a pass; nothing is compiled."""
    shared = sharing(programs, config.num_hidden_layers)
    return KernelCache(folder, backend, profiler, report.note, shared)


def compile_into(
    cache: KernelCache, programs: Mapping[str, Program], report: Reporter, building: float = 0.0
) -> None:
    """Compile programs, telling how far it has come. `building` is how long, in seconds, they took to make or
    to fetch, which is told with it. Raises CompileError and DiskFullError.
    """
    started = time.perf_counter()
    with report.bar("compiling", len(programs)) as step:
        telling = _Telling(report, step)
        cache.compile_all(list(programs.values()), progress=telling)
    for program in programs.values():
        cache.profiler.declare(program.name, flops=program_flops(program))
    spent = building + time.perf_counter() - started
    report.note(f"programs: {telling.compiled} compiled, {telling.reused} from the cache, {spent:.1f} s")


@dataclass
class _Telling:
    """Takes the cache's progress events, one at a time, to the bar; without a bar, to notes."""

    report: Reporter
    step: Step
    compiled: int = 0
    reused: int = 0
    under_way: list[str] = field(default_factory=list)

    def __call__(self, event: Progress) -> None:
        if event.stage is Stage.COMPILING:
            self.under_way.append(event.program)
        elif event.program in self.under_way:
            self.under_way.remove(event.program)
        self.compiled += event.stage is Stage.COMPILED
        self.reused += event.stage is Stage.REUSED
        self.step(", ".join(self.under_way), event.done)
        if line := self._line(event):
            self.report.note(line)

    def _line(self, event: Progress) -> str:
        if event.stage is Stage.COMPILED:
            return f"compiled {event.program} in {event.seconds:.1f} s"
        if event.stage is Stage.COMPILING and not self.report.has_bars:
            return f"compiling {event.program} ({event.detail})"
        return ""
