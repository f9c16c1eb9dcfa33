"""Weights from safetensors: layouts, conversions, and every way a checkpoint can be wrong."""

import json
import shutil
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from llama32_1b.config import load_config
from llama32_1b.errors import WeightsError
from llama32_1b.model import _lm_head_statics, _transposed
from llama32_1b.weights import Weights, expected_shapes

bf16 = ml_dtypes.bfloat16


def open_weights(folder):
    return Weights(folder, load_config(folder))


def all_tensors(weights, config):
    names = [name for name in expected_shapes(config) if name != "lm_head.weight"]
    return {name: weights._read(name) for name in names} | {"lm_head.weight": weights.lm_head}


@pytest.fixture
def change_tensors(damaged):
    """Rewrite the checkpoint's one file after `change(tensors)`."""

    def rewrite(change):
        tensors = load_file(damaged / "model.safetensors")
        change(tensors)
        save_file(tensors, damaged / "model.safetensors", {"format": "pt"})
        return damaged

    return rewrite


def test_layer_has_hugging_face_layout(make_checkpoint):
    weights = open_weights(make_checkpoint(head_dim=32))
    layer = weights.layer(1)
    assert layer.attn_norm.shape == layer.ffn_norm.shape == (256,)
    assert layer.wq.shape == (128, 256)
    assert layer.wk.shape == layer.wv.shape == (64, 256)
    assert layer.wo.shape == (256, 128)
    assert layer.w_gate.shape == layer.w_up.shape == (512, 256)
    assert layer.w_down.shape == (256, 512)
    assert not np.array_equal(layer.wq, weights.layer(0).wq)


def test_values_are_those_of_transformers(make_checkpoint):
    from transformers import LlamaForCausalLM

    folder = make_checkpoint(tie_word_embeddings=False)
    theirs = LlamaForCausalLM.from_pretrained(folder).state_dict()
    config = load_config(folder)
    for name, ours in all_tensors(open_weights(folder), config).items():
        np.testing.assert_array_equal(ours.astype(np.float32), theirs[name].float().numpy(), err_msg=name)


def test_tied_head_is_the_embedding(make_checkpoint):
    folder = make_checkpoint()
    table = all_tensors(open_weights(folder), load_config(folder))["model.embed_tokens.weight"]
    np.testing.assert_array_equal(open_weights(folder).lm_head, table)
    untied = open_weights(make_checkpoint(tie_word_embeddings=False))
    assert not np.array_equal(untied.lm_head, untied._read("model.embed_tokens.weight"))


def test_rows_of_the_embedding(make_checkpoint):
    """In any order, one more than once, as the whole table has them."""
    weights = open_weights(make_checkpoint())
    table, rows = weights._read("model.embed_tokens.weight"), weights.embed_table
    assert rows[7].shape == (256,)
    np.testing.assert_array_equal(rows[7], table[7])
    ids = [511, 0, 3, 0, 511]
    assert rows[ids].dtype == bf16
    np.testing.assert_array_equal(rows[ids], table[ids])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_of_a_wider_type_are_rounded_to_bf16(change_tensors, dtype):
    name, values = "model.embed_tokens.weight", np.linspace(-3, 3, 512 * 256).astype(dtype).reshape(512, 256)
    rows = open_weights(change_tensors(lambda tensors: tensors.update({name: values}))).embed_table
    np.testing.assert_array_equal(rows[[5, 9]], values[[5, 9]].astype(bf16))


def test_transposing_is_exact():
    for shape in ((256, 128), (24, 40), (7, 3)):
        matrix = np.arange(np.prod(shape)).astype(bf16).reshape(shape)
        transposed = _transposed(matrix)
        assert transposed.flags.c_contiguous
        np.testing.assert_array_equal(transposed, matrix.T)


def test_sharded_files_hold_the_same(make_checkpoint):
    whole, sharded = make_checkpoint(), make_checkpoint(shard="600KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    config = load_config(whole)
    one, many = all_tensors(open_weights(whole), config), all_tensors(open_weights(sharded), config)
    for name, tensor in one.items():
        np.testing.assert_array_equal(tensor, many[name], err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_wider_types_are_rounded_to_bf16(change_tensors, dtype):
    name, values = "model.norm.weight", np.linspace(-3, 3, 256).astype(dtype)
    weights = open_weights(change_tensors(lambda tensors: tensors.update({name: values})))
    np.testing.assert_array_equal(weights.final_norm, values.astype(bf16))


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


def test_missing_file(damaged):
    (damaged / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"there is no .*model\.safetensors; a checkpoint needs"):
        open_weights(damaged)


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_truncated_file(damaged, kept):
    path = damaged / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(WeightsError, match=r"model\.safetensors is truncated or damaged \(.*\); fetch it"):
        open_weights(damaged)


def test_missing_shard(make_checkpoint, tmp_path):
    folder = shutil.copytree(make_checkpoint(shard="600KB"), tmp_path / "sharded")
    sorted(folder.glob("*.safetensors"))[1].unlink()
    with pytest.raises(WeightsError, match=r"there is no .*model-00002-of-.*\.safetensors"):
        open_weights(folder)


def test_index_that_promises_too_much(make_checkpoint, tmp_path):
    folder = shutil.copytree(make_checkpoint(shard="600KB"), tmp_path / "sharded")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    files = content["weight_map"]
    files["model.norm.weight"] = files["model.embed_tokens.weight"]
    index.write_text(json.dumps(content))
    with pytest.raises(WeightsError, match=r"tensor model\.norm\.weight is missing from the checkpoint"):
        open_weights(folder)
    index.write_text('{"weights": 1}')
    with pytest.raises(WeightsError, match="is not a safetensors index"):
        open_weights(folder)


@pytest.mark.parametrize(("vocab_size", "copied"), [(1024, []), (1000, ["lm_head_7"])])
def test_the_lm_head_is_cut_without_copying(vocab_size, copied):
    """But for the partition that the vocabulary does not fill."""
    table = np.ones((vocab_size, 64), bf16)
    rows = 128
    program = SimpleNamespace(arguments={"lm_head_0": SimpleNamespace(shape=(rows, 64))})
    parts = _lm_head_statics(program, table)
    assert [name for name, part in parts.items() if not np.shares_memory(part, table)] == copied
    whole = np.concatenate(list(parts.values())).astype(np.float32)
    assert whole.shape == (1024, 64)
    assert (whole[:vocab_size] == 1).all()
    assert not whole[vocab_size:].any()
