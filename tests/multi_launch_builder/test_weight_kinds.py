"""Programs for weights of other kinds than bf16: their names, arguments and launches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aerie.engine.program_library import names_with_kinds
from aerie.kernel_builder.arguments import byte
from aerie.kernel_builder.weight_blocks import Q4, Q8
from aerie.llama32_1b.synthetic.shape import TINY
from aerie.multi_launch_builder import program_store
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shapes import DEMO
from aerie.multi_launch_builder.variants import PLANS, program_name
from aerie.multi_launch_builder.weight_kinds import (
    MATRICES,
    OF_SOME,
    WeightKinds,
    plan_with_kinds,
    split_name,
)

MIXED = WeightKinds(
    ((("wq", "q4"), ("wk", "q4"), ("wv", "q4"), ("w_down", "q8")), (("wv", "q8"),)), head="q8"
)


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("rms_gemms_rope_ar8", ["rms_gemms_rope_ar8_q4", "rms_gemms_rope_ar8_bf16_bf16_q8"]),
        ("o_gemv_ffn", ["o_gemv_ffn_bf16_bf16_bf16_q8", "o_gemv_ffn"]),
        ("cached_attn_ar8_cl512", ["cached_attn_ar8_cl512"]),
        ("lm_head_gemv", ["lm_head_gemv_q8"]),
        ("lm_head_ar16", ["lm_head_ar16_q8"]),
        ("o_ar64", ["o_ar64"]),
        ("o_ffn_ar8_q4", ["o_ffn_ar8_q4"]),
    ],
)
def test_a_program_has_a_name_for_the_kinds_of_each_layer(program: str, names: list[str]) -> None:
    config = replace(TINY, weight_kinds=MIXED)
    assert names_with_kinds(config, [program]) == names
    assert names_with_kinds(TINY, [program]) == [program]


def test_a_program_has_names_for_the_layers_that_run_it() -> None:
    """Layers with a short convolution have other programs than those with attention, and share the last."""
    conv, attention = (("w_conv_b", "q4"), ("wo", "q8")), (("wq", "q8"),)
    config = replace(TINY, weight_kinds=WeightKinds((conv, attention)), layers_with_conv=frozenset([0]))
    assert names_with_kinds(config, ["rms_gemms_rope_ar8"]) == ["rms_gemms_rope_ar8_q8_bf16_bf16"]
    assert names_with_kinds(config, ["rms_gemv_gate"]) == ["rms_gemv_gate_q4_bf16_bf16"]
    assert names_with_kinds(config, ["o_gemv_ffn"]) == ["o_gemv_ffn_q8_bf16_bf16_bf16", "o_gemv_ffn"]


def test_every_program_with_weights_is_known_with_its_matrices() -> None:
    shape = replace(DEMO, conv_taps=3)
    plans = [*plan_programs(shape, 64).values(), *(plan(DEMO, 8, 512) for plan in PLANS.values())]
    gated = PLANS["rms_gemms_rope"](replace(DEMO, attention_gate=True), 8, 512)
    for plan in (*plans, gated):
        weights = [a for a in plan.arguments if a.role.value == "weight" and a.name != "w_conv"]
        matrices = [a.name for a in weights if len(a.shape) == 2]
        known = [name for name in MATRICES.get(plan.kind, ()) if plan is gated or name not in OF_SOME]
        assert matrices == known or (known == ["lm_head"] and len(matrices) == 8)


def test_blocks_take_the_place_of_matrices() -> None:
    (plan,) = program_store.load_plans_by_name(DEMO, ["o_ffn_ar8_q4_q4_bf16_q8"])
    assert plan.name == "o_ffn_ar8_q4_q4_bf16_q8"
    of = plan.arguments
    assert (of["wo"].shape, of["wo"].dtype) == (Q4.shape(256, 256), byte)
    assert of["w_up"].shape == (768, 256)
    assert of["w_down"].shape == Q8.shape(256, 768)
    kinds = {launch.label: launch.parameters.get("weight") for launch in plan.launches}
    assert (kinds["o_gemm"], kinds["up_gemm"], kinds["down_gemm"]) == ("q4", None, "q8")
    assert (plan.kind, plan.rows) == ("o_ffn", 8)


def test_an_lm_head_has_one_kind() -> None:
    plans = program_store.plan_six(DEMO, 64, ["lm_head_gemv_q4"])
    shapes = {a.shape for a in plans["lm_head_gemv_q4"].arguments if a.dtype is byte}
    assert shapes == {Q4.shape(256, 256)}


def test_a_name_without_kinds_is_the_program_for_bf16() -> None:
    assert split_name(program_name("o_ffn", 8)) == ("o_ffn_ar8", [])
    assert split_name("rms_gemv_rope_bf16_q4_q8") == ("rms_gemv_rope", ["bf16", "q4", "q8"])


def test_as_many_kinds_as_matrices() -> None:
    plan = plan_programs(DEMO, 64)["rms_gemv_rope"]
    with pytest.raises(ValueError, match="rms_gemv_rope has 3 matrices, and 2 kinds are given; give one"):
        plan_with_kinds(plan, ["q4", "q8"])
