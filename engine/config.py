"""The facts of a model, read from the checkpoint's own config.json and generation_config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.engine.errors import ConfigError
from aerie.engine.facts import FAMILIES, Entries, check_scale, check_supported, read_json
from aerie.multi_launch_builder import ModelShape

SMALL_CONTEXT = 1024  # a model with no more positions than this is a small one
SMALL_SEQ_LEN = 128  # default prefill length of a small model, in tokens
DEFAULT_SEQ_LEN = 2048  # default prefill length of any other, in tokens
MOST_LAYERS = 1000  # several times those of any Llama; a config with more is damaged


@dataclass(frozen=True)
class Llama3Scaling:
    """The `llama3` RoPE rule: long wavelengths are stretched by `factor`, short ones kept, the rest blended.

    Lengths are in tokens. Llama-3.2-1B: factor 32, low 1, high 4, original 8192.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """Hyperparameters under their Hugging Face names.

    `eos_token_ids` are all the ids that end an answer, in the checkpoint's order; it may be empty.
    `rope_scaling` is None for plain RoPE. `sliding_window` is how many positions a token attends to, itself
    among them; None for all. `architecture` is the class of transformers that computes the same.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    sliding_window: int | None = None
    architecture: str = FAMILIES["llama"].architecture

    @property
    def context(self) -> int:
        """The most positions that can be run: up to the length of its sliding window, attention is causal
        attention and no other."""
        return min(self.max_position_embeddings, self.sliding_window or self.max_position_embeddings)

    @property
    def context_entry(self) -> str:
        """The entry of config.json that says how many positions these are."""
        return "sliding_window" if self.context < self.max_position_embeddings else "max_position_embeddings"

    @property
    def shape(self) -> ModelShape:
        """What the program builders need to know."""
        return ModelShape(
            emb_dim=self.hidden_size,
            n_heads=self.num_attention_heads,
            n_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            hidden_dim=self.intermediate_size,
            vocab_size=self.vocab_size,
            rms_norm_eps=self.rms_norm_eps,
        )

    def default_seq_len(self, tokens: int = 0) -> int:
        """Prefill length to compile for when the user names none, which holds a prompt of `tokens` tokens, as
        far as the model has positions: a small model has two lengths, in any other they double."""
        positions = self.context
        if positions <= SMALL_CONTEXT:
            return min(SMALL_SEQ_LEN if tokens <= SMALL_SEQ_LEN else SMALL_CONTEXT, positions)
        length = DEFAULT_SEQ_LEN
        while length < min(tokens, positions):
            length *= 2
        return min(length, positions)

    @property
    def pad_token_id(self) -> int:
        """What fills a prompt up to the compiled length. Any id would do: padding is never looked at."""
        return self.eos_token_ids[0] if self.eos_token_ids else 0


def load_config(folder: Path) -> ModelConfig:
    """Read `folder`/config.json, and generation_config.json where there is one.

    Raises ConfigError, naming the file and the entry, for anything missing, malformed or unsupported.
    """
    path = folder / "config.json"
    config = Entries(path, read_json(path))
    family = check_supported(config)
    heads = config.count("num_attention_heads")
    hidden = config.count("hidden_size")
    head_dim = _head_dim(config, hidden, heads)
    check_scale(config, head_dim)
    kv_heads = config.count_or_none("num_key_value_heads", if_absent=family.kv_heads) or heads
    if heads % kv_heads:
        raise ConfigError(
            f"{path}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}, "
            f"so query heads cannot share them evenly; this is not a Llama"
        )
    return ModelConfig(
        vocab_size=config.count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size"),
        num_hidden_layers=config.count("num_hidden_layers", most=MOST_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=config.count("max_position_embeddings", default=family.positions),
        rms_norm_eps=config.number("rms_norm_eps", default=1e-6),
        rope_theta=_rope(config).number("rope_theta", default=10000.0),
        rope_scaling=_llama3_scaling(config),
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        eos_token_ids=_eos_token_ids(folder, config),
        sliding_window=config.count_or_none("sliding_window", if_absent=family.sliding_window),
        architecture=family.architecture,
    )


def _head_dim(config: Entries, hidden: int, heads: int) -> int:
    head_dim = config.count("head_dim", default=max(1, hidden // heads))
    if head_dim % 2:
        raise ConfigError(f"{config.path}: head_dim is {head_dim}; RoPE turns pairs, so it must be even")
    return head_dim


ROPE_ENTRIES = {"rope_theta", "rope_type", "type"}
LLAMA3_ENTRIES = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
ROPE_NEUTRAL = {"partial_rotary_factor": 1.0, "attention_factor": 1.0}
"""Entries of RoPE that change nothing at these values."""


def _rope(config: Entries) -> Entries:
    """RoPE entries in one object, from either spelling. ConfigError for an entry that is given two values.

    transformers 5 writes `rope_parameters` with the base inside; earlier versions write `rope_theta`
    beside `rope_scaling`, whose kind was once called `type`.
    """
    outside = {name: config.get(name) for name in ("rope_theta", "original_max_position_embeddings")}
    merged: dict[str, Any] = {}
    for entries in (outside, config.child("rope_scaling").entries, config.child("rope_parameters").entries):
        for name, value in entries.items():
            if value is not None and merged.setdefault(name, value) != value:
                raise ConfigError(
                    f"{config.path}: {name} is {merged[name]!r} in one place and {value!r} in another; which "
                    "of them the model was trained with is not known: fetch it again"
                )
    merged.setdefault("rope_type", merged.get("type", "default"))
    return Entries(config.path, merged)


def _llama3_scaling(config: Entries) -> Llama3Scaling | None:
    rope = _rope(config)
    _check_rope(rope)
    if rope.get("rope_type") == "default":
        return None
    scaling = Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position_embeddings=rope.count("original_max_position_embeddings"),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise ConfigError(
            f"{config.path}: high_freq_factor {scaling.high_freq_factor} must be above "
            f"low_freq_factor {scaling.low_freq_factor}"
        )
    return scaling


def _check_rope(rope: Entries) -> None:
    """Refuse a rule of RoPE, and an entry beside it, that would not be followed."""
    kind = rope.get("rope_type")
    known = {"default": {"original_max_position_embeddings"}, "llama3": LLAMA3_ENTRIES}.get(str(kind))
    if known is None:
        raise ConfigError(f"{rope.path}: RoPE rule {kind!r} is not supported; 'default' and 'llama3' are")
    for name, value in rope.entries.items():
        if name in ROPE_NEUTRAL and value == ROPE_NEUTRAL[name]:
            continue
        if name not in known | ROPE_ENTRIES:
            raise ConfigError(
                f"{rope.path}: RoPE has {name} {value!r}, which the rule {kind!r} knows nothing of; models "
                "whose positions are turned otherwise are not supported"
            )


def _eos_token_ids(folder: Path, config: Entries) -> tuple[int, ...]:
    """Every id that ends an answer: generation_config.json's, else config.json's."""
    path = folder / "generation_config.json"
    generation = Entries(path, read_json(path)) if path.is_file() else config
    value = generation.get("eos_token_id", config.get("eos_token_id", []))
    ids = value if isinstance(value, list) else [value]
    vocab_size = config.count("vocab_size")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ConfigError(
                f"{generation.path}: eos_token_id {token!r} is not a token of the vocabulary of {vocab_size}"
            )
    return tuple(ids)
