"""Which files of a folder are read, and every way they can be wrong: strange, hostile, old or elsewhere."""

import json
import os
import resource
import shutil
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import load_config
from aerie.engine.errors import CheckpointError, ConfigError, WeightsError
from aerie.engine.weights import EMBED
from tests.engine.checkpoints import all_tensors, open_weights

bf16 = ml_dtypes.bfloat16


@pytest.fixture
def sharded(make_checkpoint, tmp_path):
    """A copy in several files, and what rewrites its index."""
    folder = shutil.copytree(make_checkpoint(shard="600KB"), tmp_path / "sharded")
    index = folder / "model.safetensors.index.json"

    def rewrite(change):
        content = json.loads(index.read_text())
        change(content["weight_map"])
        index.write_text(json.dumps({"weight_map": content["weight_map"]}))
        return folder

    return rewrite


def test_sharded_files_hold_the_same(make_checkpoint):
    whole, sharded = make_checkpoint(), make_checkpoint(shard="600KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    config = load_config(whole)
    one, many = all_tensors(open_weights(whole), config), all_tensors(open_weights(sharded), config)
    for name, tensor in one.items():
        np.testing.assert_array_equal(tensor, many[name], err_msg=name)


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 10217872\n"


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"],
)
def test_a_pointer_of_git_lfs_in_the_place_of_any_file(damaged, name):
    (damaged / name).write_text(POINTER)
    with pytest.raises(
        CheckpointError, match=rf"{name} is a Git LFS pointer, not the file: run `git lfs pull` in"
    ):
        open_checkpoint(damaged)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        (
            "pytorch_model.bin",
            "a pickle can run code and is never read: fetch the safetensors of the same model",
        ),
        ("model.ggml", "GGML, which came before GGUF, is not read: fetch the model as GGUF or safetensors"),
        ("adapter_model.safetensors", "an adapter is no model: merge it into its base model"),
        ("consolidated.safetensors", "this is the format of Meta or Mistral: fetch config.json"),
        ("model-00001-of-00002.safetensors", "parts are found by model.safetensors.index.json: fetch it too"),
        ("tf_model.h5", "that format is not read: fetch the safetensors or a GGUF file of the same model"),
        ("openvino_model.bin", "this is a model of OpenVINO, Diffusers or ONNX Runtime, which is not read"),
        ("onnx", "that format is not read: fetch the safetensors or a GGUF file"),
        ("model.q4nx", "that format is not read: fetch the safetensors or a GGUF file"),
        ("weights.00.npz", "this is MLX's older format, which is not read: fetch safetensors or a GGUF file"),
        ("weights.safetensors", "if it is the whole model, rename it to model.safetensors"),
    ],
)
def test_what_else_is_there_is_named(damaged, name, advice):
    """Where there is no model.safetensors, and where there is nothing else."""
    (damaged / "model.safetensors").rename(damaged / name)
    with pytest.raises(WeightsError, match=rf"there is no .*model\.safetensors; there is {name}: {advice}"):
        open_weights(damaged)
    (damaged / "config.json").unlink()
    with pytest.raises(ConfigError, match=rf"there is no .*config\.json; there is {name}: {advice}"):
        open_weights(damaged)


def _header(entry, data=b"\0" * 512):
    text = entry if isinstance(entry, bytes) else json.dumps(entry).encode()
    return len(text).to_bytes(8, "little") + text + data


WHOLE = {"dtype": "BF16", "shape": [256], "data_offsets": [0, 512]}


@pytest.mark.parametrize(
    "content",
    [
        (1 << 63).to_bytes(8, "little") + b"{}",
        ((1 << 64) - 1).to_bytes(8, "little"),
        (99 << 20).to_bytes(8, "little") + b"{}",
        _header(b"[" * 99999),
        _header(b'{"a":' * 9999),
        _header([]),
        _header(b"null"),
        _header({"model.norm.weight": {**WHOLE, "data_offsets": [0, 1 << 62]}}),
        _header({"model.norm.weight": {**WHOLE, "data_offsets": [-512, 0]}}),
        _header({"model.norm.weight": {**WHOLE, "data_offsets": [512, 0]}}),
        _header({"model.norm.weight": {**WHOLE, "data_offsets": [0]}}),
        _header({"model.norm.weight": {**WHOLE, "dtype": "F1"}}),
        _header({"model.norm.weight": {**WHOLE, "shape": [-256]}}),
        _header({"model.norm.weight": {**WHOLE, "shape": [1 << 40, 1 << 40]}}),
        _header({"model.norm.weight": {**WHOLE, "shape": 256}}),
        _header({"model.norm.weight": {**WHOLE, "shape": [10**18, 0]}}),
        _header({"model.norm.weight": WHOLE, "model.other.weight": WHOLE}),
        _header({"model.norm.weight": WHOLE}, b"\0" * 9),
        _header({"model.norm.weight": WHOLE}, b"\0" * 1024),
        _header({"\x1b[2J\n\ud800": WHOLE}),
        _header({"n" * 9999: WHOLE}),
    ],
    ids=range(21),
)
def test_a_hostile_file_is_refused_before_anything_is_made_of_it(damaged, content):
    """In one line that can be shown, in little memory and time."""
    (damaged / "model.safetensors").write_bytes(content)
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WeightsError) as error:
        open_weights(damaged)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 2100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"]
)
def test_what_is_no_file_is_not_waited_for(damaged, name):
    """A pipe that nobody writes to, a device without end."""
    for put in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir):
        (damaged / name).unlink(missing_ok=True)
        put(damaged / name)
        with pytest.raises(CheckpointError, match=rf"{name} is no file; fetch the checkpoint again"):
            open_checkpoint(damaged)
        (damaged / name).rmdir() if put is Path.mkdir else (damaged / name).unlink()


def test_links_are_followed_as_the_cache_of_hugging_face_has_them(damaged):
    blobs = damaged.parent / "blobs"
    blobs.mkdir()
    for file in [*damaged.iterdir()]:
        file.rename(blobs / file.name)
        file.symlink_to(Path("..") / "blobs" / file.name)
    open_checkpoint(damaged)


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


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.update({"model.norm.weight": files[EMBED]}),
        lambda files: files.pop("model.norm.weight"),
        lambda files: files.update({"model.layers.7.gone.weight": files[EMBED]}),
    ],
    ids=["names another shard", "lacks a tensor", "has one more"],
)
def test_tensors_are_found_whatever_the_index_says_of_them(sharded, make_checkpoint, change):
    """As transformers, which reads every file that the index names."""
    folder, config = sharded(change), load_config(make_checkpoint())
    wanted = all_tensors(open_weights(make_checkpoint()), config)
    for name, tensor in all_tensors(open_weights(folder), config).items():
        np.testing.assert_array_equal(tensor, wanted[name], err_msg=name)


def test_a_file_that_the_index_does_not_name_is_noted(sharded):
    last = max(path.name for path in sharded(lambda files: None).glob("*.safetensors"))

    def forget(files):
        for name in [name for name, file in files.items() if file == last]:
            del files[name]

    message = rf"is missing from the checkpoint; .*: it is in {last}, which model.safetensors.index.json does"
    with pytest.raises(WeightsError, match=message):
        open_weights(sharded(forget))


def test_a_tensor_in_two_files_is_ambiguous(sharded):
    folder = sharded(lambda files: None)
    files = sorted(folder.glob("*.safetensors"))
    save_file({**load_file(files[0]), **load_file(files[1])}, files[0])
    with pytest.raises(
        WeightsError, match=r"tensor \S+ is in .*00001-of.* and in .*00002-of.*: which of them"
    ):
        open_weights(folder)


@pytest.mark.parametrize("named", ["../{}", "/{}", "a/../../{}", "", ".", "..", "a\0b"], ids=repr)
def test_an_index_names_files_of_its_folder_alone(sharded, named):
    """The file is there, a whole one, and is not looked at."""
    folder = sharded(lambda files: None)
    shard = sorted(folder.glob("*.safetensors"))[0].name
    shutil.copy(folder / shard, folder.parent)
    name = named.format(f"{folder.parent}/{shard}")[1:] if named[:1] == "/" else named.format(shard)
    with pytest.raises(
        WeightsError, match=r"names the file .*, which is not in the folder of the checkpoint"
    ):
        open_weights(sharded(lambda files: files.update({EMBED: name})))


@pytest.mark.parametrize(
    "content",
    [
        '{"weights": 1}',
        '{"weight_map": [1]}',
        '{"weight_map": {"a": 7}}',
        "[]",
        "",
        "\xff",
        "[" * 99999,
        '{"weight_map": 1' + "0" * 5000,
    ],
)
def test_what_is_no_index(sharded, content):
    folder = sharded(lambda files: None)
    (folder / "model.safetensors.index.json").write_text(content, encoding="latin-1")
    with pytest.raises(WeightsError, match=r"index\.json.* fetch it again$"):
        open_weights(folder)


@pytest.mark.parametrize("index", ["of other files", "of this one", "damaged"])
def test_the_single_file_counts_and_the_index_beside_it_is_noted(damaged, make_checkpoint, index):
    """As in transformers; the other files have other weights."""
    old = {"of other files": "old.safetensors", "of this one": "model.safetensors", "damaged": 7}[index]
    save_file({EMBED: np.zeros((512, 256), bf16)}, damaged / "old.safetensors")
    (damaged / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {EMBED: old}}))
    weights = open_weights(damaged)
    np.testing.assert_array_equal(
        weights.embed_table[[3, 5]], open_weights(make_checkpoint()).embed_table[[3, 5]]
    )
    assert bool(weights.notes) == (index != "of this one")
    assert all("model.safetensors.index.json beside it names" in note for note in weights.notes)


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_names_without_the_models_own_are_those_of_transformers(make_checkpoint, tmp_path, family, tied):
    """As models for embeddings are published, by their own class; a head may be `model.lm_head`."""
    import transformers

    whole = make_checkpoint(family=family, tie_word_embeddings=tied)
    folder = shutil.copytree(whole, tmp_path / "bare")
    found = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model.").replace("lm_head", "model.lm_head"): found[name] for name in found}
    save_file(bare, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [f"{family}Model"]}))
    theirs = getattr(transformers, f"{family}ForCausalLM").from_pretrained(folder).state_dict()
    ours = open_weights(folder)
    for tensor in (*ours.layer(1).values(), ours.final_norm, ours.lm_head, ours.embed_table.table):
        name = tensor.name if tensor.name in theirs else f"model.{tensor.name}"
        name = "lm_head.weight" if "lm_head" in name else name
        np.testing.assert_array_equal(tensor.read().astype(np.float32), theirs[name].float().numpy())


def test_a_model_without_a_head_has_nothing_to_say(damaged, checkpoints, change_tensors):
    def bare(tensors):
        for name in [*tensors]:
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    checkpoints.edit_json(damaged / "config.json", tie_word_embeddings=False, architectures=["LlamaModel"])
    with pytest.raises(
        WeightsError, match=r"tensor lm_head\.weight is missing .*: it was saved without its hea"
    ):
        open_weights(change_tensors(bare))


def test_a_name_twice_and_a_name_of_others(change_tensors):
    folder = change_tensors(lambda tensors: tensors.update({"norm.weight": tensors["model.norm.weight"]}))
    with pytest.raises(
        WeightsError, match=r"tensors \S+ and \S+ are both model\.norm\.weight: which of them"
    ):
        open_weights(folder)
    name = "base_model.model.model.norm.weight"
    folder = change_tensors(
        lambda tensors: [tensors.pop("norm.weight"), tensors.update({name: tensors.pop("model.norm.weight")})]
    )
    with pytest.raises(WeightsError, match=rf"norm\.weight is missing .*: the files call one {name}, which"):
        open_weights(folder)
