"""A session: programs compiled, weights resident, ready to answer, and what goes on when a device fails.

The unit that is run again after a failure is a step: the prompt, one token, one row of logits. Each reads
tokens and the counted positions of the KV cache and nothing else, so what a failed one left behind is
overwritten, and no token is lost or made twice. What the first device computed stays in the KV cache.

A prompt that is longer than the programs take has others compiled, unless their length was asked for.
Padding is exact, so the answer is what it would have been with these from the start.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from functools import partial

from aerie.engine.checkpoint import Checkpoint
from aerie.engine.compiling import RuntimeOptions, compile_into, compile_programs, open_cache
from aerie.engine.embeddings import Token
from aerie.engine.footprint import check_memory
from aerie.engine.forward import check_prompt
from aerie.engine.generate import FinishReason, Generation, never
from aerie.engine.model import LoadedModel, assemble, preload, preload_steps
from aerie.engine.progress import Bar, Reporter, no_bar
from aerie.engine.sampler import Sampler
from aerie.engine.tokenizer import Tokenizer
from aerie.multi_launch_builder import Program
from aerie.runtime import Backend, KernelCache, RunError

Fallback = Callable[[], tuple[KernelCache, LoadedModel]]
Compiled = tuple[dict[str, Program], KernelCache]
Longer = Callable[["Session", int], Callable[[], "Session"]]
"""Compiles for a prompt of so many tokens, in place of a session; what it gives then loads the weights."""


@dataclass
class Session:
    """A model that is ready, with its tokenizer and the cache that runs its programs.

    `note` is told of a failure that was got over. `fallback` gives another cache and the model on it, every
    weight in place; it is called once, when the first cache has failed. `backend` names what has run the
    programs: virtual or npu; "npu, then virtual" where the one had to give way. `longer` is asked for a
    prompt that the programs are too short for; None: it is refused. `bar` moves while a prompt is read.
    """

    model: LoadedModel
    tokenizer: Tokenizer
    cache: KernelCache
    note: Callable[[str], None]
    fallback: Fallback | None = None
    backend: str = ""
    longer: Longer | None = None
    bar: Bar = no_bar
    _is_loaded: bool = True

    def __post_init__(self) -> None:
        self.backend = self.backend or self.cache.backend.name

    def make_room(self, prompt_ids: Sequence[Token]) -> None:
        """Have programs that take this prompt: where there are none, they are compiled, with progress told.

        Compiling leaves the session as it was; KeyboardInterrupt while weights are loaded has them loaded by
        the next call. Raises what prepare_runtime raises, and PromptError for what no length would do for.
        """
        if self.longer is None or (self._is_loaded and len(prompt_ids) <= self.model.longest_prompt):
            return
        check_prompt(prompt_ids, self.model.config)
        load = self.longer(self, len(prompt_ids))
        self._is_loaded = False
        self.cache.close()
        self._become(load())

    def _become(self, other: Session) -> None:
        self.model, self.cache, self.fallback = other.model, other.cache, other.fallback
        self._is_loaded = True
        if other.backend != self.backend.rsplit(", then ", 1)[-1]:
            self.backend = other.backend

    def generate(
        self,
        prompt_ids: Sequence[Token],
        max_new_tokens: int,
        sampler: Sampler,
        interrupted: Callable[[], bool] = never,
    ) -> Generation:
        """Tokens that continue `prompt_ids`; see make_room and Generation."""
        self.make_room(prompt_ids)
        return Generation(
            self.model, prompt_ids, max_new_tokens, sampler, interrupted, self.recover, self.bar
        )

    def recover(self, error: RunError, where: str) -> LoadedModel:
        """The model on the fallback's cache, in place of the one that failed. Raises `error` without one.

        The failed cache is closed first: its device is free, and views on its buffers are dead.
        """
        if self.fallback is None:
            raise error
        fallback, self.fallback = self.fallback, None
        failed = self.cache.backend.name
        self.note(f"\n{error}\nbackend {failed} is given up {where}; preparing another for the rest")
        self.cache.close()
        self.cache, self.model = fallback()
        self.backend = f"{failed}, then {self.cache.backend.name}"
        self.note(f"going on {where} on backend {self.cache.backend.name}")
        return self.model

    def text(self, generation: Generation, stop: Collection[int] = ()) -> Generator[str, None, None]:
        """Run `generation` and give its text as it is made, without the tokens that end it: the model's own,
        and those of `stop`.
        """
        stream = self.tokenizer.stream()
        for token in generation:
            if token in stop:
                generation.finish_reason = FinishReason.STOP
                break
            if token in self.model.config.eos_token_ids:
                continue
            with self.model.host_timer("detokenization"):
                piece = stream.feed(token)
            if piece:
                yield piece
        if piece := stream.flush():
            yield piece


def prepare_runtime(checkpoint: Checkpoint, options: RuntimeOptions, report: Reporter) -> Session:
    """Compile what is not yet compiled, then fill each layer's buffer objects with its weights.

    While programs are compiled, the weights' files come from the disk into the system's cache. After this, a
    call writes activations alone. With `options.fallback`, a device that fails, now or later, gives way to
    that backend, whose programs are compiled only then. Raises TooLittleMemoryError before anything else is
    done, what compile_programs raises, and RunError for a device that fails without one.
    """
    return _load(checkpoint, options, report, _compile(checkpoint, options, report))


def _compile(
    checkpoint: Checkpoint, options: RuntimeOptions, report: Reporter, replaced: int = 0
) -> Compiled:
    """replaced: the compiled length of the session that gives way to this one."""
    config, copies = checkpoint.config, options.backend.access.copies
    check_memory(config, options.length(config), copies, options.prompt_tokens, replaced)
    with checkpoint.weights.reading_ahead():
        return compile_programs(config, options, report)


def _load(checkpoint: Checkpoint, options: RuntimeOptions, report: Reporter, compiled: Compiled) -> Session:
    programs, cache = compiled
    seq_len = options.length(checkpoint.config)
    model = assemble(checkpoint, programs, cache, seq_len, cache.profiler.span)

    def fall_back(to: Backend) -> tuple[KernelCache, LoadedModel]:
        other = open_cache(options.cache_dir, to, programs, checkpoint.config, cache.profiler, report)
        compile_into(other, programs, report)
        on_other = dataclasses.replace(model, runner=other)
        _preload(on_other, checkpoint, report)
        return other, on_other

    fallback = partial(fall_back, options.fallback) if options.fallback else None
    longer = partial(_longer, checkpoint, options, report) if options.seq_len is None else None
    bar = partial(report.bar, "reading the prompt")
    session = Session(model, checkpoint.tokenizer, cache, report.note, fallback, longer=longer, bar=bar)
    try:
        _preload(model, checkpoint, report)
    except RunError as error:
        session.recover(error, "while weights were loaded")
    cache.profiler.reset()
    return session


def _longer(
    checkpoint: Checkpoint, options: RuntimeOptions, report: Reporter, session: Session, prompt_tokens: int
) -> Callable[[], Session]:
    """Compile for a prompt of so many tokens, on the backend that the session has come to; see Longer."""
    options = dataclasses.replace(options, prompt_tokens=prompt_tokens)
    length = options.length(checkpoint.config)
    reason = f"{prompt_tokens} tokens are more than the programs take; from here on they take up to {length}"
    backend = dataclasses.replace(session.cache.backend, reason=reason)
    options = dataclasses.replace(options, backend=backend, fallback=session.fallback and options.fallback)
    compiled = _compile(checkpoint, options, report, replaced=session.model.seq_len)
    return partial(_load, checkpoint, options, report, compiled)


def _preload(model: LoadedModel, checkpoint: Checkpoint, report: Reporter) -> None:
    started = time.perf_counter()
    total = preload_steps(model.config)
    with report.bar("loading weights", total) as step:
        for done, what in enumerate(preload(model, checkpoint.weights), start=1):
            step(what, done)
    spent = time.perf_counter() - started
    report.note(f"weights: {model.config.num_hidden_layers} layers loaded, {spent:.1f} s")
    if lost := str(checkpoint.weights.rounding):
        report.note(lost)
