"""A session: programs compiled, weights resident, ready to answer."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llama32_1b.checkpoint import Checkpoint
from llama32_1b.compiling import RuntimeOptions, choose_seq_len, compile_into, compile_programs, open_cache
from llama32_1b.footprint import check_memory
from llama32_1b.generate import Generation, never
from llama32_1b.model import LlamaModel, assemble, preload, preload_steps
from llama32_1b.progress import Reporter
from llama32_1b.running import Running
from llama32_1b.sampler import Sampler
from llama32_1b.tokenizer import Tokenizer
from runtime import Backend, KernelCache, RunError


@dataclass(frozen=True)
class Session:
    """A model that is ready, with its tokenizer and what runs its programs."""

    model: LlamaModel
    tokenizer: Tokenizer
    running: Running

    @property
    def cache(self) -> KernelCache:
        """The cache that runs the programs now."""
        return self.running.cache

    @property
    def backend(self) -> str:
        """The backend's name: virtual or npu; "npu, then virtual" where the one had to give way."""
        return self.running.backend

    def generate(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        sampler: Sampler,
        interrupted: Callable[[], bool] = never,
    ) -> Generation:
        """Tokens that continue `prompt_ids`; see Generation."""
        return Generation(self.model, prompt_ids, max_new_tokens, sampler, interrupted, self.running.recover)

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
    call writes activations alone. With `options.fallback`, a device that fails, now or later, is replaced by
    that backend, whose programs are compiled only then. Raises TooLittleMemoryError before anything else is
    done, what compile_programs raises, and RunError for a device that fails without one.
    """
    seq_len = choose_seq_len(checkpoint.config, options.seq_len)
    check_memory(checkpoint.config, seq_len, options.backend.access.copies)
    with checkpoint.weights.reading_ahead():
        programs, cache = compile_programs(checkpoint.config, options, report)

    def prepare(fallback: Backend) -> KernelCache:
        other = open_cache(options.cache_dir, fallback, programs, checkpoint.config, cache.profiler, report)
        compile_into(other, programs, report)
        _preload(dataclasses.replace(model, runner=other), checkpoint, report)
        return other

    stand_in = functools.partial(prepare, options.fallback) if options.fallback else None
    running = Running(cache, report.note, stand_in)
    model = assemble(checkpoint, programs, running, seq_len, cache.profiler.span)
    try:
        _preload(model, checkpoint, report)
    except RunError as error:
        running.recover(error, "while weights were loaded")
    cache.profiler.reset()
    return Session(model, checkpoint.tokenizer, running)


def _preload(model: LlamaModel, checkpoint: Checkpoint, report: Reporter) -> None:
    started = time.perf_counter()
    total = preload_steps(model.config)
    with report.bar("loading weights", total) as step:
        for done, what in enumerate(preload(model, checkpoint.weights), start=1):
            step(what, done)
    spent = time.perf_counter() - started
    report.note(f"weights: {model.config.num_hidden_layers} layers loaded, {spent:.1f} s")
