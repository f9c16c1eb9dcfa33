"""The facts of a model, read from the checkpoint's own config.json and generation_config.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.llama32_1b.errors import ConfigError
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
class LlamaConfig:
    """Hyperparameters under their Hugging Face names.

    `eos_token_ids` are all the ids that end an answer, in the checkpoint's order; it may be empty.
    `rope_scaling` is None for plain RoPE.
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
        positions = self.max_position_embeddings
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


def load_config(folder: Path) -> LlamaConfig:
    """Read `folder`/config.json, and generation_config.json where there is one.

    Raises ConfigError, naming the file and the entry, for anything missing, malformed or unsupported.
    """
    path = folder / "config.json"
    config = _Entries(path, _read_json(path))
    _check_supported(config)
    heads = config.count("num_attention_heads")
    hidden = config.count("hidden_size")
    kv_heads = config.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ConfigError(
            f"{path}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}, "
            f"so query heads cannot share them evenly; this is not a Llama"
        )
    return LlamaConfig(
        vocab_size=config.count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.count("intermediate_size"),
        num_hidden_layers=config.count("num_hidden_layers", most=MOST_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=_head_dim(config, hidden, heads),
        max_position_embeddings=config.count("max_position_embeddings", default=2048),
        rms_norm_eps=config.number("rms_norm_eps", default=1e-6),
        rope_theta=_rope(config).number("rope_theta", default=10000.0),
        rope_scaling=_llama3_scaling(config),
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
        eos_token_ids=_eos_token_ids(folder, config),
    )


class _Entries:
    """A JSON object whose entries are read by type, with errors that name file, entry and value."""

    def __init__(self, path: Path, entries: Mapping[str, Any]) -> None:
        self.path = path
        self.entries = entries

    def get(self, name: str, default: Any = None) -> Any:
        """The entry, or `default` where it is absent or null."""
        value = self.entries.get(name)
        return default if value is None else value

    def count(self, name: str, default: int | None = None, most: int | None = None) -> int:
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{self.path}: {name} is {value!r}; it must be a whole number, 1 or more")
        if most is not None and value > most:
            raise ConfigError(f"{self.path}: {name} is {value}; no more than {most} are supported")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._required(name, default)
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not 0 < value <= sys.float_info.max:
            raise ConfigError(f"{self.path}: {name} is {value!r}; it must be a finite number above 0")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.path}: {name} is {value!r}; it must be true or false")
        return value

    def child(self, name: str) -> _Entries:
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise ConfigError(f"{self.path}: {name} is {value!r}; it must be an object")
        return _Entries(self.path, value)

    def _required(self, name: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is None:
            raise ConfigError(f"{self.path}: there is no {name}; the checkpoint is incomplete")
        return value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}; give --model a Hugging Face checkpoint folder") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; fetch it again") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds {type(content).__name__}, not an object; fetch it again")
    return content


def _check_supported(config: _Entries) -> None:
    """Refuse, by name, whatever would be computed wrongly rather than not at all."""
    architectures = config.get("architectures") or ["LlamaForCausalLM"]
    if config.get("model_type", "llama") != "llama" or "LlamaForCausalLM" not in architectures:
        raise ConfigError(
            f"{config.path}: the architecture is {', '.join(map(str, architectures))} "
            f"(model_type {config.get('model_type')!r}); only LlamaForCausalLM is supported"
        )
    supported = {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "partial_rotary_factor": 1.0,
    }
    for name, value in supported.items():
        given = config.get(name, value)
        if given != value:
            raise ConfigError(f"{config.path}: {name} is {given!r}; only {name} {value!r} is supported")
    _check_unquantised(config)


def _check_unquantised(config: _Entries) -> None:
    given = config.get("quantization_config")
    if given is None:
        return
    method = given.get("quant_method") if isinstance(given, dict) else None
    how = f"quantised with {method}" if method else "quantised"
    raise ConfigError(
        f"{config.path}: the checkpoint is {how} (quantization_config); only unquantised checkpoints are "
        "supported, in BF16, F16 or F32"
    )


def _head_dim(config: _Entries, hidden: int, heads: int) -> int:
    head_dim = config.count("head_dim", default=max(1, hidden // heads))
    if head_dim % 2:
        raise ConfigError(f"{config.path}: head_dim is {head_dim}; RoPE turns pairs, so it must be even")
    return head_dim


def _rope(config: _Entries) -> _Entries:
    """RoPE entries in one object, from either spelling.

    transformers 5 writes `rope_parameters` with the base inside; earlier versions write `rope_theta`
    beside `rope_scaling`, whose kind was once called `type`.
    """
    merged = {"rope_theta": config.get("rope_theta")}
    merged.update(config.child("rope_scaling").entries)
    merged.update(config.child("rope_parameters").entries)
    merged.setdefault("rope_type", merged.get("type", "default"))
    return _Entries(config.path, merged)


def _llama3_scaling(config: _Entries) -> Llama3Scaling | None:
    rope = _rope(config)
    kind = rope.get("rope_type")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(f"{config.path}: partial_rotary_factor is not 1.0; only whole heads are turned")
    if kind == "default":
        return None
    if kind != "llama3":
        raise ConfigError(f"{config.path}: RoPE rule {kind!r} is not supported; 'default' and 'llama3' are")
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


def _eos_token_ids(folder: Path, config: _Entries) -> tuple[int, ...]:
    """Every id that ends an answer: generation_config.json's, else config.json's."""
    path = folder / "generation_config.json"
    generation = _Entries(path, _read_json(path)) if path.is_file() else config
    value = generation.get("eos_token_id", config.get("eos_token_id", []))
    ids = value if isinstance(value, list) else [value]
    vocab_size = config.count("vocab_size")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ConfigError(
                f"{generation.path}: eos_token_id {token!r} is not a token of the vocabulary of {vocab_size}"
            )
    return tuple(ids)
