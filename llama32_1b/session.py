"""A session: programs compiled, weights resident, ready to answer, and what goes on when a device fails.

The unit that is run again after a failure is a step: the prompt, one token, one row of logits. Each reads
tokens and the counted positions of the KV cache and nothing else, so what a failed one left behind is
overwritten, and no token is lost or made twice. What the first device computed stays in the KV cache.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from aerie.llama32_1b.checkpoint import Checkpoint
from aerie.llama32_1b.compiling import (
    RuntimeOptions,
    choose_seq_len,
    compile_into,
    compile_programs,
    open_cache,
)
from aerie.llama32_1b.footprint import check_memory
from aerie.llama32_1b.generate import Generation, Sampler, never
from aerie.llama32_1b.model import LlamaModel, assemble, preload, preload_steps
from aerie.llama32_1b.progress import Reporter
from aerie.llama32_1b.tokenizer import Tokenizer
from aerie.runtime import Backend, KernelCache, RunError

Fallback = Callable[[], tuple[KernelCache, LlamaModel]]


@dataclass
class Session:
    """A model that is ready, with its tokenizer and the cache that runs its programs.

    `note` is told of a failure that was got over. `fallback` gives another cache and the model on it, every
    weight in place; it is called once, when the first cache has failed. `backend` names what has run the
    programs: virtual or npu; "npu, then virtual" where the one had to give way.
    """

    model: LlamaModel
    tokenizer: Tokenizer
    cache: KernelCache
    note: Callable[[str], None]
    fallback: Fallback | None = None
    backend: str = ""

    def __post_init__(self) -> None:
        self.backend = self.backend or self.cache.backend.name

    def generate(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        sampler: Sampler,
        interrupted: Callable[[], bool] = never,
    ) -> Generation:
        """Tokens that continue `prompt_ids`; see Generation."""
        return Generation(self.model, prompt_ids, max_new_tokens, sampler, interrupted, self.recover)

    def recover(self, error: RunError, where: str) -> LlamaModel:
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

    def text(self, generation: Generation) -> Iterator[str]:
        """Run `generation` and give its text as it is made, without the tokens that end it."""
        stream = self.tokenizer.stream()
        for token in generation:
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
    seq_len = choose_seq_len(checkpoint.config, options.seq_len)
    check_memory(checkpoint.config, seq_len, options.backend.access.copies)
    with checkpoint.weights.reading_ahead():
        programs, cache = compile_programs(checkpoint.config, options, report)

    model = assemble(checkpoint, programs, cache, seq_len, cache.profiler.span)

    def fall_back(to: Backend) -> tuple[KernelCache, LlamaModel]:
        other = open_cache(options.cache_dir, to, programs, checkpoint.config, cache.profiler, report)
        compile_into(other, programs, report)
        on_other = dataclasses.replace(model, runner=other)
        _preload(on_other, checkpoint, report)
        return other, on_other

    fallback = partial(fall_back, options.fallback) if options.fallback else None
    session = Session(model, checkpoint.tokenizer, cache, report.note, fallback)
    try:
        _preload(model, checkpoint, report)
    except RunError as error:
        session.recover(error, "while weights were loaded")
    cache.profiler.reset()
    return session


def _preload(model: LlamaModel, checkpoint: Checkpoint, report: Reporter) -> None:
    started = time.perf_counter()
    total = preload_steps(model.config)
    with report.bar("loading weights", total) as step:
        for done, what in enumerate(preload(model, checkpoint.weights), start=1):
            step(what, done)
    spent = time.perf_counter() - started
    report.note(f"weights: {model.config.num_hidden_layers} layers loaded, {spent:.1f} s")
