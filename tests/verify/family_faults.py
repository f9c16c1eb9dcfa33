"""Mistakes that only models of one family can have, by its model_type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from aerie.engine.model_family import Multipliers
from aerie.engine.numerics import bf16, rms_norm, widen
from aerie.engine.rope import LongRopeScaling
from aerie.engine.rope_tables import RopeTables
from aerie.engine.tensors import Rows
from aerie.kernel_builder.activations import SILU
from tests.verify.delta_faults import QWEN3_5_FAULTS
from tests.verify.fault_runners import AFTER, BEFORE
from tests.verify.faults import Fault, given, preloaded, returned, turned_otherwise, weights_fault


def with_rope_of_layer(change):
    """Layers with the tables of `change(rope)`, a RopeTables."""

    def inject(healthy):
        model = healthy.session.model
        return preloaded(replace(model, rope=change(model.rope)), healthy, healthy.checkpoint.weights)

    return inject


def all_turned(rope):
    return RopeTables(rope.tables[:1], (0,) * len(rope.of_layer))


def the_layer_before(rope):
    return RopeTables(rope.tables, (*rope.of_layer[1:], rope.of_layer[0]))


def other_factors(**changes):
    """Programs, and the host's work, with other factors."""

    def inject(healthy):
        config = healthy.checkpoint.config
        return healthy.rebuild(config=replace(config, multipliers=replace(config.multipliers, **changes)))

    return inject


def embeddings_times(factor):
    def inject(healthy):
        return healthy.with_model(embed_table=Rows(healthy.session.model.embed_table.table, factor))

    return inject


def whole_heads(healthy):
    config = healthy.checkpoint.config
    rule = config.rope_scaling
    wide = replace(rule, short_factor=2 * rule.short_factor, long_factor=2 * rule.long_factor)
    return healthy.rebuild(config=replace(config, partial_rotary_factor=1.0, rope_scaling=wide))


def as_in_long_texts(config):
    return replace(config, rope_scaling=replace(config.rope_scaling, is_long=True))


def without_magnitude(config):
    return replace(config, rope_scaling=replace(config.rope_scaling, attention_factor=1.0))


def gate_and_up_swapped(layer):
    return {"w_gate": layer["w_up"], "w_up": layer["w_gate"]}


def shifted_keys(layer):
    """As if the fused tensor were cut a head too early."""
    rows = np.concatenate([layer["wq"], layer["wk"]])
    first = len(layer["wq"]) - 64
    return {"wk": rows[first : first + len(layer["wk"])]}


def norm_before_attention(arrays):
    """What a Llama's programs do first."""
    return {"x": rms_norm(arrays["x"], np.ones(arrays["x"].shape[-1], bf16), 1e-5)}


def no_norm_after_attention(values):
    return {"attn_normed": values["proj"], "res1": (widen(values["x"]) + widen(values["proj"])).astype(bf16)}


def norm_of_each_head(values):
    heads = values["q"].reshape(*values["q"].shape[:-1], -1, 64)
    return {"q_normed": rms_norm(heads, np.ones(64, bf16), 1e-5).reshape(values["q"].shape)}


def norms_after_swapped(layer):
    return {"attn_post_norm": layer["ffn_post_norm"], "ffn_post_norm": layer["attn_post_norm"]}


CONV = ("short_conv", "short_conv_row")


def of_conv(change):
    """`change` the rows that a convolution is given, (rows, taps, width)."""

    def changed(arrays):
        rows = arrays["conv_rows"]
        other = change(rows.reshape(-1, *rows.shape[-2:]))
        return {"conv_rows": np.ascontiguousarray(other.reshape(rows.shape))}

    return given(CONV, changed)


def of_another_sequence(rows):
    """The rows before a token are not its own: those of some other text, and the token's own stays."""
    other = rows.copy()
    other[:, :-1] = np.random.default_rng(0).standard_normal(other[:, :-1].shape).astype(bf16)
    return other


def shifted_by_one(rows):
    """Each row a position too late: the token's own is not among them."""
    other = np.zeros_like(rows)
    other[:, 1:] = rows[:, :-1]
    return other


def gates_swapped(layer):
    return {"w_conv_b": layer["w_conv_c"], "w_conv_c": layer["w_conv_b"]}


def taps_reversed(layer):
    return {"w_conv": np.ascontiguousarray(layer["w_conv"][::-1])}


def other_programs(**changes):
    """Programs of a config with these changes."""
    return lambda healthy: healthy.rebuild(config=replace(healthy.checkpoint.config, **changes))


def weight_alone(healthy):
    """Norms multiply with w, not with 1 + w."""
    family = replace(healthy.checkpoint.config.family, norm_weight_offset=0)
    return other_programs(family=family)(healthy)


def no_norm_after_ffn(values):
    return {"x_next": (widen(values["res1"]) + widen(values["down"])).astype(bf16)}


def local_base_everywhere(rope):
    return RopeTables(rope.tables, (1,) * len(rope.of_layer))


GEMMA3_FAULTS = (
    Fault("norms multiply with w, not with 1 + w", weight_alone, "layer 0, step attn_norm"),
    Fault("global RoPE base in a local layer", with_rope_of_layer(all_turned), "layer 0, step rope_q"),
    Fault(
        "local RoPE base in a global layer", with_rope_of_layer(local_base_everywhere), "layer 1, step rope_q"
    ),
    Fault("embeddings not multiplied", embeddings_times(1.0), "layer 0, step input"),
    Fault("embeddings multiplied twice", embeddings_times(256.0), "layer 0, step input"),
    Fault("scores of heads 256 wide", other_factors(attention=1 / 16), "layer 0, step attention"),
    Fault(
        "no norm after attention", returned(AFTER, no_norm_after_attention), "layer 0, step attn_post_norm"
    ),
    Fault("no norm after the FFN", returned(AFTER, no_norm_after_ffn), "layer 0, step ffn_residual"),
    Fault("norms after swapped", weights_fault(1, norms_after_swapped), "layer 1, step attn_post_norm"),
    Fault("SiLU in place of GELU", other_programs(activation=SILU), "layer 0, step swiglu"),
)
"""A window off by one is in test_verify_windows.py: it shows in texts that are longer than the window."""

FAMILY_CHANGES: dict[str, dict[str, Any]] = {
    "granite": {"multipliers": Multipliers(12.0, 0.09, 0.22, 1.7)},
    "granitemoehybrid": {"multipliers": Multipliers(12.0, 0.09, 0.22, 1.7)},
    "phi3": {
        "partial_rotary_factor": 0.5,
        "rope_scaling": LongRopeScaling(
            (1.0,) * 16,
            tuple(1.5 + i for i in range(16)),
            original_max_position_embeddings=2048,
            attention_factor=1.19,
        ),
    },
}
"""What their configs have besides."""

FAMILY_FAULTS = {
    "gemma3_text": GEMMA3_FAULTS,
    "granite": (
        Fault("embeddings not multiplied", embeddings_times(1.0), "layer 0, step input"),
        Fault("embeddings multiplied twice", embeddings_times(144.0), "layer 0, step input"),
        Fault("scores of another family", other_factors(attention=None), "layer 0, step attention"),
        Fault("residual factor left out", other_factors(residual=1.0), "layer 0, step attn_residual"),
        Fault("logits not divided", other_factors(logits_divisor=1.0), "divided_logits"),
    ),
    "granitemoehybrid": (
        Fault("gate and up swapped", weights_fault(1, gate_and_up_swapped), "layer 1, step gate"),
        Fault("residual factor left out", other_factors(residual=1.0), "layer 0, step attn_residual"),
    ),
    "lfm2": (
        Fault("the state of another sequence", of_conv(of_another_sequence), "layer 0, step conv"),
        Fault("a convolution shifted by one", of_conv(shifted_by_one), "layer 0, step conv"),
        Fault("its taps in the other order", weights_fault(0, taps_reversed), "layer 0, step conv"),
        Fault("its gates swapped", weights_fault(0, gates_swapped), "layer 0, step conv_b"),
        Fault("not gated behind it", returned(CONV, lambda v: {"attn_out": v["conv"]}), "layer 0, step conv"),
    ),
    "olmo2": (
        Fault("a norm before attention", given(BEFORE, norm_before_attention), "layer 0, step q"),
        Fault(
            "no norm after attention",
            returned(AFTER, no_norm_after_attention),
            "layer 0, step attn_post_norm",
        ),
        Fault("norms after swapped", weights_fault(1, norms_after_swapped), "layer 1, step attn_post_norm"),
        Fault("each head has a norm of its own", returned(BEFORE, norm_of_each_head), "layer 0, step q_norm"),
    ),
    "olmo3": (
        Fault("stretched RoPE in a local layer", with_rope_of_layer(all_turned), "layer 0, step rope_q"),
        Fault(
            "plain RoPE in a layer of full attention",
            with_rope_of_layer(local_base_everywhere),
            "layer 1, step rope_q",
        ),
    ),
    "phi3": (
        Fault("whole heads are turned", whole_heads, "layer 0, step rope_q"),
        Fault("turned as in long texts", turned_otherwise(as_in_long_texts), "layer 0, step rope_q"),
        Fault("no magnitude of cosines", turned_otherwise(without_magnitude), "layer 0, step rope_q"),
        Fault("gate and up swapped", weights_fault(1, gate_and_up_swapped), "layer 1, step gate"),
        Fault("keys are the end of the queries", weights_fault(1, shifted_keys), "layer 1, step k"),
    ),
    "qwen3_5_text": (
        Fault("norms multiply with w, not with 1 + w", weight_alone, "layer 0, step attn_norm"),
        *QWEN3_5_FAULTS,
    ),
    "smollm3": (
        Fault("a layer without RoPE is turned", with_rope_of_layer(all_turned), "layer 1, step rope_q"),
        Fault("the layer before it has none", with_rope_of_layer(the_layer_before), "layer 0, step rope_q"),
    ),
}
