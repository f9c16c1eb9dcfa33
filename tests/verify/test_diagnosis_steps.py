"""The steps are computed as transformers computes them, and what is seen on the way is what was computed."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from aerie.engine.forward import prefill
from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, bf16
from aerie.multi_launch_builder.program import LaunchPlan as Launch
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shapes import DEMO
from aerie.multi_launch_builder.variants import plan_by_name
from aerie.verify import recorded_passes
from aerie.verify.layer_check import ReferencePasses
from aerie.verify.layer_steps import HEAD_STEPS, KNOWN, layer_steps, plan_steps
from aerie.verify.recorded_passes import (
    MAX_POSITIONS,
    CallRecorder,
    capture_reference,
    compared_positions,
    observe_prefill,
)
from aerie.verify.step_reference import StepReference, to_bfp16

LAYER_STEPS = layer_steps(DEMO)
IDS = [5, 700, 31, 31, 1200, 8, 90, 4, 55]
ALL = np.arange(len(IDS))


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def theirs(demo_reference):
    layers = demo_reference.model.config.num_hidden_layers
    return ReferencePasses(demo_reference, IDS, [LAYER_STEPS] * layers, "exact")


def inputs(captured, layer, step):
    """What the step reads, from a run of transformers."""
    names = {"keys": "rope_k", "values": "v", "before": "input", "last": "ffn_residual"}
    last = max(index for index, _ in captured if index is not None)
    where = last if step.name == "final_norm" else layer
    return {name: captured[where, names.get(name, name)] for name in step.inputs}


@pytest.mark.parametrize("step", LAYER_STEPS, ids=lambda step: step.name)
def test_a_step_on_transformers_inputs_gives_transformers_value(step, theirs):
    for model, captured in zip(theirs.models, (theirs.bf16, theirs.f32), strict=True):
        bench = StepReference(model, ALL)
        tolerance = 0.02 if model.dtype == torch.bfloat16 and step.name == "attention" else 1e-5
        for layer in (0, 5):
            value = bench.compute(layer, step, inputs(captured, layer, step))
            expected = captured[layer, step.equals or step.name]
            np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("step", HEAD_STEPS, ids=lambda step: step.name)
def test_the_steps_after_the_layers_are_transformers_too(step, theirs):
    value = StepReference(theirs.models[0], ALL).compute(None, step, inputs(theirs.bf16, None, step))
    np.testing.assert_array_equal(value, theirs.bf16[None, step.name])


def test_hooks_see_every_step_and_go_away(demo_reference):
    layers = demo_reference.model.config.num_hidden_layers
    captured = capture_reference(demo_reference.model, IDS, [LAYER_STEPS] * layers, ALL)
    assert set(captured) == {
        (i, step.name) for i in range(layers) for step in LAYER_STEPS if step.module_hook
    } | {(None, step.name) for step in HEAD_STEPS}
    np.testing.assert_array_equal(captured[None, "logits"], demo_reference.logits(IDS))
    for module in demo_reference.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_a_step_of_one_position_looks_at_earlier_keys_only(theirs):
    """Decode's attention: one row, all keys up to its own position."""
    attention = next(step for step in LAYER_STEPS if step.name == "attention")
    whole = inputs(theirs.f32, 2, attention)
    row = {**whole, "rope_q": whole["rope_q"][4:5]}
    value = StepReference(theirs.models[1], np.array([4])).compute(2, attention, row)
    np.testing.assert_allclose(value, theirs.f32[2, "attention"][4:5], rtol=1e-4, atol=1e-5)


def test_recording_changes_nothing_and_keeps_intermediates(demo_session):
    model = demo_session.model
    (step,) = steps = model.variant_set.plan(len(IDS), 0)
    recorder = CallRecorder(model, steps, ALL)
    plain = prefill(model, IDS, model.new_cache(len(IDS)))
    recorded = prefill(replace(model, runner=recorder), IDS, model.new_cache(len(IDS)))
    np.testing.assert_array_equal(plain.view(np.uint16), recorded.view(np.uint16))
    first, second = recorder.calls["o_ffn"][:2]
    table = model.programs[[*model.variant_set.call_programs(step.variant, [step.context])][-1]].arguments
    seen = {argument.name for argument in table if argument.role not in (Role.WEIGHT, Role.LUT)}
    assert set(first) == seen | {"rows"}
    assert not np.array_equal(first["gate"], second["gate"])  # copies, not views on one buffer
    np.testing.assert_array_equal(recorder.calls["rms_gemms_rope"][1]["x"], first["x_next"])


def test_a_recorder_returns_what_was_asked_for(demo_session):
    model = demo_session.model
    recorder = CallRecorder(model, model.variant_set.plan(len(IDS), 0), ALL)
    program = model.programs["lm_head_gemv"]
    x = model.embed_table[7]
    asked = recorder.run(program, bo_key="lm_head_gemv", outputs=["logits_3"], x=x)
    assert set(asked) == {"logits_3"}
    assert set(recorder.run(program, bo_key="lm_head_gemv", x=x)) == {f"logits_{part}" for part in range(8)}


def test_block_floats_are_those_of_the_virtual_npu():
    model = load(Path(__file__).parents[1] / "virtual_npu" / "bfp16_model.py")
    rng = np.random.default_rng(3)
    values = (rng.normal(size=(64, 128)) * 10.0 ** rng.integers(-6, 6, (64, 128))).astype(np.float32)
    values[0, :8] = 0
    values[1, :8] = 127.6  # rounds to 128 steps
    np.testing.assert_array_equal(to_bfp16(torch.from_numpy(values)).numpy(), model.converted(values, 1))


# Steps come from plans

PLANS = plan_programs(DEMO, 64)


def longer(*launches):
    """rms_gemms_rope with launches after its q_gemm: a label each, and the argument that it writes."""
    plan = PLANS["rms_gemms_rope"]
    added = [Argument(out, (64, DEMO.q_dim), bf16, Role.INTERMEDIATE) for _, out in launches]
    steps = [Launch(label, "eltwise", {}, {"x": "q", "out": out}) for label, out in launches]
    where = [step.label for step in plan.launches].index("q_gemm") + 1
    names = {argument.name: argument for argument in (*plan.arguments, *added)}
    return replace(
        plan,
        arguments=ArgumentTable(names.values()),
        launches=(*plan.launches[:where], *steps, *plan.launches[where:]),
    )


@pytest.mark.parametrize("names", [("rms_gemv_rope", "o_gemv_ffn"), ("rms_gemms_rope_ar8", "o_ffn_ar8")])
def test_programs_of_any_number_of_rows_have_the_same_steps(names):
    first, second = (PLANS.get(name) or plan_by_name(DEMO, name) for name in names)
    assert first
    assert second
    described = [(step.name, step.inputs, step.source) for step in plan_steps(first, second)]
    assert described == [(step.name, step.inputs, step.source) for step in LAYER_STEPS]


def test_what_reads_a_projection_reads_its_bias_and_norm_where_there_are_any():
    found = {step.name: step for step in layer_steps(replace(DEMO, qkv_bias=True, qk_norm=True))}
    chain = [found[name].inputs for name in ("q_bias", "q_norm", "rope_q")]
    assert chain == [("q",), ("q_bias",), ("q_norm",)]
    assert (found["rope_k"].inputs, found["cache_v"].inputs) == (("k_norm",), ("v_bias",))
    assert found["q"].module_hook is None  # transformers' module adds the bias as well
    assert found["q_bias"].module_hook == ("self_attn.q_proj", "out")
    sources = [found[name].source for name in ("q", "q_bias", "q_norm")]
    assert [source and source.argument for source in sources] == [
        "q_product",
        "q",
        "q_normed",
    ]


def test_a_launch_that_is_no_layer_step_is_refused():
    with pytest.raises(ValueError, match="launch 'q_clip' of program 'rms_gemms_rope' is not a known layer"):
        plan_steps(longer(("q_clip", "q_clipped")), PLANS["o_ffn"])


def test_a_launch_that_hides_what_another_made_is_refused():
    with pytest.raises(ValueError, match="launch 'q_bias' of program 'rms_gemms_rope' writes 0 arguments t"):
        plan_steps(longer(("q_bias", "q")), PLANS["o_ffn"])


class Attention(torch.nn.Module):
    """What Qwen2 and Qwen3 have that Llama has not."""

    def __init__(self):
        super().__init__()
        self.q_proj = torch.nn.Linear(8, 8)
        self.q_norm = torch.nn.RMSNorm(4)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = Attention()


FOUR_WIDE: Any = SimpleNamespace(head_dim=4)


def test_bias_and_norm_of_heads_are_those_of_the_modules():
    layer, x = Layer(), torch.randn(3, 8)
    steps = {step.name: step for step in layer_steps(replace(DEMO, qkv_bias=True))}
    with torch.inference_mode():
        alone = steps["q"].compute(FOUR_WIDE, layer, {"attn_norm": x})
        torch.testing.assert_close(
            steps["q_bias"].compute(FOUR_WIDE, layer, {"q": alone}), layer.self_attn.q_proj(x)
        )
        normed = KNOWN["q_norm"].compute(FOUR_WIDE, layer, {"q": x})
        torch.testing.assert_close(normed[:, 4:], layer.self_attn.q_norm(x[:, 4:]))
    assert not torch.allclose(alone, layer.self_attn.q_proj(x))


# Which positions are compared


def test_of_a_long_prompt_some_positions_are_compared():
    assert compared_positions(MAX_POSITIONS).tolist() == list(range(MAX_POSITIONS))
    some = compared_positions(1000)
    assert (len(some), some[0], some[-1]) == (MAX_POSITIONS, 0, 999)
    assert set(np.diff(some)) == {7, 8}


def test_some_positions_have_the_values_that_they_have_among_all(demo_session, monkeypatch):
    whole = observe_prefill(demo_session.model, IDS)
    monkeypatch.setattr(recorded_passes, "MAX_POSITIONS", 4)
    some = observe_prefill(demo_session.model, IDS)
    assert some.positions.tolist() == [0, 3, 5, 8]
    for few, all_of_them in zip(some.layers, whole.layers, strict=True):
        assert few.keys() == all_of_them.keys()
        for step, values in few.items():
            rows = slice(None) if step in ("keys", "values") else some.positions
            np.testing.assert_array_equal(values, all_of_them[step][rows])
