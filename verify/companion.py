"""A random model beside the one that is verified: of its shape, with few layers and a small vocabulary.

A trained model is deaf where it is sure: attention that looks at one position alone does so with scores 5 %
too large as well. Random weights, whose scores are as of a normal distribution, hear that. The programs of
the layers are the very ones that the model runs, because the shape is its own; its weights are drawn anew
each time, from the same seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from aerie.engine.checkpoint import Checkpoint, open_checkpoint
from aerie.engine.compiling import RuntimeOptions
from aerie.engine.config import ModelConfig
from aerie.engine.families import FAMILIES
from aerie.engine.footprint import needs_of
from aerie.engine.progress import Reporter
from aerie.engine.session import Session, prepare_runtime
from aerie.llama32_1b.synthetic.shape import in_family, with_vocabulary
from aerie.llama32_1b.synthetic.tokenizer import SMALLEST_VOCABULARY
from aerie.llama32_1b.synthetic.writer import write_checkpoint
from aerie.multi_launch_builder.variants import CONTEXTS
from aerie.verify.reference import Reference, check_memory_beside

LAYERS = 2
"""What one layer leaves to the next is there once."""

MOST_VOCABULARY = 2048
"""Tokens. A vocabulary as small as the model's own needs no program of its own."""

SEED = 0


def companion_config(config: ModelConfig) -> ModelConfig:
    """The facts of a companion of a model with the facts `config`."""
    vocabulary = min(max(config.vocab_size, SMALLEST_VOCABULARY), MOST_VOCABULARY)
    return replace(
        with_vocabulary(config, vocabulary), num_hidden_layers=min(config.num_hidden_layers, LAYERS)
    )


def longer(config: ModelConfig) -> ModelConfig:
    """With more positions than the smallest context has, so that a KV cache can grow."""
    return replace(config, max_position_embeddings=max(config.max_position_embeddings, 2 * CONTEXTS[0]))


def of_another_family(config: ModelConfig) -> ModelConfig:
    """The same sizes in a family whose layers have other tensors: the last in the order of names, of those
    that say one token after another."""
    said = [each for each in FAMILIES.values() if each.diffusion is None]
    others = (each for each in reversed(said) if each.tensors != config.family.tensors)
    return replace(in_family(config, next(others)), sliding_window=None)


@contextmanager
def random_checkpoint(config: ModelConfig, report: Reporter) -> Iterator[Checkpoint]:
    """A checkpoint with these facts and random weights, for as long as this is entered."""
    with TemporaryDirectory(prefix="aerie-random-") as work:
        folder = Path(work) / "random"
        write_checkpoint(config, folder, SEED, report)
        yield open_checkpoint(folder)


@contextmanager
def companion(
    config: ModelConfig, options: RuntimeOptions, report: Reporter
) -> Iterator[tuple[Session, Reference]]:
    """A session and a reference of a companion, compiled as `options` say, for as long as this is entered.

    Raises what opening and compiling a model raises.
    """
    with random_checkpoint(companion_config(config), report) as checkpoint:
        needs = needs_of(checkpoint.config, options)
        check_memory_beside(checkpoint.config, needs, options.backend.access.copies)
        session = prepare_runtime(checkpoint, options, report)
        try:
            yield session, Reference.open(checkpoint.folder)
        finally:
            session.cache.close()
