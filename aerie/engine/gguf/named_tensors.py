"""The tensors of a GGUF model by the names that transformers has for them.

What lies in the file as one tensor (`attn_qkv`; gate and up in `ffn_up`) is cut into its parts here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from aerie.engine.gguf.architectures import (
    ARCHITECTURES,
    ROPE_TENSORS,
    VECTORS_OF_DELTA,
    Architecture,
)
from aerie.engine.gguf.block_groups import quantised_block_tensor
from aerie.engine.gguf.block_tensors import BlockTensor
from aerie.engine.gguf.container import GGUFError, TensorEntry, short
from aerie.engine.gguf.linear_attention import delta_tensor
from aerie.engine.gguf.model_files import GGUFModel
from aerie.engine.layer_states import DeltaHeads
from aerie.engine.tensors import DTYPES, Tensor

IN_LAYER = re.compile(r"blk\.(\d{1,5})\.(\w+|shortconv\.\w+)\.(weight|bias)")
TAPS = "shortconv.conv"
"""The taps of a convolution: (columns, taps) in files, and (columns, 1, taps) in transformers."""
TAPS_OF_DELTA = "conv1d"
PERMUTED = ("attn_q", "attn_k")
IGNORED = re.compile(r"blk\.\d+\.attn_rot_embd|blk\.\d+\.rope_freqs\.weight")
"""Tables of RoPE in older files, which follow from the metadata."""


class _Sizes(NamedTuple):
    """Rows of the parts of fused tensors, and of a head."""

    query: int
    key: int
    head_dim: int
    ffn: int


def named_tensors(model: GGUFModel, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Every tensor of the model. config: its entries (`model_config.py`). Raises GGUFError for a tensor that
    its architecture has not."""
    architecture, found = ARCHITECTURES[model.architecture], dict[str, Tensor]()
    head_dim = config["head_dim"]
    sizes = _Sizes(
        config["num_attention_heads"] * head_dim,
        config["num_key_value_heads"] * head_dim,
        head_dim,
        config["intermediate_size"],
    )
    heads = _delta_heads(config)
    for name, entry in model.tensors.items():
        if name in ROPE_TENSORS or IGNORED.fullmatch(name):
            continue
        if heads and (of_delta := _of_delta(name, entry, architecture, heads)):
            found[of_delta[0]] = of_delta[1]
            continue
        for called, tensor in _named(name, entry, architecture, sizes, model.tensors):
            added = architecture.added_to(called)
            found[called] = replace(tensor, added=added) if added else tensor
    return found


def _delta_heads(config: Mapping[str, Any]) -> DeltaHeads | None:
    """The heads of linear attention, if the model has it."""
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    has_delta = f"linear_{names[0]}" in config
    return DeltaHeads(*(config[f"linear_{name}"] for name in names)) if has_delta else None


def _of_delta(
    name: str, entry: TensorEntry, architecture: Architecture, heads: DeltaHeads
) -> tuple[str, Tensor] | None:
    """transformers' name of a tensor of linear attention, and the tensor; None for any other."""
    found = re.fullmatch(r"blk\.(\d{1,5})\.((\w+?)(?:\.(?:weight|bias))?)", name)
    if found is None:
        return None
    layer, whole, part = found.groups()
    theirs = architecture.layer_names.get(part, "")
    if whole not in VECTORS_OF_DELTA and not theirs.startswith("linear_attn."):
        return None
    called = VECTORS_OF_DELTA.get(whole) or f"{theirs}.{whole.rpartition('.')[2]}"
    if called == f"linear_attn.{TAPS_OF_DELTA}.weight":
        entry = entry._replace(shape=(entry.shape[0], 1, *entry.shape[1:]))
    return f"model.layers.{layer}.{called}", delta_tensor(part, _tensor(entry), heads)


def name_in_file(name: str, architecture: Architecture) -> str:
    """What a GGUF file calls a tensor of transformers' name; the name itself for one that it has not."""
    vector = next((ours for ours, theirs in VECTORS_OF_DELTA.items() if name.endswith(f".{theirs}")), None)
    if vector:
        return f"blk.{name.split('.')[2]}.{vector}"
    stem, _, suffix = name.rpartition(".")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    if layer is None:
        found = next((ours for ours, theirs in architecture.model_names.items() if theirs == stem), None)
        return f"{found}.{suffix}" if found else name
    names = architecture.layer_names.items()
    found = next((ours for ours, theirs in names if theirs == layer[2]), None)
    return f"blk.{layer[1]}.{found}.{suffix}" if found else name


def _named(
    name: str,
    entry: TensorEntry,
    architecture: Architecture,
    sizes: _Sizes,
    others: Mapping[str, TensorEntry],
) -> Iterator[tuple[str, Tensor]]:
    """The tensor, or the parts of it, with the names that they have."""
    stem, _, suffix = name.rpartition(".")
    if stem in architecture.model_names:
        yield f"{architecture.model_names[stem]}.{suffix}", _tensor(entry)
        return
    found = IN_LAYER.fullmatch(name)
    if found is None:
        raise _unknown(name, entry, architecture)
    layer, kind, suffix = found.groups()
    parts = _parts_of(kind, entry, sizes, f"blk.{layer}.ffn_gate.weight" in others)
    first = 0
    for part, rows in parts.items():
        if part not in architecture.layer_names:
            raise _unknown(name, entry, architecture)
        permuted_head = sizes.head_dim if architecture.permutes_qk and part in PERMUTED else 0
        if part == TAPS:
            entry = entry._replace(shape=(entry.shape[0], 1, *entry.shape[1:]))
        called = f"model.layers.{layer}.{architecture.layer_names[part]}.{suffix}"
        yield called, _tensor(entry, permuted_head, *((first, rows) if len(parts) > 1 else ()))
        first += rows


def _parts_of(kind: str, entry: TensorEntry, sizes: _Sizes, has_gate: bool) -> dict[str, int]:
    """The tensors that lie in one, one below the other, with their rows."""
    query, key, _, ffn = sizes
    if kind == "attn_qkv" and entry.shape[0] == query + 2 * key:
        return {"attn_q": query, "attn_k": key, "attn_v": key}
    if kind == "ffn_up" and not has_gate and entry.shape[0] == 2 * ffn:
        return {"ffn_gate": ffn, "ffn_up": ffn}
    return {kind: entry.shape[0]}


def _tensor(entry: TensorEntry, permuted_head: int = 0, first: int = 0, rows: int | None = None) -> Tensor:
    """Of its rows, `rows` from `first` on. permuted_head: as BlockTensor; a shape that has no whole heads is
    left for others to refuse."""
    shape = entry.shape if rows is None else (rows, *entry.shape[1:])
    permuted_head = 0 if permuted_head and shape[0] % permuted_head else permuted_head
    about = (entry.path, entry.name, entry.kind.name, shape, entry.start, math.prod(shape[1:]))
    if entry.kind.name in DTYPES and not permuted_head:
        whole = Tensor(*about)
    else:
        whole = BlockTensor(*about, block_type=entry.kind, permuted_head=permuted_head)
    whole = replace(whole, start=entry.start + first * whole.row_bytes)
    return (isinstance(whole, BlockTensor) and quantised_block_tensor(whole)) or whole


def _unknown(name: str, entry: TensorEntry, architecture: Architecture) -> GGUFError:
    return GGUFError(
        f"tensor {short(name)} in {entry.path} is none that a {architecture.model_type} has here: answers "
        "would be made without it, and be wrong; the model is none of those supported"
    )
