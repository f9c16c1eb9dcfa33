"""The model's configuration, read from the checkpoint's config.json and generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from aerie.engine.config_file import read_config, read_generation
from aerie.engine.config_layers import (
    MAX_LAYERS,
    ROTARY_PART,
    read_delta_heads,
    read_layers_with_conv,
    read_layers_with_window,
    read_layers_without_rope,
    read_local_rope_theta,
    read_ropes,
    read_rotary_part,
    read_window,
)
from aerie.engine.config_reader import ConfigReader, short
from aerie.engine.delta_states import delta_states
from aerie.engine.diffusion import read_diffusion
from aerie.engine.errors import ConfigError
from aerie.engine.families import FAMILIES
from aerie.engine.layer_masks import LayerMasks, layer_masks
from aerie.engine.layer_states import DeltaHeads, LayerStates
from aerie.engine.model_family import DiffusionConfig, ModelFamily, Multipliers
from aerie.engine.numerics import bf16
from aerie.engine.pooling import TextRoles
from aerie.engine.rope import LongRopeScaling, RopeScaling, YarnScaling, read_rule
from aerie.engine.text_roles import read_roles
from aerie.engine.unsupported_models import ACTIVATION_ENTRIES, check_sizes, check_supported
from aerie.kernel_builder.activations import GELU, SILU
from aerie.multi_launch_builder import ModelShape
from aerie.multi_launch_builder.weight_kinds import WeightKinds

SMALL_CONTEXT = 1024  # a model with no more positions than this is a small one
SMALL_SEQ_LEN = 128  # default prefill length of a small model, in tokens
DEFAULT_SEQ_LEN = 2048  # default prefill length of any other, in tokens

# Several times those of any published model; a config with more is damaged, and nothing is made by it.
MAX_WIDTH = 1 << 20
MAX_HEADS = 1 << 14
MAX_TOKENS = 1 << 24
MAX_POSITIONS = 1 << 30

LIMITS = {
    "max_position_embeddings": "",
    "sliding_window": "as many as its sliding window holds; blocks whose positions see each other have no "
    "windows",
    "original_max_position_embeddings": "the length up to which longrope has one set of frequencies; with a "
    "larger --max-model-len all texts are turned by the other set",
    "llama_4_scaling_beta": "RoPE's original length, beyond which queries grow with their position",
    "--max-model-len": "as many as the flag allows",
}
"""What may limit the context, mostly entries of config.json, and the reason."""


@dataclass(frozen=True)
class ModelConfig:
    """Hyperparameters under their Hugging Face names.

    eos_token_ids: all ids that end an answer, in the checkpoint's order; may be empty. rope_scaling: None for
    plain RoPE. layers_without_rope: by number, from 0 on. local_rope_theta: the base of plain RoPE in
    `layers_with_window`; None: as in all layers. activation: of the FFN's gate. multipliers: `attention` is
    None where it is 1 / sqrt(head_dim) anyway. sliding_window: number of positions that a token attends to in
    `layers_with_window`, its own included; None means all, in all layers. diffusion: None for an
    autoregressive model. draft_mask_id: the token in place of each further draft, of a model that drafts
    several in one pass. weight_kinds: of its matrices on the device. roles: what it is beside, or in place
    of, a model that answers. layers_with_conv: by number, those with a short convolution of `conv_taps` rows
    in place of attention. delta: of the linear attention that these layers have behind their convolution, or
    None.
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
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    partial_rotary_factor: float = 1.0
    layers_without_rope: frozenset[int] = frozenset()
    local_rope_theta: float | None = None
    activation: str = SILU
    multipliers: Multipliers = field(default_factory=Multipliers)
    sliding_window: int | None = None
    layers_with_window: frozenset[int] = frozenset()
    family: ModelFamily = FAMILIES["llama"]
    diffusion: DiffusionConfig | None = None
    draft_mask_id: int | None = None
    weight_kinds: WeightKinds = field(default_factory=WeightKinds)
    max_positions: int | None = None
    all_heads: tuple[int, int] = (0, 0)
    roles: TextRoles = field(default_factory=TextRoles, repr=False)  # keys and values are the same without
    layers_with_conv: frozenset[int] = frozenset()
    conv_taps: int = 0
    delta: DeltaHeads | None = None

    def with_max_positions(self, most: int | None) -> ModelConfig:
        """The config of a session with at most so many positions. With more than longrope's original length
        it turns all texts by the frequencies of long ones: keys in a cache are turned once."""
        rule = self.rope_scaling
        if isinstance(rule, LongRopeScaling) and most is not None:
            rule = rule.for_length(min(most, self.max_position_embeddings))
        return replace(self, max_positions=most, rope_scaling=rule)

    @property
    def is_long(self) -> bool:
        """Whether all texts of the session are turned by longrope's frequencies of long ones."""
        return isinstance(self.rope_scaling, LongRopeScaling) and self.rope_scaling.is_long

    @property
    def architecture(self) -> str:
        """The class of transformers with the same layers."""
        return self.family.architecture

    @property
    def context(self) -> int:
        """Maximum positions that can run: as far as RoPE has one set of frequencies and, in block diffusion,
        as no layer's window hides any."""
        return min(self._limits.values())

    @property
    def context_entry(self) -> str:
        """What sets `context`: an entry of config.json, or the flag."""
        return min(self._limits, key=lambda name: self._limits[name])

    @property
    def context_reason(self) -> str:
        """Why the context is shorter than the model's positions; "" if it is not."""
        return LIMITS[self.context_entry]

    @property
    def _limits(self) -> dict[str, int]:
        """Positions by the entry that limits them; of equal ones the first is used."""
        turned = self.rope_scaling.positions if self.rope_scaling else None
        window = self.sliding_window if self.diffusion else None
        rule = self.rope_scaling
        growing = None
        if isinstance(rule, YarnScaling) and rule.llama_4_scaling_beta:
            growing = rule.original_max_position_embeddings
        given = (self.max_position_embeddings, window, turned, growing, self.max_positions)
        return {name: most for name, most in zip(LIMITS, given, strict=True) if most is not None}

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that RoPE turns, its first ones."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def rope_of_layer(self) -> tuple[int, ...]:
        """Of each layer the number of its RoPE table: 1 without RoPE or with the base of layers with a
        window, 0 for all others."""
        local = frozenset() if self.local_rope_theta is None else self.layers_with_window
        other = self.layers_without_rope | local
        return tuple(int(layer in other) for layer in range(self.num_hidden_layers))

    @property
    def layers_with_attention(self) -> tuple[int, ...]:
        """The layers that keep keys and values, in order."""
        return tuple(one for one in range(self.num_hidden_layers) if one not in self.layers_with_conv)

    @property
    def windows_of_kv_layers(self) -> tuple[int, ...]:
        """For each layer that keeps keys and values, the number of its window (`masks`)."""
        return tuple(self.masks.of_layer[layer] for layer in self.layers_with_attention)

    @property
    def states(self) -> LayerStates:
        """What layers without attention keep of each position."""
        if self.delta:
            return delta_states(tuple(sorted(self.layers_with_conv)), self.delta, self.conv_taps)
        reach = self.conv_taps - 1 if self.layers_with_conv else 0
        width = self.num_attention_heads * self.head_dim
        return LayerStates(tuple(sorted(self.layers_with_conv)), width, reach)

    def layer_tensors(self, layer: int) -> Mapping[str, str]:
        """The tensors of a layer: names in the checkpoint by the names of the programs' arguments."""
        return self.family.conv_tensors if layer in self.layers_with_conv else self.family.tensors

    @property
    def masks(self) -> LayerMasks:
        """The windows of the layers."""
        return layer_masks(self.num_hidden_layers, self.sliding_window, self.layers_with_window)

    @property
    def shape(self) -> ModelShape:
        """The shape that the program builders need."""
        return ModelShape(
            emb_dim=self.hidden_size,
            n_heads=self.num_attention_heads,
            n_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            hidden_dim=self.intermediate_size,
            vocab_size=self.vocab_size,
            rms_norm_eps=self.rms_norm_eps,
            qkv_bias=self.family.qkv_bias,
            qk_norm=self.family.qk_norm,
            attention_scale=self.multipliers.attention,
            residual_scale=self.multipliers.residual,
            rotary_dim=None if self.partial_rotary_factor == 1 else self.rotary_dim,
            activation=self.activation,
            norm_before=self.family.norm_before,
            norm_after=self.family.norm_after,
            qk_norm_spans_heads=self.family.qk_norm_spans_heads,
            norm_round_once=self.family.norm_round_once,
            norm_weight_offset=self.family.norm_weight_offset,
            conv_taps=self.conv_taps if self.layers_with_conv else 0,
            attention_gate=self.family.attention_gate,
            all_heads=self.all_heads[0],
            all_kv_heads=self.all_heads[1],
            **self._delta_sizes,
        )

    @property
    def _delta_sizes(self) -> dict[str, int]:
        names = ("delta_key_heads", "delta_value_heads", "delta_key_dim", "delta_value_dim")
        return dict(zip(names, self.delta, strict=True)) if self.delta and self.layers_with_conv else {}

    def with_layers(self, layers: int) -> ModelConfig:
        """The config of the first layers, or of more. A small model has all kinds of layers: where all of the
        first are of one kind, the last one is of another. Further windows repeat those of the model."""
        without = frozenset(layer for layer in self.layers_without_rope if layer < layers)
        if layers > self.num_hidden_layers:
            more = self.family.default_layers_without_rope(layers)
            without |= {layer for layer in more if layer >= self.num_hidden_layers}
        elif self.layers_without_rope and not without:
            without = frozenset([layers - 1])
        windowed = frozenset(
            layer for layer in range(layers) if layer % self.num_hidden_layers in self.layers_with_window
        )
        if self.layers_with_window and not windowed:
            windowed = frozenset([layers - 1])
        elif len(windowed) == layers > 1 and len(self.layers_with_window) < self.num_hidden_layers:
            windowed -= {layers - 1}
        conv = frozenset(
            layer for layer in range(layers) if layer % self.num_hidden_layers in self.layers_with_conv
        )
        if len(conv) == layers > 0:
            conv -= {layers - 1}
        return replace(
            self,
            num_hidden_layers=layers,
            layers_without_rope=without,
            layers_with_window=windowed,
            layers_with_conv=conv,
        )

    def with_repeated_layers(self, times: int) -> ModelConfig:
        """The config with each layer so many times, one after the other."""
        layers = range(self.num_hidden_layers * times)
        windowed, conv = (
            frozenset(layer for layer in layers if layer // times in these)
            for these in (self.layers_with_window, self.layers_with_conv)
        )
        return replace(
            self, num_hidden_layers=len(layers), layers_with_window=windowed, layers_with_conv=conv
        )

    @property
    def layer_parameters(self) -> int:
        """Number of weight elements of the matrix products of a layer with attention."""
        heads = (2 + self.family.attention_gate) * self.num_attention_heads + 2 * self.num_key_value_heads
        return self.hidden_size * (heads * self.head_dim + 3 * self.intermediate_size)

    @property
    def layers_parameters(self) -> int:
        """Number of weight elements of the matrix products of all layers."""
        mixing = 4 * self.hidden_size
        if self.delta:
            mixing = self.delta.mixed_width + self.delta.values * (2 * self.delta.value_dim + 2)
        conv = self.hidden_size * (mixing + 3 * self.intermediate_size)
        return len(self.layers_with_attention) * self.layer_parameters + len(self.layers_with_conv) * conv

    @property
    def default_seq_len(self) -> int:
        """The default prompt length of the six programs, at most the model's positions."""
        small = self.context <= SMALL_CONTEXT
        return min(SMALL_SEQ_LEN if small else DEFAULT_SEQ_LEN, self.context)

    @property
    def pad_token_id(self) -> int:
        """The token that pads a prompt to the compiled length. Any id works: no row attends to padding."""
        return self.eos_token_ids[0] if self.eos_token_ids else 0


def load_config(folder: Path) -> ModelConfig:
    """Read config.json of a folder, and generation_config.json where there is one; or a GGUF file.

    Raises ConfigError, naming the file and the entry, for anything missing, malformed or unsupported.
    """
    config = read_config(folder)
    family = check_supported(config)
    heads = config.positive_int("num_attention_heads", most=MAX_HEADS)
    hidden = config.positive_int("hidden_size", most=MAX_WIDTH)
    head_dim = _head_dim(config, family.head_dim or max(1, hidden // heads))
    layers = config.positive_int("num_hidden_layers", most=MAX_LAYERS)
    positions = config.positive_int(
        "max_position_embeddings", default=family.default_positions, most=MAX_POSITIONS
    )
    check_sizes(config, family, head_dim, positions)
    (rope, local), part = read_ropes(config, family), 1.0
    window = read_window(config, family)
    without_rope = read_layers_without_rope(config, family, layers)
    windowed = read_layers_with_window(config, family, layers, without_rope) if window else frozenset()
    conv, taps = read_layers_with_conv(config, family, layers)
    if family.has_partial_rotary:
        part = read_rotary_part(config, rope, head_dim, family.partial_rotary)
        rope = ConfigReader(rope.path, {k: v for k, v in rope.entries.items() if k != ROTARY_PART})
    roles = read_roles(folder, config, family)
    tied = _is_tied(config, family)
    return ModelConfig(
        vocab_size=config.positive_int("vocab_size", most=MAX_TOKENS),
        hidden_size=hidden,
        intermediate_size=_intermediate_size(config, family),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=_kv_heads(config, family, heads),
        head_dim=head_dim,
        max_position_embeddings=positions,
        rms_norm_eps=config.number(family.norm_eps_entry, default=family.rms_norm_eps),
        rope_theta=rope.number("rope_theta", default=family.rope_theta),
        rope_scaling=read_rule(rope, int(head_dim * part), positions),
        partial_rotary_factor=part,
        tie_word_embeddings=tied or bool(roles.reason_against_answers),  # then no LM head is needed
        eos_token_ids=_eos_token_ids(config),
        layers_without_rope=without_rope,
        local_rope_theta=read_local_rope_theta(config, local, family),
        activation=_activation(config, family),
        multipliers=_multipliers(config, family, head_dim),
        sliding_window=window if windowed else None,
        layers_with_window=windowed,
        family=family,
        diffusion=read_diffusion(config, family.diffusion),
        draft_mask_id=_draft_mask_id(config),
        roles=roles,
        layers_with_conv=conv,
        conv_taps=taps,
        delta=read_delta_heads(config, family),
    )


def _is_tied(config: ConfigReader, family: ModelFamily) -> bool:
    """Whether the embeddings are the LM head too; LFM2's own files have another name for it."""
    tied = config.flag("tie_word_embeddings", default=family.tied)
    return config.flag("tie_embedding", default=tied) if family.conv_tensors else tied


def _intermediate_size(config: ConfigReader, family: ModelFamily) -> int:
    """The FFN's width. Some families say it before two thirds are taken of it and rounded up, as
    transformers' Lfm2MLP does."""
    entry = "block_ff_dim" if family.adjusts_ffn and config.get("block_ff_dim") else family.ffn_entry
    width = config.positive_int(entry, most=MAX_WIDTH)
    if not family.adjusts_ffn or not config.flag("block_auto_adjust_ff_dim", default=True):
        return width
    factor = config.number("block_ffn_dim_multiplier", default=1.0)
    step = config.positive_int("block_multiple_of", default=256, most=MAX_WIDTH)
    width = -(-int(factor * int(2 * width / 3)) // step) * step
    if not 0 < width <= MAX_WIDTH:
        raise ConfigError(
            f"{config.path}: the FFN's width, from {entry} and block_ffn_dim_multiplier, is {width}; it must "
            f"be 1 to {MAX_WIDTH}: fetch it again"
        )
    return width


def _draft_mask_id(config: ConfigReader) -> int | None:
    """PARD's models name it so (AMD-AGI/PARD)."""
    token = config.get("pard_token")
    vocab_size = config.positive_int("vocab_size")
    if token is None:
        return None
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
        raise ConfigError(
            f"{config.path}: pard_token is {short(token)}, which is not a token of the vocabulary of "
            f"{vocab_size}: no draft tokens can be made with it; correct it"
        )
    return token


def _head_dim(config: ConfigReader, default: int) -> int:
    head_dim = config.positive_int("head_dim", default, most=MAX_WIDTH)
    if head_dim % 2:
        raise ConfigError(f"{config.path}: head_dim is {head_dim}; RoPE turns pairs, so it must be even")
    return head_dim


def _kv_heads(config: ConfigReader, family: ModelFamily, heads: int) -> int:
    kv_heads = config.positive_int_or_none("num_key_value_heads", if_absent=family.kv_heads) or heads
    if heads % kv_heads:
        raise ConfigError(
            f"{config.path}: num_attention_heads {heads} is not a multiple of num_key_value_heads "
            f"{kv_heads}, so query heads cannot share them evenly; fetch it again"
        )
    return kv_heads


def _multipliers(config: ConfigReader, family: ModelFamily, head_dim: int) -> Multipliers:
    """In float32, as they are computed with and as GGUF files have them. A family without them is refused
    before, where an entry has one."""
    if family.scales_embeddings or family.query_scalar:
        scalar = config.number("query_pre_attn_scalar", default=family.query_scalar or head_dim)
        hidden = config.positive_int("hidden_size", most=MAX_WIDTH)
        return Multipliers(
            embedding=float(np.sqrt(hidden).astype(bf16)) if family.scales_embeddings else 1.0,
            attention=None if scalar == head_dim else float(np.float32(scalar**-0.5)),
        )
    if not family.has_multipliers:
        return Multipliers()

    def factor(name: str) -> float:
        return float(np.float32(config.number(name, default=1.0)))

    attention = factor("attention_multiplier")
    return Multipliers(
        embedding=factor("embedding_multiplier"),
        attention=None if attention == np.float32(head_dim**-0.5) else attention,
        residual=factor("residual_multiplier"),
        logits_divisor=factor("logits_scaling"),
    )


def _activation(config: ConfigReader, family: ModelFamily) -> str:
    """The kernel's name of the activation; others are refused before."""
    names = (config.get(name) for name in ACTIVATION_ENTRIES)
    return GELU if next((name for name in names if name), family.activation) == GELU else SILU


def _eos_token_ids(config: ConfigReader) -> tuple[int, ...]:
    """Every id that ends an answer: generation_config.json's, else config.json's. One that the vocabulary has
    not never comes, and ends nothing."""
    generation = read_generation(config)
    value = generation.get("eos_token_id", config.get("eos_token_id", []))
    ids = value if isinstance(value, list) else [value]
    vocab_size = config.positive_int("vocab_size")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int):
            raise ConfigError(
                f"{generation.path}: eos_token_id {short(token)} is not a token: it must be a whole number"
            )
    return tuple(token for token in ids if 0 <= token < vocab_size)
