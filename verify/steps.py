"""The steps of a forward pass: each by transformers' own module, with where its value is found.

So a step is judged on the inputs that ours had, whatever went wrong before it. In float32 a step stands for
exact arithmetic; in bf16 it shows what rounding alone does to the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.engine.numerics import F32Array

BLOCK = 8
"""Numbers along K that share an exponent in block floating point (`--numerics bfp16`): each keeps an 8-bit
mantissa, rounded to nearest even. What is multiplied so is told in docs/virtual_npu.md."""


def converted(values: Any) -> Any:
    """What block floating point keeps of `values`, float32 (rows, K) with K a multiple of 8."""
    import torch

    blocks = values.reshape(values.shape[0], -1, BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    step = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 7)
    step = torch.where((blocks / step).round().amax(-1, keepdim=True) > 127, 2 * step, step)
    return ((blocks / step).round() * step).reshape(values.shape)


def product(x: Any, weight: Any) -> Any:
    """x @ weight.T, rounded to bf16 once; x is (rows, K), weight (out, K), all float32."""
    import torch

    return torch.nn.functional.linear(converted(x), converted(weight)).bfloat16()


Compute = Callable[["Bench", Any, Mapping[str, Any]], Any]
"""From the bench, transformers' layer or model, and values by name, to the step's value, (rows, width)."""


Hook = tuple[str, str]
"""The path of a module in transformers' layer or model, and whether the value goes "in" or "out" there."""


@dataclass(frozen=True)
class Source:
    """Where ours has a step's value: an argument of the program of prefill, and of that of decode."""

    programs: tuple[str, str]
    argument: str


@dataclass(frozen=True)
class Step:
    """A step of the forward pass: how to compute it, and where its value is found in ours and in theirs.

    inputs: steps whose values it reads. meaning: what it is, for readers. source: where our value is; None
    where it is no argument of a program. hook: where transformers' value is seen in its own run; None where
    no module has it, and `compute` makes it again. same_as: the step that has the same value in that run.
    product: the path of the module in the layer where the step is a matrix product, else empty.
    """

    name: str
    inputs: tuple[str, ...]
    meaning: str
    compute: Compute
    source: Source | None = None
    hook: Hook | None = None
    same_as: str = ""
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

    def compute(self, layer: int | None, step: Step, values: Mapping[str, F32Array]) -> F32Array:
        """`step` of transformers' layer `layer` (None: outside of the layers) on the values of its inputs."""
        import torch

        given = {name: torch.from_numpy(values[name]).to(self.model.dtype) for name in step.inputs}
        module = self.model if layer is None else self.model.model.layers[layer]
        with torch.inference_mode():
            return as_array(step.compute(self, module, given))

    def makes_blocks(self, step: Step) -> bool:  # noqa: ARG002
        """Whether `step` is computed in block floating point here."""
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

    def makes_blocks(self, step: Step) -> bool:
        return bool(step.product)

    def compute(self, layer: int | None, step: Step, values: Mapping[str, F32Array]) -> F32Array:
        if layer is None or not self.makes_blocks(step):
            return super().compute(layer, step, values)
        import torch

        weight = self.model.model.layers[layer].get_submodule(step.product).weight
        with torch.inference_mode():
            return as_array(product(torch.from_numpy(values[step.inputs[0]]), weight.float()))


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


def _product(name: str, read: str, meaning: str, source: Source, path: str) -> Step:
    return Step(name, (read,), meaning, _module(path), source, (path, "out"), product=path)


def _before_attention(argument: str) -> Source:
    return Source(("rms_gemms_rope", "rms_gemv_rope"), argument)


def _after_attention(argument: str) -> Source:
    return Source(("o_ffn", "o_gemv_ffn"), argument)


_ATTENTION = Source(("flash_attn", "o_gemv_ffn"), "attn_out")  # decode attends on the CPU and passes it on
_INPUT_NORM, _FFN_NORM = "input_layernorm", "post_attention_layernorm"

LAYER_STEPS = (
    Step(
        "input", ("before",), "what the layer is given: the output of the one before it",
        _same, _before_attention("x"), ("", "in"),
    ),
    Step(
        "attn_norm", ("input",), "RMSNorm before attention",
        _module(_INPUT_NORM), _before_attention("normed"), (_INPUT_NORM, "out"),
    ),
    _product("q", "attn_norm", "query projection", _before_attention("q"), "self_attn.q_proj"),
    _product("k", "attn_norm", "key projection", _before_attention("k"), "self_attn.k_proj"),
    _product("v", "attn_norm", "value projection", _before_attention("v"), "self_attn.v_proj"),
    Step("rope_q", ("q",), "rotary position embedding of the queries", _rotate, _before_attention("q_roped")),
    Step("rope_k", ("k",), "rotary position embedding of the keys", _rotate, _before_attention("k_roped")),
    Step("cache_k", ("keys",), "the keys, as the KV cache holds them", _same, same_as="rope_k"),
    Step("cache_v", ("values",), "the values, as the KV cache holds them", _same, same_as="v"),
    Step(
        "attention", ("rope_q", "keys", "values"), "softmax of the scores, times the values",
        _attend, _ATTENTION, ("self_attn.o_proj", "in"),
    ),
    _product(
        "o", "attention", "output projection of attention", _after_attention("proj"), "self_attn.o_proj",
    ),
    Step(
        "attn_residual", ("input", "o"), "the layer's input plus that",
        _sum, _after_attention("res1"), (_FFN_NORM, "in"),
    ),
    Step(
        "ffn_norm", ("attn_residual",), "RMSNorm before the feed-forward network",
        _module(_FFN_NORM), _after_attention("normed"), (_FFN_NORM, "out"),
    ),
    _product("gate", "ffn_norm", "gate projection", _after_attention("gate"), "mlp.gate_proj"),
    _product("up", "ffn_norm", "up projection", _after_attention("up"), "mlp.up_proj"),
    Step(
        "swiglu", ("gate", "up"), "SiLU of gate, times up",
        _swiglu, _after_attention("swiglu"), ("mlp.down_proj", "in"),
    ),
    _product("down", "swiglu", "down projection", _after_attention("down"), "mlp.down_proj"),
    Step(
        "ffn_residual", ("attn_residual", "down"), "the two added: the layer's output",
        _sum, _after_attention("x_next"), ("", "out"),
    ),
)  # fmt: skip
"""Of a layer, in the order they run. "before" is what the step before the layer gave; "keys" and "values" are
those of every position so far, as the projections made them."""

HEAD_STEPS = (
    Step(
        "final_norm", ("last",), "RMSNorm after the last layer",
        _module("model.norm"), hook=("model.norm", "out"),
    ),
    Step(
        "logits", ("final_norm",), "LM head: a score for each token of the vocabulary",
        _module("lm_head"), hook=("lm_head", "out"),
    ),
)  # fmt: skip
"""After the layers, for the last position only. Ours are what lm_head_gemv is given, and what it gives."""
