"""The weights of a GGUF file for the reference: read by the gguf package, in transformers' names.

Nothing of our reading of these files is used: their reader, their names, their values. transformers reads
such files too, but leaves out rules of RoPE and sizes of heads, so it gets a folder with a config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aerie.engine.numerics import F32Array
from aerie.engine.weights import EMBED, LM_HEAD
from aerie.verify.blocks_reference import PLAIN, DeviceKind

PERMUTED = ("llama", "smollm3", "granite")
"""Architectures whose files have queries and keys in the order of llama.cpp's converter."""
PLUS_ONE = ("gemma3",)
"""Architectures whose files have norms with 1 added to each weight."""
LAYERS = "model.layers."


class DequantisedFiles:
    """The tensors of all files of a model, by transformers' names. config: its entries of a config.json.
    kind: what they are on the device."""

    def __init__(
        self, paths: Sequence[Path], config: Mapping[str, Any], architecture: str, kind: DeviceKind
    ) -> None:
        import gguf

        readers = [gguf.GGUFReader(path) for path in paths]
        self._tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
        self._config, self._is_permuted, self._kind = config, architecture in PERMUTED, kind
        self._norms_added = int(architecture in PLUS_ONE)
        model = next(model for model, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
        self._names = gguf.get_tensor_name_map(model, config["num_hidden_layers"])
        self._head = EMBED

    def write(self, names: Sequence[str], folder: Path) -> dict[str, str]:
        """Write tensors of these names in float32, a file for each layer and one for the others. Returns the
        file of each."""
        self._head = LM_HEAD if LM_HEAD in names else EMBED
        return write_files(names, self._tensor, folder)

    def _tensor(self, name: str) -> F32Array:
        values = self._stored(name)
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        entry = next((entry for part, entry in heads.items() if part in name), None)
        if name.endswith("conv.conv.weight"):
            return values[:, None]
        if name.endswith("norm.weight"):
            return values - np.float32(self._norms_added)
        if entry is None or not self._is_permuted:
            return np.ascontiguousarray(values)
        count, rest = self._config[entry], values.shape[1:]
        halves = values.reshape(count, len(values) // count // 2, 2, *rest)
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))

    def _stored(self, name: str) -> F32Array:
        """A tensor as it is stored, alone or as a part of a fused one."""
        called = str(self._names.get_name(name, try_suffixes=(".weight", ".bias")))
        *layer, part, suffix = called.split(".")
        if part == "attn_qkv" or ".gate_up_proj." in name:
            return self._dequantised(called)
        with_gate = ".".join([*layer, "ffn_gate", suffix]) in self._tensors
        if called in self._tensors and (part != "ffn_up" or with_gate):
            return self._dequantised(called, name == self._head)
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

    def _dequantised(self, name: str, is_head: bool = False) -> F32Array:
        import gguf

        tensor = self._tensors[name]
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if len(shape) == 2 and tensor.tensor_type.name not in PLAIN:
            return self._kind.of_blocks(tensor.data, tensor.tensor_type).reshape(shape)
        values: F32Array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        return self._kind.of_plain(values.reshape(shape), is_head)


def write_files(names: Sequence[str], tensor: Callable[[str], F32Array], folder: Path) -> dict[str, str]:
    """Write the tensors of these names, a file for each layer and one for the others. Returns the file of
    each."""
    from safetensors.numpy import save_file

    where = {}
    for file, members in _files(names).items():
        save_file({name: tensor(name) for name in members}, folder / file, {"format": "pt"})
        where.update(dict.fromkeys(members, file))
    return where


def _files(names: Sequence[str]) -> dict[str, list[str]]:
    """The names of the tensors of each file that is written."""
    files: dict[str, list[str]] = {}
    for name in names:
        layer = name.removeprefix(LAYERS).partition(".")[0] if name.startswith(LAYERS) else "others"
        files.setdefault(f"weights-{layer}.safetensors", []).append(name)
    return files
