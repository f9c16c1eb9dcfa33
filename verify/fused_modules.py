"""Modules of transformers' layers that a family has in one: queries, keys and values; gate and up.

The steps of a layer name the parts (`self_attn.q_proj`). Where a layer has the whole alone, a part is some of
its rows, and of its output some columns; transformers' model itself is not changed.
"""

from __future__ import annotations

from typing import Any

from aerie.engine.model_family import FUSED, LAYER_TENSORS, QKV_BIAS

_NAMES = {**LAYER_TENSORS, **QKV_BIAS}


def module_part(layer: Any, path: str) -> tuple[Any, slice]:
    """The module at `path` of a layer or model, or the one that has it, and its columns in the output."""
    for fields, (whole, *_) in FUSED.items():
        parts = [_NAMES[field].rpartition(".")[0] for field in fields]
        if path in parts and not _has(layer, path):
            module = layer.get_submodule(whole.rpartition(".")[0])
            widths = _widths(layer, len(parts), module.out_features)
            first = sum(widths[: parts.index(path)])
            return module, slice(first, first + widths[parts.index(path)])
    return layer.get_submodule(path), slice(None)


def _has(layer: Any, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    return hasattr(layer.get_submodule(parent), name)


def _widths(layer: Any, parts: int, whole: int) -> list[int]:
    """Columns of each part: of queries, keys and values by their heads, of gate and up the half."""
    if parts == 2:
        return [whole // 2] * 2
    attention = layer.self_attn
    keys = attention.config.num_key_value_heads * attention.head_dim
    return [whole - 2 * keys, keys, keys]


def weight_of(layer: Any, path: str) -> Any:
    """The weight of the linear module at `path`, (out, in)."""
    module, columns = module_part(layer, path)
    return module.weight[columns]
