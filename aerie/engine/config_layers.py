"""What config.json says of single layers: their sliding windows, RoPE and short convolutions."""

from __future__ import annotations

from typing import Any

from aerie.engine.config_reader import ConfigReader, short
from aerie.engine.errors import ConfigError
from aerie.engine.layer_states import DeltaHeads
from aerie.engine.model_family import ModelFamily

MAX_LAYERS = 1000
"""Several times those of any published model; a config with more is damaged, and nothing is made by it."""
MAX_TAPS = 64
"""Of a short convolution, in rows."""
CONV_TAPS = 3
"""`conv_L_cache` where config.json does not say it."""
DELTA_TAPS = 4
"""`linear_conv_kernel_dim` where config.json does not say it."""
MAX_DELTA_HEADS = 1 << 14
MAX_DELTA_DIM = 1 << 12
"""Several times those of any published model."""

ROPE = "rope"
"""In `position_embedding_type`; anything else stands for no positions."""
FULL, SLIDING, CONV, LINEAR = "full_attention", "sliding_attention", "conv", "linear_attention"
"""Kinds of layers in `layer_types`, and in `rope_parameters` where it has RoPE by kind of layer."""

ROTARY_PART = "partial_rotary_factor"
OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""Of RoPE in models that read images too: how the pairs of a head are shared out among time, height and
width, which of text are one position. Of such models the text alone is read."""


def read_layers_with_conv(
    config: ConfigReader, family: ModelFamily, layers: int
) -> tuple[frozenset[int], int]:
    """The layers with a short convolution, or with linear attention, which has one too, and the rows that it
    reads: those that `layer_types` says, else all that `full_attn_idxs` does not name, or that are not at the
    family's interval."""
    if not family.conv_tensors:
        return frozenset(), 0
    kinds, attending = config.items("layer_types"), config.items("full_attn_idxs")
    other = state_kind(family)
    if not kinds and family.full_attention_interval:
        default = family.full_attention_interval
        interval = config.positive_int("full_attention_interval", default=default, most=MAX_LAYERS)
        attending = [layer for layer in range(layers) if (layer + 1) % interval == 0]
        kinds = [FULL if layer in attending else other for layer in range(layers)]
    if not kinds and attending:
        kinds = [FULL if layer in attending else other for layer in range(layers)]
    conv = frozenset(layer for layer, kind in enumerate(kinds[:layers]) if kind == other)
    if kinds and (len(kinds) < layers or len(conv) == layers):
        raise ConfigError(
            f"{config.path}: layer_types has {len(kinds)} entries for {layers} layers, {len(conv)} of them "
            f"{other!r}; each layer needs one, and one layer at least {FULL!r}: fetch it again"
        )
    entry = "linear_conv_kernel_dim" if family.has_delta else "conv_L_cache"
    return conv, config.positive_int(entry, default=taps_of(family), most=MAX_TAPS)


def taps_of(family: ModelFamily) -> int:
    """Rows that its convolutions read, where config.json does not say."""
    return DELTA_TAPS if family.has_delta else CONV_TAPS


def state_kind(family: ModelFamily) -> str:
    """What `layer_types` calls the family's layers without attention."""
    return LINEAR if family.has_delta else CONV


def read_delta_heads(config: ConfigReader, family: ModelFamily) -> DeltaHeads | None:
    """The heads of linear attention; None in a family without. Defaults: configuration_qwen3_5.py."""
    if not family.has_delta:
        return None
    sizes = (
        config.positive_int("linear_num_key_heads", default=16, most=MAX_DELTA_HEADS),
        config.positive_int("linear_num_value_heads", default=32, most=MAX_DELTA_HEADS),
        config.positive_int("linear_key_head_dim", default=128, most=MAX_DELTA_DIM),
        config.positive_int("linear_value_head_dim", default=128, most=MAX_DELTA_DIM),
    )
    return DeltaHeads(*sizes)


def read_window(config: ConfigReader, family: ModelFamily) -> int | None:
    """How far back the layers with a window see; None where no layer has one."""
    window = config.positive_int_or_none("sliding_window", if_absent=family.sliding_window)
    if not family.has_window:
        if SLIDING in config.items("layer_types"):
            raise ConfigError(
                f"{config.path}: layer_types has {SLIDING!r}, and a {family.architecture} has no windows; "
                "fetch it again"
            )
        return None
    if family.window_is_optional and not config.flag("use_sliding_window", default=False):
        window = None
    kinds = config.items("layer_types")
    if window is None and SLIDING in kinds:
        raise ConfigError(
            f"{config.path}: layer_types has {SLIDING!r} and sliding_window does not say how far it reaches; "
            "fetch it again"
        )
    return window


def read_layers_with_window(
    config: ConfigReader, family: ModelFamily, layers: int, without_rope: frozenset[int]
) -> frozenset[int]:
    """The layers that a window belongs to, by transformers' rules: those of `layer_types`, else all, or where
    the window is optional those from `max_window_layers` on or, as in SmolLM3, those without RoPE."""
    kinds = config.items("layer_types")
    if kinds and len(kinds) < layers:
        raise ConfigError(
            f"{config.path}: layer_types names {len(kinds)} layers of {layers}; which of the others have a "
            "window is not known; fetch it again"
        )
    if kinds:
        return frozenset(layer for layer in range(layers) if kinds[layer] == SLIDING)
    if family.full_attention_interval:
        interval = config.positive_int("sliding_window_pattern", default=family.full_attention_interval)
        return frozenset(layer for layer in range(layers) if (layer + 1) % interval)
    if not family.window_is_optional:
        return frozenset(range(layers))
    if family.no_rope_interval:
        return without_rope
    first = config.positive_int("max_window_layers", default=family.window_layers, least=0)
    return frozenset(range(first, layers))


def read_layers_without_rope(config: ConfigReader, family: ModelFamily, layers: int) -> frozenset[int]:
    """The layers that the entry `no_rope_layers` has 0 for, else those of the interval. Other families than
    those with an interval are refused before, where an entry asks for such a layer."""
    turned = config.items("no_rope_layers")
    if turned:
        if len(turned) < layers or any(isinstance(each, bool) or each not in (0, 1) for each in turned):
            raise ConfigError(
                f"{config.path}: no_rope_layers is {short(turned)}; it must be a list of {layers} numbers or "
                "more, 1 for a layer with RoPE and 0 for one without: which layers turn their heads is not "
                "known; fetch it again"
            )
        return frozenset(layer for layer in range(layers) if not turned[layer])
    if family.is_hybrid and config.get("position_embedding_type") != ROPE:
        return frozenset(range(layers))
    if not family.no_rope_interval:
        return frozenset()
    interval = config.positive_int("no_rope_layer_interval", default=family.no_rope_interval, most=MAX_LAYERS)
    return family.default_layers_without_rope(layers, interval)


def read_ropes(config: ConfigReader, family: ModelFamily) -> tuple[ConfigReader, ConfigReader | None]:
    """RoPE entries of the layers, and of those with sliding attention where these have their own."""
    parameters = config.child("rope_parameters")
    if config.get("rope_parameters") is None and config.get("rope_scaling") is None:
        parameters = ConfigReader(config.path, family.default_rope)
    kinds = [kind for kind in (FULL, SLIDING) if isinstance(parameters.get(kind), dict)]
    if not kinds:
        return _rope(config, parameters, family), None
    if sorted(parameters.entries) != [FULL, SLIDING]:
        raise ConfigError(
            f"{config.path}: rope_parameters has {short(sorted(parameters.entries))}; RoPE by kind of layer "
            f"needs {FULL!r} and {SLIDING!r}, and nothing beside them: fetch it again"
        )
    full, sliding = (_rope(config, parameters.child(kind), family) for kind in (FULL, SLIDING))
    return full, sliding


def _rope(config: ConfigReader, parameters: ConfigReader, family: ModelFamily) -> ConfigReader:
    """RoPE entries in one object, from either spelling. ConfigError for an entry that is given two values.

    transformers 5 writes `rope_parameters` with the base inside; earlier versions write `rope_theta`
    beside `rope_scaling`, whose kind was once called `type`.
    """
    outside = {name: config.get(name) for name in ("rope_theta", "original_max_position_embeddings")}
    merged: dict[str, Any] = {}
    for entries in (outside, config.child("rope_scaling").entries, parameters.entries):
        for name, value in entries.items():
            if value is not None and merged.setdefault(name, value) != value:
                raise ConfigError(
                    f"{config.path}: {name} is {short(merged[name])} in one place and {short(value)} in "
                    "another; which of them the model was trained with is not known: fetch it again"
                )
    merged.setdefault("rope_type", merged.get("type", "default"))
    for name in OF_IMAGES if family.reads_images else ():
        merged.pop(name, None)
    return ConfigReader(config.path, merged)


def read_local_rope_theta(
    config: ConfigReader, local: ConfigReader | None, family: ModelFamily
) -> float | None:
    """The base of RoPE in layers of sliding attention, where they have their own."""
    if family.local_rope_theta is None:
        if local is not None or config.get("rope_local_base_freq") is not None:
            raise ConfigError(
                f"{config.path}: layers of sliding attention have RoPE of their own, and those of a "
                f"{family.architecture} have one for all layers; fetch it again"
            )
        return None
    rope = local or ConfigReader(config.path, {"rope_theta": config.get("rope_local_base_freq")})
    if rope.get("rope_type") not in (None, "default"):
        raise ConfigError(
            f"{config.path}: RoPE of layers of sliding attention has the rule "
            f"{short(rope.get('rope_type'))}; only plain RoPE is supported there"
        )
    return rope.number("rope_theta", default=family.local_rope_theta)


def read_rotary_part(config: ConfigReader, rope: ConfigReader, head_dim: int, default: float) -> float:
    """How much of a head RoPE turns; default: where neither says."""
    given = rope if ROTARY_PART in rope.entries else config
    part = given.number(ROTARY_PART, default=default)
    if part > 1 or int(head_dim * part) % 2 or int(head_dim * part) < 2:
        raise ConfigError(
            f"{config.path}: {ROTARY_PART} is {part:g} of a head of {head_dim}; RoPE turns pairs, so an even "
            "number of its elements, at most all: fetch it again"
        )
    return part
