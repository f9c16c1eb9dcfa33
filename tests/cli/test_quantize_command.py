"""`aerie quantize` and `aerie inspect`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file

from aerie.cli import commands
from aerie.cli.checkpoints import BUILT_IN_MODELS
from aerie.cli.command_line import main
from aerie.engine import gguf_file_writer as file_writer
from aerie.engine import gguf_tokenizer_writer as tokenizer_writer
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.errors import CheckpointError, WeightsError
from aerie.engine.gguf_file_writer import write_gguf
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.quantised import QuantisedTensor
from aerie.engine.reporter import Reporter, no_progress
from aerie.engine.variant_set import ROWS
from aerie.runtime import select_backend
from aerie.serve.model_spec import ModelSpec
from tests import quantised_folders
from tests.engine.checkpoints import LLAMA3_ROPE, edit_json, write_checkpoint

TEXTS = ("Hello  World 123's\n\n é", "<|eos|>", "naïve 日本語 🙂\t\tx")
OURS = {"q4_1": "q4", "q8_0": "q8", "bf16": "bf16"}


QWEN35: dict[str, Any] = {
    "family": "Qwen3_5",
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "pad_token_id": 0,
}
"""Four heads of values for each of keys, which files have in another order."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoints of each architecture that is written, with the rules of RoPE."""
    folder = tmp_path_factory.mktemp("plain")
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    return {
        "llama": write_checkpoint(folder / "llama", rope_parameters=LLAMA3_ROPE, hidden_size=288),
        "qwen2": write_checkpoint(
            folder / "qwen2", family="Qwen2", rope_parameters=plain, tie_word_embeddings=False
        ),
        "granite": write_checkpoint(
            folder / "granite",
            family="Granite",
            rope_parameters=plain,
            embedding_multiplier=12.0,
            attention_multiplier=0.09,
            residual_multiplier=0.22,
            logits_scaling=8.0,
        ),
        "qwen3": write_checkpoint(
            folder / "qwen3",
            family="Qwen3",
            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
        ),
        "lfm2": write_checkpoint(
            folder / "lfm2",
            family="Lfm2",
            rope_parameters=plain,
            num_hidden_layers=3,
            layer_types=["conv", "full_attention", "conv"],
            block_auto_adjust_ff_dim=False,
            pad_token_id=0,
        ),
        "qwen35": write_checkpoint(folder / "qwen35", **QWEN35),
    }


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "granite", "lfm2", "qwen35"])
@pytest.mark.parametrize("form", file_writer.FORMATS)
def test_a_file_is_the_model(name, form, checkpoints, tmp_path):
    """Config, tokens and weights are those of the checkpoint; in the formats that load quantises to, bit by
    bit those that it makes."""
    source, out = checkpoints[name], tmp_path / "x.gguf"
    assert main(["quantize", str(source), str(out), "--format", form]) == 0
    given = open_checkpoint(source, OURS.get(form, "q4"))
    made = open_checkpoint(out, "bf16" if form == "bf16" else "q4")
    assert made.config == given.config
    assert [made.tokenizer.encode(text) for text in TEXTS] == [given.tokenizer.encode(text) for text in TEXTS]
    assert made.tokenizer.chat_template == given.tokenizer.chat_template
    kinds = set()
    for (ours, tensor), (theirs, other) in zip(given.weights.named(), made.weights.named(), strict=True):
        assert (ours, tensor.kind) == (theirs, other.kind)
        kinds.add(other.dtype)
        if form in OURS or tensor.kind != "q4":
            np.testing.assert_array_equal(tensor.read().view(np.uint16), other.read().view(np.uint16))
    small = {"BF16"} if name == "qwen35" else set()  # what decays and rates are made of
    assert kinds == {"F32", file_writer.FORMATS[form].head, form.upper(), *small}


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_what_llama_cpp_reads_is_there(name, checkpoints, tmp_path):
    """By its keys, without our own copy of the tokenizer, tokens are the same; queries are permuted."""
    out = tmp_path / "x.gguf"
    write_gguf(out, open_checkpoint(checkpoints[name]), "q8_0", no_progress)
    reader = gguf.GGUFReader(out)
    metadata = {key: reader.fields[key].contents() for key in ("general.architecture", "general.file_type")}
    assert metadata == {"general.architecture": name, "general.file_type": 7}
    keys = {key: field.contents() for key, field in reader.fields.items() if key.startswith("tokenizer")}
    assert keys.pop("tokenizer.huggingface.json")
    assert (keys["tokenizer.ggml.pre"], keys["tokenizer.ggml.model"]) == ("gpt-2", "gpt2")
    from aerie.engine.gguf.tokenizer import tokenizer_from_metadata

    backend, _ = tokenizer_from_metadata(keys)
    tokenizer = open_checkpoint(checkpoints[name]).tokenizer
    assert [backend.encode(text).ids for text in TEXTS[::2]] == [
        tokenizer.encode(text) for text in TEXTS[::2]
    ]
    stored = load_file(checkpoints[name] / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    values = stored.astype(np.float32)
    if name == "llama":
        values = values.reshape(4, 2, 32, -1).swapaxes(1, 2).reshape(values.shape)
    tensor = next(each for each in reader.tensors if each.name == "blk.0.attn_q.weight")
    np.testing.assert_array_equal(tensor.data, gguf.quants.quantize(values, Type.Q8_0))


def test_a_file_that_is_there_stays(checkpoints, tmp_path, capsys):
    out = tmp_path / "x.gguf"
    out.write_text("mine")
    assert main(["quantize", str(checkpoints["qwen3"]), str(out)]) == 2
    assert "x.gguf is there already; name another file, or replace it with --force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["quantize", str(checkpoints["qwen3"]), str(out), "--force"]) == 0
    assert out.read_bytes()[:4] == b"GGUF"
    assert [*tmp_path.iterdir()] == [out]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", "is a folder; name the file to write, such as"),
        ("no/x.gguf", "there is no folder .*no for x.gguf"),
    ],
)
def test_places_that_are_none(place, message, checkpoints, tmp_path, capsys):
    assert main(["quantize", str(checkpoints["qwen3"]), str(tmp_path / place)]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_nothing_is_left_where_writing_fails(checkpoints, tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_writer, "_data", fail)
    assert main(["quantize", str(checkpoints["qwen3"]), str(tmp_path / "x.gguf")]) == 2
    assert "x.gguf (No space left on device); name another place" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_models_that_are_not_written(checkpoints, tmp_path, monkeypatch):
    written = tmp_path / "x.gguf"
    write_gguf(written, open_checkpoint(checkpoints["qwen3"]), "q4_0", no_progress)

    def refused(error, message, source):
        with pytest.raises(error, match=message):
            write_gguf(tmp_path / "y.gguf", open_checkpoint(source), "q4_0", no_progress)

    refused(CheckpointError, r"is quantised already \(Q8_0\); quantising it again would lose more", written)
    refused(
        CheckpointError,
        "is not written as GGUF; llama, granite, lfm2, olmo2, qwen2, qwen3, qwen35, smollm3 are",
        BUILT_IN_MODELS["demo-diffusion"],
    )
    turned = shutil.copytree(checkpoints["qwen3"], tmp_path / "turned")
    factors = [1.0] * 32
    rule = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": factors, "long_factor": factors}
    edit_json(turned / "config.json", rope_parameters=rule | {"original_max_position_embeddings": 64})
    refused(CheckpointError, "the RoPE rule longrope is not written as GGUF; linear and llama3 are", turned)
    other = write_checkpoint(
        tmp_path / "smollm3", family="SmolLM3", num_hidden_layers=4, no_rope_layer_interval=2, pad_token_id=0
    )
    refused(
        CheckpointError,
        r"layers \[1, 3\] of 4 have no RoPE, and a GGUF file of the kind smollm3 has none in",
        other,
    )
    kinds = ["full_attention", "linear_attention", "full_attention"]
    refused(
        CheckpointError,
        r"layers \[0, 2\] of 3 have attention, and a GGUF file of the kind qwen35 has it in layers at one",
        write_checkpoint(tmp_path / "qwen35", **QWEN35 | {"layer_types": kinds}),
    )
    mixed = shutil.copytree(checkpoints["qwen3"], tmp_path / "mixed")
    layers = json.loads((mixed / "config.json").read_text())["num_hidden_layers"]
    kinds = ["full_attention"] * (layers - 1) + ["sliding_attention"]
    edit_json(mixed / "config.json", use_sliding_window=True, sliding_window=32, layer_types=kinds)
    refused(
        CheckpointError,
        rf"layers \[{layers - 1}\] of {layers} have a sliding_window, and a GGUF file has one for all layers",
        mixed,
    )
    damaged = shutil.copytree(checkpoints["qwen3"], tmp_path / "damaged")
    data = bytearray((damaged / "model.safetensors").read_bytes())
    data[-(512 * 256 * 2) :] = b"\xff" * (512 * 256 * 2)
    (damaged / "model.safetensors").write_bytes(data)
    refused(WeightsError, "holds values that are no finite numbers, in rows from", damaged)
    monkeypatch.setattr(tokenizer_writer, "GROUPS", ())
    refused(
        CheckpointError,
        "the tokenizer cuts text as none of those that GGUF has a name for",
        turned.parent / "damaged",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: whole["model"].update(byte_fallback=True), "is no byte-level BPE"),
        (lambda whole: whole["model"]["vocab"].update(x=9999), "has the token 9999, and the model has 512"),
    ],
)
def test_tokenizers_that_are_not_written(change, message, checkpoints, tmp_path):
    folder = shutil.copytree(checkpoints["qwen3"], tmp_path / "x")
    whole = json.loads((folder / "tokenizer.json").read_text())
    change(whole)
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(CheckpointError, match=f"the tokenizer {message}"):
        write_gguf(tmp_path / "y.gguf", open_checkpoint(folder), "q4_0", no_progress)


def test_every_tensor_and_what_it_loses(checkpoints, tmp_path, capsys):
    out = tmp_path / "x.gguf"
    write_gguf(out, open_checkpoint(checkpoints["llama"]), "q4_1", no_progress)
    assert main(["inspect", str(out), "--weights", "q4", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    tensors = {each["name"]: each for each in about["tensors"]}
    query = tensors["model.layers.0.self_attn.q_proj.weight"]
    assert (query["stored"], query["kind"], query["shape"]) == ("Q4_1", "q4", [256, 288])
    assert query["stored_bytes"] == 256 * 288 // 32 * 20
    assert query["device_bytes"] == 8 * 2 * 5120
    assert 2e-3 < query["loss"] < 8e-3
    assert [(each["stored"], each["kind"]) for each in about["kinds"]] == [
        ("Q4_1", "q4"),
        ("Q8_0", "q8"),
        ("F32", "bf16"),
    ]
    assert about["kinds"][0]["tensors"] == 14
    assert about["stored_bytes"] == sum(each["stored_bytes"] for each in about["tensors"])
    assert about["kinds"][0]["loss"] <= about["kinds"][0]["largest_loss"]
    assert main(["inspect", str(out), "--weights", "bf16"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"q_proj\.weight +256x288 +Q4_1 +bf16 +45\.0 KiB +144\.0 KiB +0\.1\d\d %", shown)
    assert re.search(r"\nall +\d+ ", shown)


def test_the_loss_is_that_of_loops(tmp_path, capsys):
    """Of one matrix, from the values that its tool stored, to those that blocks hold."""
    from aerie.engine.weight_files import find_tensors
    from aerie.engine.weight_report import _loss

    stored = quantised_folders.awq()
    named = {f"m.{name}": array for name, array in stored.tensors.items()}
    quantised_folders.write(tmp_path, named, quantised_folders.CONFIGS["awq"])
    tensor = find_tensors(tmp_path).tensors["m.weight"]
    assert isinstance(tensor, QuantisedTensor)
    error = tensor.to_bf16().astype(float) - stored.values
    assert _loss(tensor) == pytest.approx(np.sqrt((error**2).mean() / (stored.values**2).mean()), rel=1e-4)
    assert tensor.stored_bytes == sum(array.nbytes for array in stored.tensors.values())


@pytest.mark.parametrize(("kind", "head"), [("q4", "q8"), ("q8", "q8"), ("bf16", "bf16"), ("auto", "bf16")])
def test_compile_makes_the_programs_of_the_kind(kind, head, monkeypatch):
    found = []
    monkeypatch.setattr(
        commands, "compile_programs", lambda config, *_, **__: found.append(config.weight_kinds)
    )
    assert main(["compile", "--model", "demo", "--backend", "virtual", "--weights", kind]) == 0
    (kinds,) = found
    assert (kinds.name("lm_head_gemv"), kinds.name("o")) == (
        f"lm_head_gemv_{head}".removesuffix("_bf16"),
        "o" if head == "bf16" else f"o_{kind}",
    )


def test_a_draft_model_has_weights_of_the_same_kind(monkeypatch):
    found = []
    monkeypatch.setattr(
        commands, "compile_programs", lambda config, *_, **__: found.append(config.weight_kinds.head)
    )
    words = ["compile", "--model", "demo", "--draft", "demo-drafter", "--backend", "virtual"]
    assert main([*words, "--weights", "q4"]) == 0
    assert found == ["q8", "q8", "q8"]  # the model's programs in rows and as the guide's, the drafter's
    model = open_checkpoint(BUILT_IN_MODELS["demo"], "q4")
    drafter = commands.find_draft_model("demo-drafter", model)
    assert drafter
    assert drafter.config.weight_kinds.layers[0] == model.config.weight_kinds.layers[0]
    options = RuntimeOptions(None, select_backend("virtual"), Path(), weights="q4")
    assert commands.draft_model_options(options).weights == "q4"


def test_a_server_counts_the_memory_of_the_kind(tmp_path):
    def memory(kind, draft=None):
        options = RuntimeOptions(None, select_backend("virtual"), tmp_path, decode=ROWS, weights=kind)
        return ModelSpec("demo", options, Reporter(), draft, memory_limit=1 << 30).memory_bytes()

    assert memory("q4") < memory("q8") < memory("bf16") == memory("auto")
    drafter = {kind: memory(kind, "demo-drafter") - memory(kind) for kind in ("q4", "bf16")}
    assert 0 < drafter["q4"] < drafter["bf16"]


def test_export_of_quantised_weights(tmp_path, capsys):
    folder = shutil.copytree(BUILT_IN_MODELS["demo-diffusion"], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"quantization_config": quantised_folders.CONFIGS["gptq"]})
    )
    assert main(["export", "--model", str(folder), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: --model {folder} has weights quantised with gptq, and the static form reads bf16 alone, by "
        "the names of the unquantised checkpoint: give that one"
    )
