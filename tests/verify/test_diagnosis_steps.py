"""The steps are computed as transformers computes them, and what is seen on the way is what was computed."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from aerie.engine.forward import prefill
from aerie.kernel_builder.arguments import Role
from aerie.verify.diagnosis import Theirs
from aerie.verify.passes import CallRecorder, capture_reference
from aerie.verify.steps import HEAD_STEPS, LAYER_STEPS, Bench, converted

IDS = [5, 700, 31, 31, 1200, 8, 90, 4, 55]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def theirs(demo_reference):
    return Theirs(demo_reference.model, IDS, "exact")


def inputs(captured, layer, step):
    """What the step reads, from a run of transformers."""
    names = {"keys": "rope_k", "values": "v", "before": "input", "last": "ffn_residual"}
    last = max(index for index, _ in captured if index is not None)
    where = last if step.name == "final_norm" else layer
    return {name: captured[where, names.get(name, name)] for name in step.inputs}


@pytest.mark.parametrize("step", LAYER_STEPS, ids=lambda step: step.name)
def test_a_step_on_transformers_inputs_gives_transformers_value(step, theirs):
    for model, captured in zip(theirs.models, (theirs.bf16, theirs.f32), strict=True):
        bench = Bench(model, range(len(IDS)))
        tolerance = 0.02 if model.dtype == torch.bfloat16 and step.name == "attention" else 1e-5
        for layer in (0, 5):
            value = bench.compute(layer, step, inputs(captured, layer, step))
            expected = captured[layer, step.same_as or step.name]
            np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("step", HEAD_STEPS, ids=lambda step: step.name)
def test_the_steps_after_the_layers_are_transformers_too(step, theirs):
    value = Bench(theirs.models[0], range(len(IDS))).compute(None, step, inputs(theirs.bf16, None, step))
    np.testing.assert_array_equal(value, theirs.bf16[None, step.name])


def test_hooks_see_every_step_and_go_away(demo_reference):
    captured = capture_reference(demo_reference.model, IDS)
    layers = demo_reference.model.config.num_hidden_layers
    assert set(captured) == {(i, step.name) for i in range(layers) for step in LAYER_STEPS if step.hook} | {
        (None, step.name) for step in HEAD_STEPS
    }
    np.testing.assert_array_equal(captured[None, "logits"], demo_reference.logits(IDS))
    for module in demo_reference.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_a_step_of_one_position_looks_at_earlier_keys_only(theirs):
    """Decode's attention: one row, all keys up to its own position."""
    attention = next(step for step in LAYER_STEPS if step.name == "attention")
    whole = inputs(theirs.f32, 2, attention)
    row = {**whole, "rope_q": whole["rope_q"][4:5]}
    value = Bench(theirs.models[1], range(4, 5)).compute(2, attention, row)
    np.testing.assert_allclose(value, theirs.f32[2, "attention"][4:5], rtol=1e-4, atol=1e-5)


def test_recording_changes_nothing_and_keeps_intermediates(demo_session):
    model = demo_session.model
    recorder = CallRecorder(model.runner)
    plain = prefill(model, IDS, model.new_cache(len(IDS)))
    recorded = prefill(replace(model, runner=recorder), IDS, model.new_cache(len(IDS)))
    np.testing.assert_array_equal(plain.view(np.uint16), recorded.view(np.uint16))
    first, second = recorder.calls["o_ffn"][:2]
    table = model.programs["o_ffn"].arguments
    seen = {argument.name for argument in table if argument.role not in (Role.WEIGHT, Role.LUT)}
    assert set(first) == seen
    assert not np.array_equal(first["gate"], second["gate"])  # copies, not views on one buffer
    np.testing.assert_array_equal(recorder.calls["rms_gemms_rope"][1]["x"], first["x_next"])


def test_a_recorder_returns_what_was_asked_for(demo_session):
    model = demo_session.model
    recorder = CallRecorder(model.runner)
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
    np.testing.assert_array_equal(converted(torch.from_numpy(values)).numpy(), model.converted(values, 1))
