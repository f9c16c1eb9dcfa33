"""A checkpoint with everything in it, checked before anything is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aerie.engine.config import ModelConfig, load_config
from aerie.engine.tokenizer import Tokenizer, load_tokenizer
from aerie.engine.weights import Weights


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint folder. Weights stay on disk until they are asked for."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    weights: Weights


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read config and tokenizer, and check every tensor's shape and type. Raises CheckpointError."""
    config = load_config(folder)
    return Checkpoint(folder, config, load_tokenizer(folder), Weights(folder, config))
