"""The weights of a GGUF file for the reference: dequantised by the gguf package, in transformers' names.

Nothing of our reading of these files is used: their reader, their names, their values. transformers reads
such files too, but leaves out rules of RoPE and sizes of heads, so it gets a folder with a config.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aerie.engine.numerics import F32Array

PERMUTED = ("llama",)
"""Architectures whose files have queries and keys in the order of llama.cpp's converter."""
LAYERS = "model.layers."


class DequantisedFiles:
    """The tensors of all files of a model, by transformers' names. config: its entries of a config.json."""

    def __init__(self, paths: Sequence[Path], config: Mapping[str, Any], architecture: str) -> None:
        import gguf

        readers = [gguf.GGUFReader(path) for path in paths]
        self._tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
        self._config, self._is_permuted = config, architecture in PERMUTED
        kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
        self._names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])

    def write(self, names: Sequence[str], folder: Path) -> dict[str, str]:
        """Write tensors of these names in float32, a file for each layer and one for the others. Returns the
        file of each."""
        from safetensors.numpy import save_file

        where = {}
        for file, members in _files(names).items():
            save_file({name: self._tensor(name) for name in members}, folder / file, {"format": "pt"})
            where.update(dict.fromkeys(members, file))
        return where

    def _tensor(self, name: str) -> F32Array:
        values = self._stored(name)
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        entry = next((entry for part, entry in heads.items() if part in name), None)
        if entry is None or not self._is_permuted:
            return np.ascontiguousarray(values)
        count, rest = self._config[entry], values.shape[1:]
        halves = values.reshape(count, len(values) // count // 2, 2, *rest)
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))

    def _stored(self, name: str) -> F32Array:
        """A tensor as it is stored, alone or as a part of a fused one."""
        called = str(self._names.get_name(name, try_suffixes=(".weight", ".bias")))
        *layer, part, suffix = called.split(".")
        with_gate = ".".join([*layer, "ffn_gate", suffix]) in self._tensors
        if called in self._tensors and (part != "ffn_up" or with_gate):
            return self._dequantised(called)
        whole, rows = self._fused(part)
        return self._dequantised(".".join([*layer, whole, suffix]))[rows]

    def _fused(self, part: str) -> tuple[str, slice]:
        """Where a part of a fused tensor lies."""
        head_dim, ffn = self._config["head_dim"], self._config["intermediate_size"]
        query, key = (
            self._config[name] * head_dim for name in ("num_attention_heads", "num_key_value_heads")
        )
        return {
            "attn_q": ("attn_qkv", slice(0, query)),
            "attn_k": ("attn_qkv", slice(query, query + key)),
            "attn_v": ("attn_qkv", slice(query + key, query + 2 * key)),
            "ffn_gate": ("ffn_up", slice(0, ffn)),
            "ffn_up": ("ffn_up", slice(ffn, 2 * ffn)),
        }[part]

    def _dequantised(self, name: str) -> F32Array:
        import gguf

        tensor = self._tensors[name]
        values: npt.NDArray[np.float32] = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        return values.reshape(tuple(int(size) for size in reversed(tensor.shape)))


def _files(names: Sequence[str]) -> dict[str, list[str]]:
    """The names of the tensors of each file that is written."""
    files: dict[str, list[str]] = {}
    for name in names:
        layer = name.removeprefix(LAYERS).partition(".")[0] if name.startswith(LAYERS) else "others"
        files.setdefault(f"weights-{layer}.safetensors", []).append(name)
    return files
