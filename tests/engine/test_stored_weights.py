"""Weights however they lie in a file, fused, transposed, in a wider type: the values are the same."""

import re
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aerie.engine import open_session
from aerie.engine import tensors as tensors_module
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import load_config
from aerie.engine.errors import WeightsError
from aerie.engine.forward import next_token_logits, prefill
from aerie.engine.model import build_model
from aerie.engine.reporter import Reporter
from aerie.engine.variant_set import VariantSet
from aerie.engine.weights import EMBED, LM_HEAD, Weights

bf16 = ml_dtypes.bfloat16
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


def fused(tensors, layer, parts, whole, kind="weight"):
    names = [f"model.layers.{layer}.{part}.{kind}" for part in parts]
    tensors[f"model.layers.{layer}.{whole}.{kind}"] = np.concatenate([tensors.pop(name) for name in names])


def fuse(tensors, qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj"):
    for layer in range(2):
        fused(tensors, layer, QKV, qkv)
        fused(tensors, layer, GATE_UP, gate_up)


def transpose(tensors):
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and name != EMBED:
            tensors[name] = np.ascontiguousarray(tensor.T)


def fuse_in_other_words(tensors):
    fuse(tensors, "self_attn.attn_qkv", "mlp.ffn_gate_up")


def fuse_and_transpose(tensors):
    fuse(tensors)
    transpose(tensors)


def fuse_one_layer(tensors):
    fused(tensors, 1, QKV, "self_attn.qkv_proj")


STORED = [fuse, fuse_in_other_words, fuse_one_layer, transpose, fuse_and_transpose]


@pytest.fixture
def folder(make_checkpoint, tmp_path):
    """A copy whose sizes all differ: queries are half as wide as the model, the LM head is not tied."""
    whole = make_checkpoint(head_dim=32, intermediate_size=320, vocab_size=450, tie_word_embeddings=False)
    return shutil.copytree(whole, tmp_path / "stored")


def rewrite(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def all_values(weights):
    """Of every tensor that is read whole, by layer and field; the LM head in parts of 100 rows."""
    layers = {
        (layer, field): tensor.read() for layer in range(2) for field, tensor in weights.layer(layer).items()
    }
    parts = {}
    for first in range(0, 450, 100):
        parts[first] = np.empty((min(100, 450 - first), 256), bf16)
        weights.lm_head.rows_into(parts[first], first)
    return {**layers, **parts, "norm": weights.final_norm.read(), "rows": weights.embed_table[[3, 449]]}


@pytest.mark.parametrize("chunk_bytes", [4 << 20, 3000], ids=["at once", "in pieces"])
@pytest.mark.parametrize("change", STORED)
def test_values_are_those_of_plain_tensors(change, chunk_bytes, folder, monkeypatch):
    config = load_config(folder)
    plain = all_values(Weights(folder, config))
    before = set(load_file(folder / "model.safetensors"))
    rewrite(folder, change)
    monkeypatch.setattr(tensors_module, "CHUNK_BYTES", chunk_bytes)
    stored = all_values(Weights(folder, config))
    assert plain.keys() == stored.keys()
    for name, values in plain.items():
        np.testing.assert_array_equal(stored[name], values, err_msg=str(name))
    after = set(load_file(folder / "model.safetensors"))
    assert (after != before) is (change is not transpose)


def test_the_model_computes_the_same(folder, numpy_model):
    tokens = [1, 5, 300, 17]

    def logits():
        model = numpy_model(folder)
        return next_token_logits(model, prefill(model, tokens, model.new_cache(8))[-1])

    plain = logits()
    rewrite(folder, fuse_and_transpose)
    np.testing.assert_array_equal(logits(), plain)


def test_a_wider_type_may_lie_transposed_too(folder):
    config = load_config(folder)
    plain = all_values(Weights(folder, config))

    def widen(tensors):
        fuse_and_transpose(tensors)
        tensors.update({name: tensor.astype(np.float32) for name, tensor in tensors.items()})

    rewrite(folder, widen)
    weights = Weights(folder, config)
    for name, values in all_values(weights).items():
        np.testing.assert_array_equal(values, plain[name], err_msg=str(name))
    assert str(weights.rounding) == "weights were F32 and are the same in bf16: no value was rounded"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: (
                fuse(tensors),
                tensors.update({"model.layers.0.self_attn.q_proj.weight": tensors[EMBED]}),
            ),
            r"tensor model\.layers\.0\.self_attn\.qkv_proj\.weight in .* is none that config\.json asks for",
        ),
        (
            lambda tensors: (
                fuse(tensors),
                tensors.update({"model.layers.1.mlp.gate_up_proj.weight": np.zeros((639, 256), bf16)}),
            ),
            r"gate_up_proj\.weight in .* has shape 639x256; config\.json implies 640x256: the files and",
        ),
        (
            lambda tensors: (
                transpose(tensors),
                tensors.update({"model.layers.1.mlp.up_proj.weight": np.zeros((320, 256), bf16)}),
            ),
            r"up_proj\.weight in .* has shape 320x256; config\.json implies 256x320, transposed as others",
        ),
        (
            lambda tensors: (transpose(tensors), tensors.pop(LM_HEAD)),
            r"lm_head\.weight is missing .* 450x256",
        ),
    ],
    ids=["whole and part", "a row less", "one the other way", "no head"],
)
def test_what_does_not_fit_is_refused(change, message, folder):
    rewrite(folder, change)
    with pytest.raises(WeightsError, match=message):
        Weights(folder, load_config(folder))


def as_type(dtype, factor=1.0):
    def change(tensors):
        for name, tensor in tensors.items():
            tensors[name] = (tensor.astype(np.float32) * np.float32(factor)).astype(dtype)

    return change


@pytest.mark.parametrize(("dtype", "name"), [(np.float16, "F16"), (np.float32, "F32")])
def test_lost_precision_is_reported(dtype, name, folder):
    """Values between two of bf16 lose up to 2^-8 of themselves; the largest loss is found."""
    rewrite(folder, as_type(dtype, 1.00390625 * 0.99))
    weights, stored = Weights(folder, load_config(folder)), load_file(folder / "model.safetensors")
    assert str(weights.rounding) == ""
    given, kept = stored["model.layers.0.mlp.up_proj.weight"], weights.layer(0)["w_up"].read()
    given, kept = given.astype(np.float64).ravel(), kept.astype(np.float64).ravel()
    rounding = weights.rounding
    assert (rounding.types, rounding.values) == ({name}, given.size)
    assert rounding.rounded == (given != kept).sum() > 0.5 * given.size
    largest = (abs(given - kept) / abs(given)).max()
    assert rounding.largest == pytest.approx(largest, rel=1e-6)
    assert 0.0015 < largest <= 2**-8 / (1 + 2**-8)
    note = (
        rf"weights were {name} and are rounded to bf16: \S+ % of the values changed, by at most 0\.\d+ % of "
    )
    assert re.fullmatch(note + "themselves; none overflowed", str(rounding))


@pytest.mark.parametrize("dtype", [np.float16, bf16])
def test_the_note_comes_once_the_weights_are_loaded(
    dtype, folder, programs_without_text, numpy_runner_class, capsys
):
    rewrite(folder, as_type(dtype, 1.01))
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    programs = programs_without_text(config.shape, 64)
    model = build_model(checkpoint, programs, numpy_runner_class(config), VariantSet(64))
    open_session._preload([open_session.FilledModel(model, checkpoint.weights)], checkpoint, Reporter())
    first, *more = capsys.readouterr().err.splitlines()
    assert first.startswith("weights: 2 layers loaded")
    assert more == ([] if dtype is bf16 else [str(checkpoint.weights.rounding)])


def test_every_number_of_f16_fits_bf16(folder):
    """The largest, and those below the smallest normal one."""
    values = np.array([65504, -65504, 6e-8, 0, -0.0, 2**-14], np.float16)

    def change(tensors):
        as_type(np.float16)(tensors)
        tensors["model.norm.weight"][: len(values)] = values

    rewrite(folder, change)
    kept = Weights(folder, load_config(folder)).final_norm.read()[: len(values)]
    np.testing.assert_array_equal(kept, values.astype(np.float32).astype(bf16))
    assert np.isfinite(kept.astype(np.float32)).all()


def test_a_number_of_f32_that_bf16_does_not_hold_is_refused(folder):
    def change(tensors):
        as_type(np.float32)(tensors)
        tensors["model.layers.1.mlp.down_proj.weight"][7, 7] = 3.4e38

    rewrite(folder, change)
    tensor = Weights(folder, load_config(folder)).layer(1)["w_down"]
    message = (
        r"tensor model\.layers\.1\.mlp\.down_proj\.weight in .* holds 3\.4e\+38, and bf16, which is computed"
    )
    with pytest.raises(WeightsError, match=message):
        tensor.read()


def test_bf16_is_read_as_it_is(folder):
    weights = Weights(folder, load_config(folder))
    all_values(weights)
    assert (weights.rounding.values, str(weights.rounding)) == (0, "")
