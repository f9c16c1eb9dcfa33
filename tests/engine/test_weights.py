"""Weights from safetensors: layouts, conversions, and every way a checkpoint can be wrong."""

import dataclasses
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from aerie.engine import tensors as tensors_module
from aerie.engine.config import load_config
from aerie.engine.errors import WeightsError
from aerie.engine.model import lm_head_statics
from aerie.engine.model_family import LAYER_TENSORS
from aerie.engine.programs import DECODE_PROGRAMS, PREFILL_PROGRAMS, SharedBufferNames, has_layer_weights
from aerie.engine.weights import EMBED
from aerie.kernel_builder.arguments import Role
from aerie.kernel_builder.arguments import bf16 as kernel_bf16
from tests.engine.checkpoints import all_tensors, open_weights

bf16 = ml_dtypes.bfloat16


def test_layer_has_hugging_face_layout(make_checkpoint):
    weights = open_weights(make_checkpoint(head_dim=32))
    layer = weights.layer(1)
    assert {name: tensor.read().shape for name, tensor in layer.items()} == {
        "attn_norm": (256,),
        "wq": (128, 256),
        "wk": (64, 256),
        "wv": (64, 256),
        "wo": (256, 128),
        "ffn_norm": (256,),
        "w_gate": (512, 256),
        "w_up": (512, 256),
        "w_down": (256, 512),
    }
    assert not np.array_equal(layer["wq"].read(), weights.layer(0)["wq"].read())


def test_values_are_those_of_transformers(make_checkpoint):
    from transformers import LlamaForCausalLM

    folder = make_checkpoint(tie_word_embeddings=False)
    theirs = LlamaForCausalLM.from_pretrained(folder).state_dict()
    config = load_config(folder)
    for name, ours in all_tensors(open_weights(folder), config).items():
        np.testing.assert_array_equal(ours.astype(np.float32), theirs[name].float().numpy(), err_msg=name)


def test_tied_head_is_the_embedding(make_checkpoint):
    folder = make_checkpoint()
    assert open_weights(folder).lm_head.name == EMBED
    assert open_weights(make_checkpoint(tie_word_embeddings=False)).lm_head.name == "lm_head.weight"


def test_a_head_that_differs_counts_though_config_ties_it(change_tensors):
    """transformers ties nothing then: the answers are those of the head that is in the file."""
    from transformers import LlamaForCausalLM

    folder = change_tensors(lambda tensors: tensors.update({"lm_head.weight": tensors[EMBED] * bf16(2)}))
    assert load_config(folder).tie_word_embeddings
    theirs = LlamaForCausalLM.from_pretrained(folder).lm_head.weight.detach().float().numpy()
    np.testing.assert_array_equal(open_weights(folder).lm_head.read().astype(np.float32), theirs)
    assert not np.array_equal(theirs, open_weights(folder).embed_table.table.read().astype(np.float32))


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.1.self_attn.k_norm.weight",
        "model.layers.0.post_feedforward_layernorm.weight",
        "model.layers.2.input_layernorm.weight",
        "lm_head.bias",
    ],
)
def test_a_tensor_that_would_not_be_computed_with_is_refused(change_tensors, name):
    folder = change_tensors(lambda tensors: tensors.update({name: np.ones(256, bf16)}))
    message = (
        rf"tensor {name} in .*model\.safetensors is none that config\.json asks for: answers would be made"
    )
    with pytest.raises(WeightsError, match=message):
        open_weights(folder)


def test_tensors_that_change_no_answer_may_be_there(change_tensors):
    tables = (
        f"model.layers.0.self_attn.rotary_emb.{name}" for name in ("inv_freq", "cos_cached", "sin_cached")
    )
    more = {name: np.ones(8, bf16) for name in (*tables, "rotary_emb.inv_freq", "v_head.summary.weight")}
    zeros = {"model.layers.0.self_attn.q_proj.bias": np.zeros(256, np.float32)}
    open_weights(change_tensors(lambda tensors: tensors.update(more | zeros)))


def test_rows_of_the_embedding(make_checkpoint):
    """In any order, one more than once, as the whole table has them."""
    rows = open_weights(make_checkpoint()).embed_table
    table = rows.table.read()
    assert rows[7].shape == (256,)
    np.testing.assert_array_equal(rows[7], table[7])
    ids = [511, 0, 3, 0, 511]
    assert rows[ids].dtype == bf16
    np.testing.assert_array_equal(rows[ids], table[ids])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("chunk_bytes", [512, 1, 10**9])
def test_tensors_are_read_in_chunks(make_checkpoint, monkeypatch, dtype, chunk_bytes):
    """A row at a time, also where a row is more than a chunk, or all at once: the same bits."""
    weights = open_weights(make_checkpoint(dtype=dtype))
    wanted = load_file(weights.final_norm.path)
    monkeypatch.setattr(tensors_module, "CHUNK_BYTES", chunk_bytes)
    for tensor in weights.layer(1).values():
        np.testing.assert_array_equal(tensor.read(), wanted[tensor.name].astype(bf16))
    part = np.empty((3, 256), bf16)
    weights.lm_head.rows_into(part, 200)
    np.testing.assert_array_equal(part, wanted[EMBED][200:203].astype(bf16))


def test_no_file_stays_mapped_or_open(make_checkpoint):
    folder = make_checkpoint()
    weights = open_weights(folder)
    weights.lm_head.read()
    assert str(folder) not in Path("/proc/self/maps").read_text()
    before = len(list(Path("/proc/self/fd").iterdir()))
    rows = weights.embed_table
    rows[5]
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    del rows
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_that_changes_while_it_is_used(damaged):
    weights = open_weights(damaged)
    rows, path = weights.embed_table, damaged / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(1000)
    for read in (weights.lm_head.read, lambda: rows[500], weights.layer(0)["wq"].read):
        with pytest.raises(
            WeightsError, match=r"cannot read tensor model\.\S+ from \S+: it ends at byte \d+; fetch"
        ):
            read()
    path.unlink()
    with pytest.raises(WeightsError, match=r"cannot read tensor .*: No such file or directory; fetch it"):
        weights.final_norm.read()


def bytes_read():
    """Of this process, by read calls, so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_files_are_read_ahead_until_that_is_closed(make_checkpoint):
    weights, threads = open_weights(make_checkpoint()), threading.active_count()
    size, before = weights.final_norm.path.stat().st_size, bytes_read()
    deadline = time.monotonic() + 120
    with weights.reading_ahead():
        while bytes_read() < before + size and time.monotonic() < deadline:
            time.sleep(0.001)
    assert bytes_read() >= before + size
    assert threading.active_count() == threads


def test_a_file_that_went_is_no_matter_for_reading_ahead(damaged):
    weights = open_weights(damaged)
    weights.final_norm.path.unlink()
    with weights.reading_ahead():
        pass


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_of_a_wider_type_are_rounded_to_bf16(change_tensors, dtype):
    name, values = "model.embed_tokens.weight", np.linspace(-3, 3, 512 * 256).astype(dtype).reshape(512, 256)
    rows = open_weights(change_tensors(lambda tensors: tensors.update({name: values}))).embed_table
    np.testing.assert_array_equal(rows[[5, 9]], values[[5, 9]].astype(bf16))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_wider_types_are_rounded_to_bf16(change_tensors, dtype):
    """As torch rounds them, which goes through float32."""
    import torch

    name, values = "model.norm.weight", np.linspace(-3, 3, 256).astype(dtype)
    weights = open_weights(change_tensors(lambda tensors: tensors.update({name: values})))
    theirs = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(weights.final_norm.read().astype(np.float32), theirs)


def test_a_value_beyond_bf16_is_refused_in_every_type(change_tensors):
    for value in (np.float32(3.4e38), np.float64(1e300)):
        values = np.full(256, value)
        weights = open_weights(
            change_tensors(lambda tensors, v=values: tensors.update({"model.norm.weight": v}))
        )
        with pytest.raises(WeightsError, match=r"holds \S+e\+\d+, and bf16, which is computed with, ends at"):
            weights.final_norm.read()


def test_missing_tensor(change_tensors):
    folder = change_tensors(lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    message = r"tensor model\.layers\.1\.mlp\.up_proj\.weight is missing .* with shape 512x256"
    with pytest.raises(WeightsError, match=message):
        open_weights(folder)


def test_missing_head_where_untied(damaged, checkpoints):
    checkpoints.edit_json(damaged / "config.json", tie_word_embeddings=False)
    with pytest.raises(WeightsError, match=r"tensor lm_head\.weight is missing .* shape 512x256"):
        open_weights(damaged)


def test_wrong_shape_names_both(change_tensors):
    name = "model.layers.0.self_attn.k_proj.weight"
    folder = change_tensors(lambda tensors: tensors.update({name: np.zeros((64, 256), bf16)}))
    message = rf"tensor {name} in .* has shape 64x256; config\.json implies 128x256"
    with pytest.raises(WeightsError, match=message):
        open_weights(folder)


def test_wrong_dtype_is_named(change_tensors):
    name = "model.embed_tokens.weight"
    folder = change_tensors(lambda tensors: tensors.update({name: np.zeros((512, 256), np.int8)}))
    with pytest.raises(WeightsError, match=rf"tensor {name} of shape 512x256 in .* has dtype I8; only BF16"):
        open_weights(folder)


@pytest.mark.parametrize("vocab_size", [512, 500, 450, 64])
def test_the_lm_head_in_partitions(make_checkpoint, vocab_size):
    """Rows of the table, then zeros, whatever was in the buffer before."""
    lm_head = dataclasses.replace(open_weights(make_checkpoint()).lm_head, shape=(vocab_size, 256))
    program: Any = SimpleNamespace(
        arguments={"lm_head_0": SimpleNamespace(shape=(64, 256), dtype=kernel_bf16)}
    )
    whole = np.full((512, 256), np.nan, bf16)
    statics: dict[str, Any] = lm_head_statics(program, lm_head)
    for part, fill in enumerate(statics.values()):
        fill(whole[part * 64 : part * 64 + 64])
    np.testing.assert_array_equal(whole[:vocab_size], lm_head.read())
    assert not whole[vocab_size:].any()


def test_names_of_a_layer_are_those_of_the_programs(make_checkpoint, programs_without_text):
    """So that a tensor finds its argument, and prefill and decode share it: under one name, in one shape."""
    config = load_config(make_checkpoint(head_dim=32))
    programs = programs_without_text(config.shape, 64)
    shapes = {
        name: (tensor.shape, bf16)
        for name, tensor in open_weights(make_checkpoint(head_dim=32)).layer(0).items()
    }
    for pair in (PREFILL_PROGRAMS, DECODE_PROGRAMS):
        weights = [
            argument
            for name in pair
            if has_layer_weights(programs[name])
            for argument in programs[name].arguments
            if argument.role is Role.WEIGHT
        ]
        assert {a.name: (a.shape, a.dtype.numpy) for a in weights} == shapes
    assert set(LAYER_TENSORS) == set(shapes)


def test_prefill_and_decode_share_a_layers_weights_and_nothing_else(make_checkpoint, programs_without_text):
    """Each under one name in one layer."""
    config = load_config(make_checkpoint())
    places: dict[str, dict[Any, set[Any]]] = {"prefill": {}, "decode": {}}
    for (bo_key, argument), place in SharedBufferNames(
        programs_without_text(config.shape, 64).values(), (0, 0)
    ).items():
        places["decode" if "gemv" in bo_key else "prefill"].setdefault(place, set()).add(
            (bo_key.rpartition("_L")[2], argument)
        )
    shared = places["prefill"].keys() & places["decode"].keys()
    wanted = [{(layer, name)} for layer in "01" for name in LAYER_TENSORS]
    for stage in places.values():
        assert sorted(map(list, (stage[place] for place in shared))) == sorted(map(list, wanted))
