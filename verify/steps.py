"""The ladder's rungs: what a layer computes, step by step, each by transformers' own module on given inputs.

So a step is judged on the inputs that ours had, whatever went wrong before it. In float32 a step stands for
exact arithmetic; in bf16 it shows what rounding alone does to the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llama32_1b.numerics import F32Array
from verify.block_floats import product

Compute = Callable[["Bench", Any, Mapping[str, Any]], Any]
"""From the bench, transformers' layer or model, and values by name, to the step's value, (rows, width)."""


@dataclass(frozen=True)
class Rung:
    """A step. `inputs` are steps whose values it reads; `meaning` says what it is, for readers.

    `product` is the path of the module in the layer where the step is a matrix product, else empty.
    """

    step: str
    inputs: tuple[str, ...]
    meaning: str
    compute: Compute
    product: str = ""


class Bench:
    """Transformers' LlamaForCausalLM `model`, to compute single steps for the rows of some positions.

    `positions` are those of the query rows, in order; keys and values are of positions 0, 1, 2, ...
    """

    def __init__(self, model: Any, positions: range) -> None:
        import torch

        self.model = model
        self.positions = torch.tensor([list(positions)])
        with torch.inference_mode():
            self.cos, self.sin = model.model.rotary_emb(model.model.norm.weight, self.positions)

    def step(self, layer: int | None, rung: Rung, values: Mapping[str, F32Array]) -> F32Array:
        """`rung` of transformers' layer `layer` (None: outside of the layers) on the values of its inputs."""
        import torch

        given = {name: torch.from_numpy(values[name]).to(self.model.dtype) for name in rung.inputs}
        module = self.model if layer is None else self.model.model.layers[layer]
        with torch.inference_mode():
            return as_array(rung.compute(self, module, given))

    def makes_blocks(self, rung: Rung) -> bool:  # noqa: ARG002
        """Whether `rung` is computed in block floating point here."""
        return False

    def rotate(self, x: Any) -> Any:
        """RoPE at the positions of the rows of `x` (rows, heads * head_dim), by transformers' function."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        rotated, _ = apply_rotary_pos_emb(
            heads_first(x, self.head_dim), heads_first(x, self.head_dim), self.cos, self.sin
        )
        return rows_first(rotated)

    def attend(self, attention: Any, query: Any, keys: Any, values: Any) -> Any:
        """Causal attention by the function that the model's own forward pass calls."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
        from transformers.models.llama.modeling_llama import eager_attention_forward

        interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.model.config._attn_implementation, eager_attention_forward
        )
        q, k, v = (heads_first(x, self.head_dim) for x in (query, keys, values))
        out, _ = interface(attention, q, k, v, self._mask(k), dropout=0.0, scaling=attention.scaling)
        return out.reshape(query.shape)

    @property
    def head_dim(self) -> int:
        return int(self.model.model.layers[0].self_attn.head_dim)

    def _mask(self, keys: Any) -> Any:
        """(1, 1, rows, key positions): 0 where a row may look, the least number where it may not."""
        import torch

        later = torch.arange(keys.shape[2])[None, :] > self.positions[0][:, None]
        return torch.where(later, torch.finfo(keys.dtype).min, 0.0).to(keys.dtype)[None, None]


class BlockBench(Bench):
    """As Bench, with the matrix products of the layers in block floating point."""

    def makes_blocks(self, rung: Rung) -> bool:
        return bool(rung.product)

    def step(self, layer: int | None, rung: Rung, values: Mapping[str, F32Array]) -> F32Array:
        if layer is None or not self.makes_blocks(rung):
            return super().step(layer, rung, values)
        import torch

        weight = self.model.model.layers[layer].get_submodule(rung.product).weight
        with torch.inference_mode():
            return as_array(product(torch.from_numpy(values[rung.inputs[0]]), weight.float()))


def heads_first(x: Any, head_dim: int) -> Any:
    """(rows, heads * head_dim) -> (1, heads, rows, head_dim)."""
    return x.reshape(1, x.shape[0], -1, head_dim).transpose(1, 2)


def rows_first(x: Any) -> Any:
    """(1, heads, rows, head_dim) -> (rows, heads * head_dim)."""
    return x[0].transpose(0, 1).flatten(1)


def as_array(tensor: Any) -> F32Array:
    return np.array(tensor.float().numpy())


def _module(path: str) -> Compute:
    """The module at `path` of the layer or model, on the step's one input."""

    def compute(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:  # noqa: ARG001
        return layer.get_submodule(path)(next(iter(given.values())))

    return compute


def _same(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:  # noqa: ARG001
    return next(iter(given.values()))


def _sum(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:  # noqa: ARG001
    first, second = given.values()
    return first + second


def _rotate(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:  # noqa: ARG001
    return bench.rotate(next(iter(given.values())))


def _attend(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:
    return bench.attend(layer.self_attn, given["rope_q"], given["keys"], given["values"])


def _swiglu(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:  # noqa: ARG001
    return layer.mlp.act_fn(given["gate"]) * given["up"]


def _product(step: str, read: str, meaning: str, path: str) -> Rung:
    return Rung(step, (read,), meaning, _module(path), path)


# Of a layer, in the order they run. "before" is what the step before the layer gave; "keys" and "values" are
# those of every position so far, as the projections made them.
LAYER_RUNGS = (
    Rung("input", ("before",), "what the layer is given: the output of the one before it", _same),
    Rung("attn_norm", ("input",), "RMSNorm before attention", _module("input_layernorm")),
    _product("q", "attn_norm", "query projection", "self_attn.q_proj"),
    _product("k", "attn_norm", "key projection", "self_attn.k_proj"),
    _product("v", "attn_norm", "value projection", "self_attn.v_proj"),
    Rung("rope_q", ("q",), "rotary position embedding of the queries", _rotate),
    Rung("rope_k", ("k",), "rotary position embedding of the keys", _rotate),
    Rung("cache_k", ("keys",), "the keys, as the KV cache holds them", _same),
    Rung("cache_v", ("values",), "the values, as the KV cache holds them", _same),
    Rung("attention", ("rope_q", "keys", "values"), "softmax of the scores, times the values", _attend),
    _product("o", "attention", "output projection of attention", "self_attn.o_proj"),
    Rung("attn_residual", ("input", "o"), "the layer's input plus that", _sum),
    Rung(
        "ffn_norm",
        ("attn_residual",),
        "RMSNorm before the feed-forward network",
        _module("post_attention_layernorm"),
    ),
    _product("gate", "ffn_norm", "gate projection", "mlp.gate_proj"),
    _product("up", "ffn_norm", "up projection", "mlp.up_proj"),
    Rung("swiglu", ("gate", "up"), "SiLU of gate, times up", _swiglu),
    _product("down", "swiglu", "down projection", "mlp.down_proj"),
    Rung("ffn_residual", ("attn_residual", "down"), "the two added: the layer's output", _sum),
)

# After the layers, for the last position only.
HEAD_RUNGS = (
    Rung("final_norm", ("last",), "RMSNorm after the last layer", _module("model.norm")),
    Rung("logits", ("final_norm",), "LM head: a score for each token of the vocabulary", _module("lm_head")),
)
