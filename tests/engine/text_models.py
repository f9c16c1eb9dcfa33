"""Tiny embedding models and rerankers, saved as published ones are, and their vectors and scores by
transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
    from safetensors.numpy import load_file, save_file

    path = folder / "model.safetensors"
    tensors = {name.removeprefix("model."): array for name, array in load_file(path).items()}
    tensors.pop("lm_head.weight", None)
    save_file(tensors, path, {"format": "pt"})
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    edit_json(folder / "config.json", architectures=[name.replace("ForCausalLM", "Model")])
    return folder


def add_end_token(folder: Path) -> Path:
    """The tokenizer puts <|eos|> behind a text, as that of Qwen3-Embedding does."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    special = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in (("<|eos|>", 1),)}
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|eos|>", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": special,
    }
    path.write_text(json.dumps(tokenizer))
    return folder


def add_yes_and_no(folder: Path) -> Path:
    """Both words are tokens, with ids that nothing else has."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    vocabulary |= {"ye": len(vocabulary), "yes": len(vocabulary) + 1}
    merges[:0] = [["y", "e"], ["ye", "s"]]
    path.write_text(json.dumps(tokenizer))
    return folder


def write_embedding_model(folder: Path, pooling: str = "lasttoken", **changes: Any) -> Path:
    """As Qwen3-Embedding is published: no head, an end token, prompts."""
    write_checkpoint(folder, **{"family": "Qwen3", **changes})
    return write_embedding_files(add_end_token(without_head(folder)), pooling)


def write_reranker(folder: Path, **changes: Any) -> Path:
    """As Qwen3-Reranker is published, but for its name: config.json says what it is, as vLLM has it."""
    write_checkpoint(folder, **{"family": "Qwen3", **changes})
    edit_json(folder / "config.json", classifier_from_token=["no", "yes"])
    return add_yes_and_no(folder)


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
