"""A session: programs compiled, weights resident, ready to answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llama32_1b.checkpoint import Checkpoint
from llama32_1b.compiling import RuntimeOptions, choose_seq_len, compile_programs
from llama32_1b.generate import Generation, never
from llama32_1b.model import LlamaModel, assemble, preload, preload_steps
from llama32_1b.progress import Reporter
from llama32_1b.sampler import Sampler
from llama32_1b.tokenizer import Tokenizer
from runtime import KernelCache


@dataclass(frozen=True)
class Session:
    """A model that is ready, with its tokenizer and the cache that runs its programs."""

    model: LlamaModel
    tokenizer: Tokenizer
    cache: KernelCache

    @property
    def backend(self) -> str:
        """The backend's name: virtual or npu."""
        return self.cache.backend.name

    def generate(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        sampler: Sampler,
        interrupted: Callable[[], bool] = never,
    ) -> Generation:
        """Tokens that continue `prompt_ids`; see Generation."""
        return Generation(self.model, prompt_ids, max_new_tokens, sampler, interrupted)

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

    After this, a call writes activations alone. Raises as compile_programs does.
    """
    programs, cache = compile_programs(checkpoint.config, options, report)
    seq_len = choose_seq_len(checkpoint.config, options.seq_len)
    model = assemble(checkpoint, programs, cache, seq_len, cache.profiler.span)
    _preload(model, checkpoint, report)
    cache.profiler.reset()
    return Session(model, checkpoint.tokenizer, cache)


def _preload(model: LlamaModel, checkpoint: Checkpoint, report: Reporter) -> None:
    started = time.perf_counter()
    total = preload_steps(model.config)
    with report.bar("loading weights", total) as step:
        for done, what in enumerate(preload(model, checkpoint.weights), start=1):
            step(what, done)
    spent = time.perf_counter() - started
    report.note(f"weights: {model.config.num_hidden_layers} layers loaded, {spent:.1f} s")
