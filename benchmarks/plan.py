"""What a comparison measures of a checkpoint, and whether there is room for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import ModelConfig
from aerie.engine.errors import UserError
from aerie.engine.footprint import ANSWER_TOKENS, Needs, footprint, require
from aerie.engine.weights import EMBED, expected_shapes
from aerie.llama32_1b.synthetic.shape import BF16_BYTES, LLAMA_3_2_1B
from aerie.multi_launch_builder.shapes import SEQ_LEN_STEP
from aerie.runtime.memory import size
from aerie.verify.reference import reference_bytes
from benchmarks.sides import WARM_UP

LONGEST = 2048
SHORT_CONTEXT = 128

BRIEF = SEQ_LEN_STEP
"""Tokens of the short prompt: the least that programs are compiled for."""


@dataclass(frozen=True)
class Plan:
    """What to measure: rounds of prompts of BRIEF and of `prefill` tokens, and `tokens` decoded at each of
    `contexts`."""

    folder: Path
    config: ModelConfig
    files: Sequence[Path]
    rounds: int
    tokens: int
    prefill: int
    contexts: tuple[int, ...]

    @property
    def checkpoint_bytes(self) -> int:
        """Of the files with weights."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def room(self) -> int:
        """Positions after the prompt that will be decoded, the warm-up included."""
        return self.tokens + WARM_UP

    @property
    def prefills(self) -> tuple[int, int]:
        """Lengths of prompts; programs are compiled for each."""
        return BRIEF, self.prefill

    @property
    def is_judged(self) -> bool:
        """Whether targets apply: they are for the size of Llama-3.2-1B."""
        full_size = self.config.shape == LLAMA_3_2_1B.shape
        return full_size and self.config.num_hidden_layers == LLAMA_3_2_1B.num_hidden_layers


def make_plan(folder: Path, rounds: int, tokens: int) -> Plan:
    """The plan for a checkpoint: 2048 tokens, or as many as the model has positions for.

    Raises CheckpointError for one that is not whole, and UserError for one with too few positions.
    """
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    positions = config.context - tokens - WARM_UP
    if positions < SHORT_CONTEXT:
        needed = SHORT_CONTEXT + tokens + WARM_UP
        raise UserError(
            f"{folder} has {config.context} positions; measuring {tokens} tokens after a "
            f"context of {SHORT_CONTEXT} takes {needed}: measure fewer --tokens, or another model"
        )
    longest = min(LONGEST, positions) // SEQ_LEN_STEP * SEQ_LEN_STEP
    contexts = tuple(sorted({SHORT_CONTEXT, longest}))
    return Plan(folder, config, checkpoint.weights.files, rounds, tokens, longest, contexts)


def cache_bytes_per_position(config: ModelConfig) -> int:
    """Bytes of the keys and values of a position, in all layers."""
    return 2 * BF16_BYTES * config.num_hidden_layers * config.num_key_value_heads * config.head_dim


def weight_bytes_per_token(config: ModelConfig) -> int:
    """Bytes of the weights that a decoded token needs: each once, and one row of an untied embedding."""
    shapes = dict(expected_shapes(config))
    if not config.tie_word_embeddings:
        del shapes[EMBED]
    return BF16_BYTES * sum(math.prod(shape) for shape in shapes.values())


def check_memory(config: ModelConfig, seq_len: int, nbytes: int) -> None:
    """TooLittleMemoryError without room for both sides, and the checkpoint's `nbytes` in the page cache."""
    ours, theirs = (
        footprint(config, Needs(seq_len, (), seq_len + ANSWER_TOKENS)).total,
        reference_bytes(config, BF16_BYTES),
    )
    parts = f" (ours {size(ours)}, theirs {size(theirs)}, the checkpoint in the page cache {size(nbytes)})"
    require(ours + theirs + nbytes, "the comparison", ["measure the small one with MODEL=demo"], parts)
