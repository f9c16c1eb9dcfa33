"""The facts of config.json: read by type, and looked at for whatever would be computed wrongly.

One architecture is computed, that of Llama. Several names stand for it, and other architectures go by one of
them: so it is the facts that are looked at, and each that makes another model is refused by its name. What
only adds tensors is found among these (`weights.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.engine.errors import ConfigError

MODELS_THAT_RUN = "README.md, Models that run"
SOME_THAT_RUN = "Llama-3.2-1B and 3B, Llama-3.1-8B, Llama-2-7B, Mistral-7B, TinyLlama and SmolLM2"
"""Whose shapes the kernels accept, as tests/multi_launch_builder/test_mlb_shapes.py has them."""


class Entries:
    """A JSON object whose entries are read by type, with errors that name file, entry and value."""

    def __init__(self, path: Path, entries: Mapping[str, Any]) -> None:
        self.path = path
        self.entries = entries

    def get(self, name: str, default: Any = None) -> Any:
        """The entry, or `default` where it is absent or null."""
        value = self.entries.get(name)
        return default if value is None else value

    def count(self, name: str, default: int | None = None, most: int | None = None) -> int:
        """A whole number from 1 to `most`. Raises ConfigError, as all that read by type."""
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{self.path}: {name} is {value!r}; it must be a whole number, 1 or more")
        if most is not None and value > most:
            raise ConfigError(f"{self.path}: {name} is {value}; no more than {most} are supported")
        return value

    def count_or_none(self, name: str, if_absent: int | None) -> int | None:
        """A whole number from 1 on; None for null, which an entry that is absent need not mean."""
        value = self.entries.get(name, if_absent)
        return None if value is None else self.count(name, if_absent)

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

    def child(self, name: str) -> Entries:
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise ConfigError(f"{self.path}: {name} is {value!r}; it must be an object")
        return Entries(self.path, value)

    def items(self, name: str) -> list[Any]:
        value = self.get(name, [])
        if not isinstance(value, list):
            raise ConfigError(f"{self.path}: {name} is {value!r}; it must be a list")
        return value

    def _required(self, name: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is None:
            raise ConfigError(f"{self.path}: there is no {name}; the checkpoint is incomplete")
        return value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ConfigError where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}; give --model a Hugging Face checkpoint folder") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; fetch it again") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds {type(content).__name__}, not an object; fetch it again")
    return content


@dataclass(frozen=True)
class Family:
    """A name of Llama's architecture, and what transformers takes for entries that its config.json lacks.

    kv_heads: None for as many as there are query heads. positions and sliding_window in tokens.
    """

    architecture: str
    kv_heads: int | None
    positions: int
    sliding_window: int | None


FAMILIES = {
    "llama": Family("LlamaForCausalLM", None, 2048, None),
    "mistral": Family("MistralForCausalLM", 8, 131072, 4096),
}
"""By model_type, with the defaults of transformers' configuration_llama.py and configuration_mistral.py."""


NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("attention_bias", "mlp_bias", "qkv_bias", "use_qkv_bias", "use_bias", "bias"), (False,)),
    **dict.fromkeys(("hidden_act", "hidden_activation", "activation_function"), ("silu", "swish")),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct", "rope_pct"), (1.0,)),
    **dict.fromkeys(("rope_interleaved", "rope_interleave", "rotary_interleaved"), (False,)),
    **dict.fromkeys(("qk_norm", "use_qk_norm", "qk_layernorm", "use_qk_layernorm"), (False,)),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"), (0.0,)),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "lm_head_multiplier"), (1.0,)),
    **dict.fromkeys(("logits_scaling", "logit_scale", "scale_emb"), (1.0,)),
    **dict.fromkeys(("scale_depth", "dim_model_base"), ()),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), (0,)),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "attention_chunk_size", "no_rope_layer_interval"), (0,)),
    **dict.fromkeys(("alibi", "use_alibi", "parallel_attn", "use_parallel_residual"), (False,)),
    **dict.fromkeys(("attn_output_gate", "use_bidirectional_attention", "add_cross_attention"), (False,)),
    **dict.fromkeys(("text_config", "vision_config", "audio_config"), ()),
    "is_encoder_decoder": (False,),
}
"""Facts that make another model than Llama of the same tensors, with the values at which they make none.

Absent and null are always such values. The names are those of transformers' configurations and of models that
come with code of their own.
"""

QUANTISED = ("quantization_config", "quantization", "compression_config")
"""Where transformers, MLX and compressed-tensors say how the weights were quantised."""

WINDOW_KINDS = ("full_attention", "sliding_attention")


def check_supported(config: Entries) -> Family:
    """The family of a config.json. Raises ConfigError, by name, for whatever would be computed wrongly."""
    family = _family(config)
    _check_facts(config, NEUTRAL)
    _check_layers(config)
    _check_unquantised(config)
    return family


def check_scale(config: Entries, head_dim: int) -> None:
    """As check_supported, for what must be as the size of a head has it: how much of it RoPE turns, and what
    scores are multiplied with."""
    whole = dict.fromkeys(("rotary_dim", "query_pre_attn_scalar"), (head_dim,))
    _check_facts(config, {**whole, "attention_multiplier": (head_dim**-0.5,)})


def _check_facts(config: Entries, neutral: Mapping[str, tuple[Any, ...]]) -> None:
    for name, values in neutral.items():
        given = config.get(name)
        if given is not None and not any(_same(given, value) for value in values):
            raise ConfigError(f"{config.path}: {name} is {_short(given)}; {_wanted(name, values)}")


def _family(config: Entries) -> Family:
    names = config.items("architectures")
    of_name = next((kind for kind, family in FAMILIES.items() if family.architecture in names), "llama")
    family = FAMILIES.get(str(config.get("model_type", of_name)))
    if family is None or (names and family.architecture not in names):
        known = " and ".join(each.architecture for each in FAMILIES.values())
        raise ConfigError(
            f"{config.path}: the architecture is {', '.join(map(str, names)) or 'not named'} "
            f"(model_type {config.get('model_type')!r}); only {known} are supported ({MODELS_THAT_RUN})"
        )
    return family


def _same(given: Any, value: Any) -> bool:
    """Whether an entry is this value; true is no number here, and 1 is 1.0."""
    if isinstance(value, float) and isinstance(given, int | float) and not isinstance(given, bool):
        return abs(given - value) <= 1e-6 * abs(value)
    return isinstance(given, bool) == isinstance(value, bool) and bool(given == value)


def _short(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:60]} ..."


def _wanted(name: str, values: tuple[Any, ...]) -> str:
    if not values:
        return f"a model with {name} is no Llama, and is not supported ({MODELS_THAT_RUN})"
    return f"only {name} {values[0]!r} is supported"


def _check_layers(config: Entries) -> None:
    """Every layer turns its heads, and attends to all positions of the context."""
    kinds = config.items("layer_types")
    other = [kind for kind in kinds if kind not in WINDOW_KINDS]
    if other:
        raise ConfigError(
            f"{config.path}: layer_types has {other[0]!r}; only {' and '.join(map(repr, WINDOW_KINDS))} are "
            "supported"
        )
    if "sliding_attention" in kinds and config.get("sliding_window") is None:
        raise ConfigError(
            f"{config.path}: layer_types has 'sliding_attention' and sliding_window does not say how far it "
            "reaches; fetch it again"
        )
    turned = config.items("no_rope_layers")  # 1 for a layer with RoPE, as SmolLM3 and Llama 4 have it
    if not all(turned):
        raise ConfigError(
            f"{config.path}: no_rope_layers is {turned!r}; only models with RoPE in every layer are supported"
        )


def _check_unquantised(config: Entries) -> None:
    name = next((name for name in QUANTISED if config.get(name) is not None), None)
    if name is None:
        return
    given = config.get(name)
    method = given.get("quant_method") if isinstance(given, dict) else None
    how = f"quantised with {method}" if method else "quantised"
    raise ConfigError(
        f"{config.path}: the checkpoint is {how} ({name}); only unquantised checkpoints are "
        "supported, in BF16, F16 or F32"
    )
