"""Copies of the demo checkpoint with one thing broken each, which pages show the messages of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from aerie.cli.checkpoints import DEMO_FOLDER


def _without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _with(file: str, **entries: object) -> Callable[[Path], None]:
    """Entries of a JSON file replaced; None removes one."""

    def change(folder: Path) -> None:
        content = {**json.loads((folder / file).read_text()), **entries}
        (folder / file).write_text(
            json.dumps({key: value for key, value in content.items() if value is not None})
        )

    return change


def _truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])


def _with_tensor(name: str, change: Callable[[np.ndarray], np.ndarray] | None) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensor = tensors.pop(name)
        save_file({**tensors, name: change(tensor)} if change else tensors, folder / "model.safetensors")

    return rewrite


def _with_bias(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), "model.layers.0.self_attn.q_proj.bias": np.ones(256, np.float32)}, path)


UP = "model.layers.2.mlp.up_proj.weight"
BROKEN: dict[str, Callable[[Path], None]] = {
    "no-weights": _without("model.safetensors"),
    "no-tokenizer": _without("tokenizer.json"),
    "truncated": _truncated,
    "no-tensor": _with_tensor(UP, None),
    "gemma": _with("config.json", architectures=["Gemma2ForCausalLM"], model_type="gemma2"),
    "has-a-bias": _with_bias,
    "quantised": _with("config.json", quantization_config={"quant_method": "hqq", "nbits": 4}),
    "ntk": _with("config.json", rope_scaling={"rope_type": "ntk", "factor": 4.0}),
    "head-dim-80": _with("config.json", head_dim=80),
}


def make_broken(folder: Path) -> None:
    """A checkpoint in `folder` for each name of BROKEN."""
    for name, change in BROKEN.items():
        shutil.copytree(DEMO_FOLDER, folder / name)
        change(folder / name)
