"""What a comparison measures of a checkpoint, whether memory suffices for it, and the default checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.common import folders
from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import ModelConfig
from aerie.engine.memory_estimate import SessionNeeds, footprint, require
from aerie.engine.program_library import all_program_names, variant_set_for
from aerie.engine.reporter import Reporter
from aerie.engine.variant_set import VariantSet
from aerie.engine.weights import EMBED, expected_shapes
from aerie.llama32_1b.synthetic.shape import BF16_BYTES, LLAMA_3_2_1B
from aerie.llama32_1b.synthetic.writer import weight_bytes, write_checkpoint
from aerie.runtime.memory import format_bytes
from aerie.verify.reference import reference_bytes
from benchmarks.drafts import texts_that_fit
from benchmarks.peaks import bytes_to_read
from benchmarks.sides import WARM_UP

PROMPT_LENGTHS = (16, 64, 128, 512, 2048)
"""Tokens of the prompts, as far as a model has positions for them."""
BRIEF_TOKENS = 64
"""Tokens of the first prompt of a process, from which the time of the longer ones is estimated."""
SHORT_CONTEXT = 128
NEW_TOKENS = 48
"""Tokens at the end of the longest prompt that the conversation before it does not have."""
FEW_ROWS_CONTEXT = 256
"""Maximum context of the passes of few rows and of requests together."""
TEXT_TOKENS, TEXT_WARM_UP_TOKENS = 90, 24
"""Tokens of an output that replays a text; and of its warm-up."""
POOLED_FEWER_TOKENS, POOLED_NEW_TOKENS = 8, 40
"""How many tokens the prompt of the pool has less than the longest; and how many at its end are new."""

HTTP_TOKENS, HTTP_TIMES = 100, 5
"""Tokens of an output of the demo over HTTP, and outputs per round."""
CONCURRENT_TOKENS = 64
"""Tokens of each output of concurrent clients."""


@dataclass(frozen=True)
class Plan:
    """What is measured, in rounds: first tokens of `prompts` (lengths), `tokens` decoded tokens up to each of
    `contexts`, all by the programs of `variant_set`; and outputs that replay `texts`, with and without
    drafts."""

    folder: Path
    config: ModelConfig
    files: Sequence[Path]
    variant_set: VariantSet
    rounds: int
    tokens: int
    prompts: tuple[int, ...]
    contexts: tuple[int, ...]
    texts: tuple[str, ...] = ()

    @property
    def checkpoint_bytes(self) -> int:
        """Total size of the weight files, in bytes."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return self.prompts[-1]

    @property
    def shared(self) -> int:
        """Tokens of the longest prompt that the conversation before it has."""
        return self.longest - NEW_TOKENS

    @property
    def pooled(self) -> int:
        """Tokens of the prompt that has most of its tokens in the pool."""
        return self.longest - POOLED_FEWER_TOKENS

    @property
    def few_rows_context(self) -> int:
        """Context of the passes of few rows."""
        return min(FEW_ROWS_CONTEXT, self.longest)

    @property
    def program_count(self) -> int:
        """Programs of the default set of variants."""
        return len(set(all_program_names(self.config, self.variant_set)))

    @property
    def has_targets(self) -> bool:
        """Whether targets apply: they are for the size of Llama-3.2-1B."""
        full_size = self.config.shape == LLAMA_3_2_1B.shape
        return full_size and self.config.num_hidden_layers == LLAMA_3_2_1B.num_hidden_layers


def make_plan(folder: Path, rounds: int, tokens: int) -> Plan:
    """Plan the comparison of a checkpoint: its default variants, and prompts of up to 2048 tokens or as many
    as it has positions.

    Raises CheckpointError if the checkpoint is incomplete, UserError if it has too few positions.
    """
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    if config.context < SHORT_CONTEXT:
        raise UserError(
            f"{folder} has {config.context} positions; decoding is measured up to a context of "
            f"{SHORT_CONTEXT}: take another model"
        )
    if tokens + WARM_UP >= SHORT_CONTEXT:
        raise UserError(
            f"{tokens} tokens, and {WARM_UP} before the clock runs, do not fit the context of "
            f"{SHORT_CONTEXT} that they are decoded in: measure at most "
            f"{SHORT_CONTEXT - WARM_UP - 1} --tokens"
        )
    prompts = tuple(length for length in PROMPT_LENGTHS if length <= config.context)
    contexts = tuple(sorted({SHORT_CONTEXT, prompts[-1]}))
    files, variant_set = checkpoint.weights.files, variant_set_for(config)
    texts = tuple(texts_that_fit(config, TEXT_TOKENS))
    return Plan(folder, config, files, variant_set, rounds, tokens, prompts, contexts, texts)


def cache_bytes_per_position(config: ModelConfig) -> int:
    """Bytes of the keys and values of one position, in all layers."""
    return 2 * BF16_BYTES * config.num_hidden_layers * config.num_key_value_heads * config.head_dim


def weight_bytes_per_token(config: ModelConfig) -> int:
    """Bytes of the weights that a decoded token reads: each once, and one row of an untied embedding."""
    shapes = dict(expected_shapes(config))
    if not config.tie_word_embeddings:
        del shapes[EMBED]
    return BF16_BYTES * sum(math.prod(shape) for shape in shapes.values())


def attention_flops(config: ModelConfig, tokens: int) -> float:
    """Operations of causal attention over a prompt: in all layers but the last one, where only the last token
    attends."""
    layers, width = config.num_hidden_layers - 1, config.num_attention_heads * config.head_dim
    return layers * 4.0 * width * tokens * (tokens + 1) / 2


def check_memory(config: ModelConfig, nbytes: int) -> None:
    """Raise TooLittleMemoryError if both sides and the checkpoint's `nbytes` in the page cache do not fit."""
    names = all_program_names(config, variant_set_for(config))
    positions = min(PROMPT_LENGTHS[-1], config.context)
    aerie_bytes = footprint(config, SessionNeeds(0, tuple(names), positions)).total
    transformers_bytes = reference_bytes(config, BF16_BYTES)
    read = bytes_to_read()
    parts = (
        f" (ours {format_bytes(aerie_bytes)}, theirs {format_bytes(transformers_bytes)}, "
        f"the checkpoint in the page cache {format_bytes(nbytes)}, "
        f"memory to read {format_bytes(read)})"
    )
    require(
        aerie_bytes + transformers_bytes + nbytes + read,
        "the comparison",
        ["measure the small one with MODEL=demo"],
        parts,
    )


def synthetic_checkpoint(report: Reporter) -> Path:
    """The synthetic Llama-3.2-1B, written if it is missing."""
    folder = folders.cache_folder() / "synthetic" / "llama-3.2-1b"
    if not folder.is_dir():
        check_memory(LLAMA_3_2_1B, weight_bytes(LLAMA_3_2_1B))
        report.note(f"writing a synthetic Llama-3.2-1B of 2.5 GB to {folder}, once")
        write_checkpoint(LLAMA_3_2_1B, folder, 0, report)
    return folder
