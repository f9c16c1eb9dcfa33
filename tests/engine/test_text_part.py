"""The text part of Gemma 3 files that read images too: the same model as that of text alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import load_config
from aerie.engine.errors import ConfigError
from aerie.verify.reference import Reference

GEMMA: dict[str, Any] = {
    "family": "Gemma3",
    "num_hidden_layers": 2,
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "hidden_activation": "gelu_pytorch_tanh",
    "pad_token_id": 0,
}


@pytest.fixture
def text(make_checkpoint: Any) -> Path:
    folder: Path = make_checkpoint(**GEMMA)
    return folder


@pytest.fixture
def with_images(text: Path, tmp_path: Path) -> Any:
    """with_images(prefix) -> the same as part of a model with tensors that read images."""

    def make(prefix: str) -> Path:
        folder = shutil.copytree(text, tmp_path / "images")
        entries = json.loads((folder / "config.json").read_text())
        whole = {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "eos_token_id": entries["eos_token_id"],
            "vision_config": {"model_type": "siglip_vision_model"},
            "text_config": {name: value for name, value in entries.items() if name != "architectures"},
        }
        (folder / "config.json").write_text(json.dumps(whole))
        tensors = load_file(folder / "model.safetensors")
        norm = tensors["model.norm.weight"]
        renamed = {f"{prefix}{name.removeprefix('model.')}": tensor for name, tensor in tensors.items()}
        outer = "model." if prefix.startswith("model.") else ""
        images = {f"{outer}vision_tower.norm": norm, f"{outer}multi_modal_projector.norm": norm}
        save_file({**renamed, **images}, folder / "model.safetensors", {"format": "pt"})
        return folder

    return make


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_it_is_the_model_of_text(text: Path, with_images: Any, prefix: str) -> None:
    folder = with_images(prefix)
    assert load_config(folder) == load_config(text)
    theirs, ours = open_checkpoint(text), open_checkpoint(folder)
    assert ours.weights.notes == (
        "note: 2 tensors (1.0 KiB) that read images are left out: only text is read",
    )
    for (name, tensor), (other, expected) in zip(ours.weights.named(), theirs.weights.named(), strict=True):
        assert name == other
        assert tensor.read().tobytes() == expected.read().tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_reference_reads_it_too(text: Path, with_images: Any, prefix: str) -> None:
    """transformers' model of text, with the tensors of the whole."""
    tokens = [3, 9, 27, 81, 100, 4]
    ours, theirs = (
        Reference.open(folder, "float32").logits(tokens) for folder in (with_images(prefix), text)
    )
    assert np.array_equal(ours, theirs)


def test_what_such_files_leave_out_is_transformers_default(with_images: Any) -> None:
    folder = with_images("language_model.model.")
    entries = json.loads((folder / "config.json").read_text())
    for name in ("vocab_size", "num_attention_heads", "tie_word_embeddings"):
        entries["text_config"].pop(name, None)
    (folder / "config.json").write_text(json.dumps(entries))
    config = load_config(folder)
    assert (config.vocab_size, config.num_attention_heads, config.tie_word_embeddings) == (262208, 8, True)


ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6}
GROWING: dict[str, Any] = {
    **{"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128},
    "llama_4_scaling_beta": 0.1,
}


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("mistral", {"family": "Mistral", "sliding_window": None, "rope_parameters": ROPE}),
        ("ministral3", {"family": "Ministral3", "pad_token_id": 0, "rope_parameters": GROWING}),
    ],
)
def test_mistral_small_and_ministral_3(
    make_checkpoint: Any, tmp_path: Path, kind: str, shape: dict[str, Any]
) -> None:
    """Of files that read images too, the text part is read, as a Mistral or a Ministral 3."""
    text = make_checkpoint(**shape)
    entries = json.loads((text / "config.json").read_text())
    assert entries["model_type"] == kind
    whole = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "eos_token_id": entries["eos_token_id"],
        "vision_config": {"model_type": "pixtral"},
        "text_config": {name: value for name, value in entries.items() if name != "architectures"},
    }
    folder = shutil.copytree(text, tmp_path / "images")
    (folder / "config.json").write_text(json.dumps(whole))
    tensors = load_file(folder / "model.safetensors")
    renamed = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    images = {"vision_tower.ln_pre.weight": tensors["model.norm.weight"]}
    save_file({**renamed, **images}, folder / "model.safetensors", {"format": "pt"})
    assert load_config(folder) == load_config(text)
    ours, theirs = (open_checkpoint(each).weights.named() for each in (folder, text))
    for (name, tensor), (other, expected) in zip(ours, theirs, strict=True):
        assert (name, tensor.read().tobytes()) == (other, expected.read().tobytes())


@pytest.mark.parametrize("part", [3, {"model_type": "llama"}, {"model_type": [1]}])
def test_another_text_part_is_refused_by_name(with_images: Any, part: Any) -> None:
    folder = with_images("language_model.model.")
    entries = json.loads((folder / "config.json").read_text()) | {"text_config": part}
    (folder / "config.json").write_text(json.dumps(entries))
    with pytest.raises(ConfigError, match="the architecture is Gemma3ForConditionalGeneration"):
        load_config(folder)
