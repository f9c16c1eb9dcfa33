"""Modules of transformers' layers that a family has in one, or calls otherwise: queries, keys and values;
gate and up; the projections of a short convolution.

The steps of a layer name the parts as Llama does (`self_attn.q_proj`). Where a layer has the whole alone, a
part is some of its rows, and of its output some columns; transformers' model itself is not changed.
"""

from __future__ import annotations

from typing import Any

from aerie.engine.model_family import CONV, FUSED, LAYER_TENSORS, QKV_BIAS

_NAMES = {**LAYER_TENSORS, **QKV_BIAS, **CONV}

_OTHERWISE = {
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "self_attn.out_proj",
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
    "mlp": "feed_forward",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "model.norm": "model.embedding_norm",
}
"""What LFM2 calls modules of a layer, and of the model, by Llama's names."""
_IN_GRANITE_4 = {"mlp": "shared_mlp", "mlp.down_proj": "shared_mlp.output_linear"}
"""The same of Granite 4."""


HALVES_OF_HEADS = ("self_attn.q_proj", "self_attn.g_proj")
"""The parts that each head of the queries' projection has where attention has a gate."""


def module_part(layer: Any, path: str) -> tuple[Any, Any]:
    """The module at `path` of a layer or model, or the one that has it, and its columns in the output."""
    path = module_path(layer, path)
    if path in HALVES_OF_HEADS and (found := _half_of_heads(layer, HALVES_OF_HEADS.index(path))):
        return found
    for fields, names in FUSED.items():
        parts = [_NAMES[field].rpartition(".")[0] for field in fields]
        if path in parts and not _has(layer, path):
            wholes = (name.rpartition(".")[0] for name in names)
            module = layer.get_submodule(next(whole for whole in wholes if _has(layer, whole)))
            widths = _widths(layer, len(parts), module.out_features)
            first = sum(widths[: parts.index(path)])
            return module, slice(first, first + widths[parts.index(path)])
    return layer.get_submodule(path), slice(None)


def _half_of_heads(layer: Any, half: int) -> tuple[Any, list[int]] | None:
    """The queries' projection, where each head of it has a half for the gate, and the columns of one of the
    halves; None where it has none."""
    product, config = (getattr(layer.self_attn, name, None) for name in ("q_proj", "config"))
    if product is None or config is None:
        return None
    heads, size = config.num_attention_heads, layer.self_attn.head_dim
    if product.out_features != 2 * heads * size:
        return None
    columns = ((2 * head + half) * size + each for head in range(heads) for each in range(size))
    return product, [*columns]


def module_path(layer: Any, path: str) -> str:
    """What this layer or model calls the module at `path`."""
    others = (names.get(path, "") for names in (_OTHERWISE, _IN_GRANITE_4))
    found = (other for other in others if other and _has(layer, other))
    return path if _has(layer, path) else next(found, path)


def _has(layer: Any, path: str) -> bool:
    *parents, name = path.split(".")
    for parent in parents:
        layer = getattr(layer, parent, None)
    return hasattr(layer, name)


def _widths(layer: Any, parts: int, whole: int) -> list[int]:
    """Columns of each part: of queries, keys and values by their heads, of others equally many."""
    if parts == 2 or hasattr(layer, "conv"):
        return [whole // parts] * parts
    attention = layer.self_attn
    keys = attention.config.num_key_value_heads * attention.head_dim
    return [whole - 2 * keys, keys, keys]


def weight_of(layer: Any, path: str) -> Any:
    """The weight of the linear module at `path`, (out, in)."""
    module, columns = module_part(layer, path)
    return module.weight[columns]
