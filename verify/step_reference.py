"""Computes single layer steps with transformers' own modules and functions: those in the file of the model's
class.

So a step is checked on the inputs that our step had, whatever went wrong before it. In float32 a step stands
for exact arithmetic; in bf16 it shows what rounding alone does to the same numbers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from aerie.engine.numerics import F32Array
from aerie.verify.fused_modules import weight_of
from aerie.verify.layer_steps import LayerStep
from aerie.verify.recorded_passes import Positions

BLOCK = 8
"""Numbers along K that share an exponent in block floating point (`--numerics bfp16`). Each keeps an 8-bit
mantissa, rounded to nearest even. docs/explanation/numerics.md says which products use it.
"""


def to_bfp16(values: Any) -> Any:
    """`values` rounded to block floating point: float32 (rows, K) with K a multiple of 8."""
    import torch

    blocks = values.reshape(values.shape[0], -1, BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    step = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 7)
    step = torch.where((blocks / step).round().amax(-1, keepdim=True) > 127, 2 * step, step)
    return ((blocks / step).round() * step).reshape(values.shape)


def matmul_bf16(x: Any, weight: Any) -> Any:
    """x @ weight.T, rounded to bf16 once; x is (rows, K), weight (out, K), all float32."""
    import torch

    return torch.nn.functional.linear(to_bfp16(x), to_bfp16(weight)).bfloat16()


class StepReference:
    """Computes single steps with transformers' `model`, a ...ForCausalLM, for the rows of some positions.

    positions: of the query rows, in order; keys and values are of positions 0, 1, 2, ...
    """

    def __init__(self, model: Any, positions: Positions) -> None:
        import torch

        self.model = model
        self.positions = torch.tensor([positions.tolist()])
        self._family = sys.modules[type(model).__module__]
        self._cos_sin: dict[str, tuple[Any, Any]] = {}

    def compute(self, layer: int | None, step: LayerStep, values: Mapping[str, F32Array]) -> F32Array:
        """Compute `step` of transformers' layer `layer` (None: outside of the layers) from the values of its
        inputs.
        """
        import torch

        given = {name: torch.from_numpy(values[name]).to(self.model.dtype) for name in step.inputs}
        module = self.model if layer is None else self.model.model.layers[layer]
        with torch.inference_mode():
            return as_array(step.compute(self, module, given))

    def uses_bfp16(self, step: LayerStep) -> bool:  # noqa: ARG002
        """Whether `step` is computed in block floating point here."""
        return False

    def rotate(self, attention: Any, x: Any) -> Any:
        """RoPE at the positions of the rows of `x` (rows, heads * head_dim), by transformers' function; `x`
        itself where its `attention` turns nothing."""
        if not getattr(attention, "use_rope", True):
            return x
        heads = heads_first(x, self.head_dim)
        rotated, _ = self._family.apply_rotary_pos_emb(heads, heads, *self._turns(attention))
        return rows_first(rotated)

    def _turns(self, attention: Any) -> tuple[Any, Any]:
        """Cosines and sines of the positions, of the kind of layer where these have RoPE of their own."""
        import torch

        rotary, config = self.model.model.rotary_emb, self.model.config
        kinds = (config.layer_types[attention.layer_idx],) if hasattr(rotary, "layer_types") else ()
        key = "".join(kinds)
        if key not in self._cos_sin:
            with torch.inference_mode():
                self._cos_sin[key] = rotary(self.model.lm_head.weight, self.positions, *kinds)
        return self._cos_sin[key]

    def attend(self, attention: Any, query: Any, keys: Any, values: Any) -> Any:
        """Causal attention by the function that the model's own forward pass calls."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        interface = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.model.config._attn_implementation, self._family.eager_attention_forward
        )
        q, k, v = (heads_first(x, self.head_dim) for x in (query, keys, values))
        out, _ = interface(
            attention, q, k, v, self._mask(k, attention), dropout=0.0, scaling=attention.scaling
        )
        return out.reshape(query.shape)

    def convolve(self, conv: Any, rows: Any) -> Any:
        """The convolution of a layer at the positions of its result, by the function that the model's own
        forward pass calls. rows: of positions 0, 1, 2, ..., (positions, width)."""
        whole = self._family.causal_conv1d_fn(rows.T[None], conv.conv.weight.squeeze(1), conv.conv.bias)
        return whole[0].T[self.positions[0]]

    def linear_attention(self, module: Any, mixed: Any, gates: Any, z: Any) -> Any:
        """Linear attention up to its gate, at the positions of its result, by the functions and the norm that
        the model's own forward pass calls. mixed, gates: of positions 0, 1, 2, ..., queries, keys and values
        before the convolution, and what decays and rates are made of; z: the rows of the gate."""
        import torch

        taps, count = module.conv1d.weight.squeeze(1), module.num_v_heads
        rows = self._family.causal_conv1d_fn(
            mixed.T[None], taps, module.conv1d.bias, activation=module.activation
        )[0].T[None]
        widths = [module.key_dim, module.key_dim, module.value_dim]
        sizes = [module.head_k_dim, module.head_k_dim, module.head_v_dim]
        heads = [
            part.unflatten(-1, (-1, size)).repeat_interleave(count * size // part.shape[-1], 2)
            for part, size in zip(rows.split(widths, -1), sizes, strict=True)
        ]
        decay = -module.A_log.float().exp() * torch.nn.functional.softplus(
            gates[None, :, :count].float() + module.dt_bias
        )
        out, _ = self._family.torch_chunk_gated_delta_rule(
            *heads, g=decay, beta=gates[None, :, count : 2 * count].sigmoid(), use_qk_l2norm_in_kernel=True
        )
        chosen = out[0][self.positions[0]]
        normed = module.norm(chosen.reshape(-1, module.head_v_dim), z.reshape(-1, module.head_v_dim))
        return normed.reshape(z.shape)

    @property
    def head_dim(self) -> int:
        attending = (layer for layer in self.model.model.layers if hasattr(layer, "self_attn"))
        return int(next(attending).self_attn.head_dim)

    def _mask(self, keys: Any, attention: Any) -> Any:
        """(1, 1, rows, key positions): 0 for visible keys, the lowest number for hidden ones."""
        import torch

        back = self.positions[0][:, None] - torch.arange(keys.shape[2])[None, :]
        hidden = (back < 0) | (back >= self._window(attention))
        return torch.where(hidden, torch.finfo(keys.dtype).min, 0.0).to(keys.dtype)[None, None]

    def _window(self, attention: Any) -> float:
        """How many positions a row of this layer sees, as transformers' config says."""
        config = self.model.config
        kinds = getattr(config, "layer_types", None)
        window = getattr(config, "sliding_window", None)
        if window is None or (kinds and kinds[attention.layer_idx] != "sliding_attention"):
            return math.inf
        return float(window)


class Bfp16StepReference(StepReference):
    """Computes steps with matrix products in block floating point (bfp16)."""

    def uses_bfp16(self, step: LayerStep) -> bool:
        return bool(step.product)

    def compute(self, layer: int | None, step: LayerStep, values: Mapping[str, F32Array]) -> F32Array:
        if not self.uses_bfp16(step):
            return super().compute(layer, step, values)
        import torch

        module = self.model if layer is None else self.model.model.layers[layer]
        weight = weight_of(module, step.product)
        with torch.inference_mode():
            return as_array(matmul_bf16(torch.from_numpy(values[step.inputs[0]]), weight.float()))


def heads_first(x: Any, head_dim: int) -> Any:
    """(rows, heads * head_dim) -> (1, heads, rows, head_dim)."""
    return x.reshape(1, x.shape[0], -1, head_dim).transpose(1, 2)


def rows_first(x: Any) -> Any:
    """(1, heads, rows, head_dim) -> (rows, heads * head_dim)."""
    return x[0].transpose(0, 1).flatten(1)


def as_array(tensor: Any) -> F32Array:
    return np.array(tensor.float().numpy())
