"""Tiny embedding models and rerankers, saved as published ones are, and their vectors and scores by
transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from aerie.cli.checkpoints import DEMO_FOLDER
from tests.engine.checkpoints import edit_json, write_checkpoint

OLD, NEW = "sentence_transformers.models.", "sentence_transformers.base.modules."
PROMPTS = {"query": "Instruct: Find passages\nQuery: ", "document": ""}
TEXTS = ("Oslo", "The capital of France is Paris.", "What is the capital of Spain? " * 5)


def write_modules(folder: Path, *kinds: str) -> None:
    """modules.json with these classes, each in a folder that is named by its number and its class."""
    names = [kind.rpartition(".")[2] for kind in kinds]
    paths = ["", *(f"{number}_{name}" for number, name in enumerate(names) if number)]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


def write_entries(folder: Path, name: str, **entries: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(entries))


def write_embedding_files(folder: Path, pooling: str = "lasttoken", normalized: bool = True) -> Path:
    """The files of sentence-transformers, in the form of its versions before 5.4."""
    kinds = ["Transformer", "Pooling", *["Normalize"] * normalized]
    write_modules(folder, *(OLD + kind for kind in kinds))
    flags = {"cls_token": False, "mean_tokens": pooling == "mean", "lasttoken": pooling == "lasttoken"}
    entries = {f"pooling_mode_{name}": value for name, value in flags.items()}
    hidden = json.loads((folder / "config.json").read_text())["hidden_size"]
    write_entries(folder, "1_Pooling/config.json", word_embedding_dimension=hidden, **entries)
    write_entries(folder, "config_sentence_transformers.json", prompts=PROMPTS, default_prompt_name=None)
    return folder


def without_head(folder: Path) -> Path:
    """The checkpoint as AutoModel saves it: without the LM head, and without `model.` before the names."""
    path = folder / "model.safetensors"
    tensors = {name.removeprefix("model."): array for name, array in load_file(path).items()}
    tensors.pop("lm_head.weight", None)
    save_file(tensors, path, {"format": "pt"})
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    edit_json(folder / "config.json", architectures=[name.replace("ForCausalLM", "Model")])
    return folder


def add_end_token(folder: Path) -> Path:
    """The tokenizer puts an end token behind a text, and nothing before it, as that of Qwen3-Embedding does.
    It is the first of config.json."""
    path = folder / "tokenizer.json"
    tokenizer, end = json.loads(path.read_text()), end_token(folder)
    name = next(token["content"] for token in tokenizer["added_tokens"] if token["id"] == end)
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": name, "type_id": 0}}]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {name: {"id": name, "ids": [end], "tokens": [name]}},
    }
    path.write_text(json.dumps(tokenizer))
    return folder


def end_token(folder: Path) -> int:
    number: int = json.loads((folder / "config.json").read_text())["eos_token_id"][0]
    return number


def add_yes_and_no(folder: Path) -> Path:
    """Both words are tokens: the last two of the vocabulary, which nothing else uses."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "special"), False) | {"single_word": True}
    words = {size - 2: "yes", size - 1: "no"}
    tokenizer["added_tokens"] += [{"id": id_, "content": word, **flags} for id_, word in words.items()]
    path.write_text(json.dumps(tokenizer))
    return folder


def as_embedding_model(folder: Path, pooling: str = "lasttoken") -> Path:
    """As Qwen3-Embedding is published: no head, an end token, prompts."""
    return write_embedding_files(add_end_token(without_head(folder)), pooling)


def as_reranker(folder: Path) -> Path:
    """As Qwen3-Reranker is published, but for its name: config.json says what it is, as vLLM has it."""
    edit_json(folder / "config.json", classifier_from_token=["no", "yes"])
    return add_yes_and_no(folder)


def write_embedding_model(folder: Path, pooling: str = "lasttoken", **changes: Any) -> Path:
    """One with random weights, saved by transformers."""
    return as_embedding_model(write_checkpoint(folder, **{"family": "Qwen3", **changes}), pooling)


def write_reranker(folder: Path, **changes: Any) -> Path:
    """One with random weights, saved by transformers."""
    return as_reranker(write_checkpoint(folder, **{"family": "Qwen3", **changes}))


def write_demo_as_qwen3(folder: Path, layers: int = 2) -> Path:
    """The demo's first layers as a Qwen3, with norms of queries and keys and a larger vocabulary. It takes no
    torch."""
    shutil.copytree(DEMO_FOLDER, folder)
    tensors = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    kept = {
        name: array
        for name, array in tensors.items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
    }
    one = np.ones(config["head_dim"], tensors["model.norm.weight"].dtype)
    for layer in range(layers):
        kept |= {f"model.layers.{layer}.self_attn.{norm}_norm.weight": one for norm in "qk"}
    table = tensors["model.embed_tokens.weight"]
    kept["model.embed_tokens.weight"] = np.concatenate([table, table[:4]])
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    edit_json(
        folder / "config.json",
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        num_hidden_layers=layers,
        vocab_size=len(table) + 4,
    )
    return folder


def copied(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


def their_hidden(folder: Path, dtype: str, prompts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """The last hidden states after the final norm of each prompt, (tokens, hidden_size) float32."""
    import torch
    import transformers

    with torch.no_grad():
        model = transformers.AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype))
        return [model(torch.tensor([ids])).last_hidden_state[0].float().numpy() for ids in prompts]


def their_vectors(
    folder: Path, dtype: str, prompts: Sequence[Sequence[int]], pooling: str, dimensions: int | None = None
) -> np.ndarray:
    """Of length 1, (prompts, dimensions)."""
    states = their_hidden(folder, dtype, prompts)
    pooled = [rows[-1] if pooling == "lasttoken" else rows.mean(axis=0) for rows in states]
    cut = np.array(pooled)[:, :dimensions]
    return cut / np.linalg.norm(cut, axis=1, keepdims=True)


def their_yes_no(
    folder: Path, dtype: str, prompts: Sequence[Sequence[int]], tokens: Sequence[int]
) -> np.ndarray:
    """The logits of these tokens after each prompt, (prompts, tokens) float32."""
    import torch
    import transformers

    with torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        rows = [model(torch.tensor([ids])).logits[0, -1, list(tokens)].float().numpy() for ids in prompts]
    return np.array(rows)
