"""What a comparison measures of a checkpoint, and whether there is room for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.common.errors import UserError
from aerie.engine.blocks import Blocks
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.compiling import blocks_of_variants, every_name
from aerie.engine.config import ModelConfig
from aerie.engine.footprint import Needs, footprint, require
from aerie.engine.weights import EMBED, expected_shapes
from aerie.llama32_1b.synthetic.shape import BF16_BYTES, LLAMA_3_2_1B
from aerie.runtime.memory import format_bytes
from aerie.verify.reference import reference_bytes
from benchmarks.drafts import fitting
from benchmarks.peaks import enough_to_read
from benchmarks.sides import WARM_UP

PROMPTS = (16, 64, 128, 512, 2048)
"""Tokens of the prompts, as far as a model has positions for them."""
BRIEF = 64
"""Of the prompt that comes first in a process, and tells how long the longer ones will take."""
SHORT_CONTEXT = 128
NEW = 48
"""Tokens at the end of the longest prompt that the conversation before it has not: it shares all others."""
FEW_ROWS_CONTEXT = 256
"""Positions that the last of few rows, and of requests together, attends to, at most."""
SAID, FIRST_SAID = 90, 24
"""Tokens of an answer that is a text, with guesses and without; and before the clock runs."""
POOLED_LESS, POOLED_NEW = 8, 40
"""Tokens that the prompt of the pool has less than the longest, and those at its end that are new."""

HTTP_TOKENS, HTTP_TIMES = 100, 5
"""Tokens of an answer of the demo over HTTP, and how many such answers a round has."""
CROWD_TOKENS = 64
"""Of each answer of those that clients ask for at once."""


@dataclass(frozen=True)
class Plan:
    """What to measure, in rounds: prompts of so many tokens each, and `tokens` decoded up to each of
    `contexts`, all by the programs of `blocks`; and answers that are `texts`, with guesses and without."""

    folder: Path
    config: ModelConfig
    files: Sequence[Path]
    blocks: Blocks
    rounds: int
    tokens: int
    prompts: tuple[int, ...]
    contexts: tuple[int, ...]
    texts: tuple[str, ...] = ()

    @property
    def checkpoint_bytes(self) -> int:
        """Of the files with weights."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return self.prompts[-1]

    @property
    def shared(self) -> int:
        """Of the longest prompt, tokens that a conversation before it has."""
        return self.longest - NEW

    @property
    def pooled(self) -> int:
        """Tokens of the prompt that shares most of them with one in the pool."""
        return self.longest - POOLED_LESS

    @property
    def few_rows_context(self) -> int:
        """Positions that the last of few rows attends to."""
        return min(FEW_ROWS_CONTEXT, self.longest)

    @property
    def program_count(self) -> int:
        """Programs of the default set of variants."""
        return len(set(every_name(self.config, self.blocks)))

    @property
    def is_judged(self) -> bool:
        """Whether targets apply: they are for the size of Llama-3.2-1B."""
        full_size = self.config.shape == LLAMA_3_2_1B.shape
        return full_size and self.config.num_hidden_layers == LLAMA_3_2_1B.num_hidden_layers


def make_plan(folder: Path, rounds: int, tokens: int) -> Plan:
    """The plan for a checkpoint: its default set of variants, and prompts of up to 2048 tokens, or as many as
    the model has positions for.

    Raises CheckpointError for one that is not whole, and UserError for one with too few positions.
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
    prompts = tuple(each for each in PROMPTS if each <= config.context)
    contexts = tuple(sorted({SHORT_CONTEXT, prompts[-1]}))
    files, blocks = checkpoint.weights.files, blocks_of_variants(config)
    texts = tuple(fitting(config, SAID))
    return Plan(folder, config, files, blocks, rounds, tokens, prompts, contexts, texts)


def cache_bytes_per_position(config: ModelConfig) -> int:
    """Bytes of the keys and values of a position, in all layers."""
    return 2 * BF16_BYTES * config.num_hidden_layers * config.num_key_value_heads * config.head_dim


def weight_bytes_per_token(config: ModelConfig) -> int:
    """Bytes of the weights that a decoded token needs: each once, and one row of an untied embedding."""
    shapes = dict(expected_shapes(config))
    if not config.tie_word_embeddings:
        del shapes[EMBED]
    return BF16_BYTES * sum(math.prod(shape) for shape in shapes.values())


def attention_flops(config: ModelConfig, tokens: int) -> float:
    """Operations of attention in a prompt, each token to itself and those before it: in all layers but the
    last one, where only the last token attends."""
    layers, width = config.num_hidden_layers - 1, config.num_attention_heads * config.head_dim
    return layers * 4.0 * width * tokens * (tokens + 1) / 2


def check_memory(config: ModelConfig, nbytes: int) -> None:
    """TooLittleMemoryError without room for both sides, and the checkpoint's `nbytes` in the page cache."""
    names, positions = every_name(config, blocks_of_variants(config)), min(PROMPTS[-1], config.context)
    ours, theirs = (
        footprint(config, Needs(0, tuple(names), positions)).total,
        reference_bytes(config, BF16_BYTES),
    )
    read = enough_to_read()
    parts = (
        f" (ours {format_bytes(ours)}, theirs {format_bytes(theirs)}, the checkpoint in the page cache "
        f"{format_bytes(nbytes)}, "
        f"memory to read {format_bytes(read)})"
    )
    require(ours + theirs + nbytes + read, "the comparison", ["measure the small one with MODEL=demo"], parts)
