"""A checkpoint with everything in it, checked before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig, load_config
from aerie.engine.diffusion import MAX_BLOCK_SIZE
from aerie.engine.quantised import AUTO_KEEPS_QUANTISED
from aerie.engine.reranking import check_score_tokens
from aerie.engine.tokenizer import Tokenizer, load_tokenizer
from aerie.engine.weights import Weights


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; folder: that, or its GGUF file. Weights stay on disk until they are asked for."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    weights: Weights

    def limited(self, positions: int | None) -> Checkpoint:
        """The same for a session of at most so many positions; None means as many as the model has."""
        return replace(self, config=self.config.with_max_positions(positions))


def open_checkpoint(folder: Path, weights: str = "auto") -> Checkpoint:
    """Read config and tokenizer of a folder or a GGUF file, and check every tensor's shape and type. weights:
    what they are on the device, one of quantised.KINDS. Raises CheckpointError."""
    config = load_config(folder)
    tensors, tokenizer = Weights(folder, config, weights), load_tokenizer(folder)
    if config.roles.scoring:
        check_score_tokens(config.roles.scoring, tokenizer)
    return Checkpoint(folder, replace(config, weight_kinds=tensors.kinds), tokenizer, tensors)


def load_config_with_kinds(folder: Path, weights: str) -> ModelConfig:
    """The config alone, with the kinds of its weights, one of quantised.KINDS. Weights need not be there,
    unless they say of which kinds programs are. Raises CheckpointError."""
    config = load_config(folder)
    if weights == "bf16" or (weights == "auto" and not AUTO_KEEPS_QUANTISED):
        return config
    return replace(config, weight_kinds=Weights(folder, config, weights).kinds)


def with_block_size(checkpoint: Checkpoint, size: int | None, note: Callable[[str], None]) -> Checkpoint:
    """The same with blocks of so many tokens; where it was trained with others, that is noted. None changes
    nothing.

    UserError for a model without blocks, and for blocks that cannot be run.
    """
    if size is None:
        return checkpoint
    blocks = checkpoint.config.diffusion
    if blocks is None:
        raise UserError(
            f"block_size (BLOCK_SIZE) is {size}, and this model says one token after the other; leave it out"
        )
    if size < 1 or MAX_BLOCK_SIZE % size or size % (blocks.sub_block or 1):
        parts = f", and a multiple of this model's parts of {blocks.sub_block}" if blocks.sub_block else ""
        raise UserError(
            f"block_size (BLOCK_SIZE) is {size}; a block must be a divisor of {MAX_BLOCK_SIZE} tokens, which "
            f"is what a page of keys and values has{parts}: this model was trained with {blocks.block_size}"
        )
    if size != blocks.block_size:
        note(
            f"note: blocks have {size} tokens, and this model was trained with {blocks.block_size}: expect "
            "worse answers"
        )
    config = replace(checkpoint.config, diffusion=replace(blocks, block_size=size))
    return replace(checkpoint, config=config)
