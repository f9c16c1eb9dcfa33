"""A session: programs compiled, weights resident, ready to answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llama32_1b.checkpoint import Checkpoint
from llama32_1b.config import LlamaConfig
from llama32_1b.errors import UserError
from llama32_1b.generate import Generation, never
from llama32_1b.model import LlamaModel, assemble
from llama32_1b.progress import Reporter
from llama32_1b.sampler import Sampler
from llama32_1b.tokenizer import Tokenizer
from runtime import Profiler


@dataclass(frozen=True)
class Session:
    """A model that is ready, with its tokenizer."""

    model: LlamaModel
    tokenizer: Tokenizer
    backend: str
    profiler: Profiler

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
            if token not in self.model.config.eos_token_ids and (piece := stream.feed(token)):
                yield piece
        if piece := stream.flush():
            yield piece


@dataclass(frozen=True)
class RuntimeOptions:
    """Where and how to run: prefill length in tokens, backend (auto, virtual, npu), artifact directory."""

    seq_len: int | None
    backend: str
    cache_dir: Path


def choose_seq_len(config: LlamaConfig, asked: int | None) -> int:
    """The prefill length to compile for. UserError where the model has fewer positions than asked for."""
    if asked is not None and asked > config.max_position_embeddings:
        raise UserError(
            f"--seq-len {asked} is more than the model's {config.max_position_embeddings} positions "
            f"(max_position_embeddings); ask for at most that"
        )
    return asked or config.default_seq_len


def prepare_runtime(checkpoint: Checkpoint, options: RuntimeOptions, report: Reporter) -> Session:
    """Compile what is not yet compiled, then fill each layer's buffer objects with its weights."""
    seq_len = choose_seq_len(checkpoint.config, options.seq_len)
    profiler = Profiler()
    cache = open_cache(options, report, profiler)
    programs = compile_programs(checkpoint.config, seq_len, cache, report)
    model = assemble(checkpoint, programs, cache, seq_len, profiler.host)
    _preload(model, checkpoint, report)
    profiler.reset()
    return Session(model, checkpoint.tokenizer, cache.backend.name, profiler)
