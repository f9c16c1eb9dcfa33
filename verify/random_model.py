"""A random model besides the one that is verified: of its shape, with few layers and a small vocabulary.

Trained weights hide an error of attention where one position has all the weight: attention there is the same
with scores that are 5 % too large. Random weights, whose scores have a normal distribution, show it. The
programs of the layers are the ones that the model runs, because the shape is the same; the weights come from
one seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from aerie.engine.checkpoint import Checkpoint, open_checkpoint
from aerie.engine.config import ModelConfig
from aerie.engine.families import FAMILIES
from aerie.engine.memory_estimate import session_needs
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.session import Session
from aerie.llama32_1b.synthetic.shape import in_family, with_vocabulary
from aerie.llama32_1b.synthetic.tokenizer import MIN_VOCABULARY
from aerie.llama32_1b.synthetic.writer import write_checkpoint
from aerie.multi_launch_builder.variants import CONTEXTS
from aerie.verify.reference import Reference, check_memory_with_reference

LAYERS = 2
"""Two layers show what one layer passes to the next."""

MAX_VOCABULARY = 2048
"""Tokens. A vocabulary that is not larger than the model's own needs no program of its own."""

SEED = 0


def random_model_config(config: ModelConfig) -> ModelConfig:
    """The config of a random model for a model with this config."""
    vocabulary = min(max(config.vocab_size, MIN_VOCABULARY), MAX_VOCABULARY)
    return with_vocabulary(config, vocabulary).with_layers(min(config.num_hidden_layers, LAYERS))


def with_longer_context(config: ModelConfig) -> ModelConfig:
    """The config with more positions than the smallest context has, so that a KV cache can grow."""
    longer = replace(config, max_position_embeddings=max(config.max_position_embeddings, 2 * CONTEXTS[0]))
    most = config.max_positions
    return longer if most is None else longer.with_max_positions(max(most, 2 * CONTEXTS[0]))


def in_another_family(config: ModelConfig) -> ModelConfig:
    """The config with the same sizes in a model family whose layers have other tensors: the last by name of
    the autoregressive ones with attention in every layer, which all programs serve.
    """
    generation = [each for each in FAMILIES.values() if each.diffusion is None and not each.conv_tensors]
    candidates = (each for each in reversed(generation) if each.tensors != config.family.tensors)
    return replace(in_family(config, next(candidates)), sliding_window=None, layers_with_window=frozenset())


@contextmanager
def random_checkpoint(config: ModelConfig, report: Reporter, weights: str = "auto") -> Iterator[Checkpoint]:
    """A checkpoint with this config and random weights, for the time of the context.

    weights: what they are on the device, one of quantised.KINDS.
    """
    with TemporaryDirectory(prefix="aerie-random-") as work:
        folder = Path(work) / "random"
        write_checkpoint(config, folder, SEED, report)
        yield open_checkpoint(folder, weights).limited(config.max_positions)


@contextmanager
def open_random_model(
    config: ModelConfig, options: RuntimeOptions, report: Reporter, weights: str = "auto"
) -> Iterator[tuple[Session, Reference]]:
    """A session and a reference of a random model, compiled with `options`, for the time of the context.

    Raises what opening and compiling a model raises.
    """
    with random_checkpoint(random_model_config(config), report, weights) as checkpoint:
        needs = session_needs(checkpoint.config, options)
        check_memory_with_reference(checkpoint.config, needs, options.backend.access.copies_per_buffer)
        session = prepare_runtime(checkpoint, options, report)
        try:
            yield (
                session,
                Reference.open(checkpoint.folder, ours=checkpoint.weights, is_long=checkpoint.config.is_long),
            )
        finally:
            session.cache.close()
