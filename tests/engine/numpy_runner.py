"""The six programs in numpy, from what their argument tables mean: an independent ProgramRunner.

Every value written is rounded to bf16 once. Matrix products go row by row, so that a row's value does
not depend on how many others there are, which BLAS does not promise.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from aerie.engine.config import ModelConfig
from aerie.kernel_builder.arguments import STATIC_ROLES, Role

bf16 = ml_dtypes.bfloat16


def f32(array):
    return array.astype(np.float32)


def rms_norm(x, weight, eps, offset):
    wide = f32(x)
    return (wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * (f32(weight) + offset)).astype(bf16)


def gemm(weight, x):
    wide = f32(weight)
    return np.stack([wide @ row for row in f32(x)]).astype(bf16)


def gemv(weight, x):
    return (f32(weight) @ f32(x)).astype(bf16)


def rope(x, lut, head_dim):
    """Rows of heads, each turned by the row's angles; the two halves of a head are the pair."""
    whole = f32(x).reshape(*x.shape[:-1], -1, head_dim)
    heads, rest = whole[..., : lut.shape[-1]], whole[..., lut.shape[-1] :]
    cos, sin = np.split(f32(lut)[..., None, :], 2, axis=-1)
    first, second = np.split(heads, 2, axis=-1)
    turned = np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
    return turned.reshape(x.shape).astype(bf16)


def swiglu(gate, up, activation):
    wide = f32(gate)
    twice = wide if activation == "silu" else np.sqrt(8 / np.pi) * (wide + 0.044715 * wide**3)
    return (wide / (1 + np.exp(-twice)) * f32(up)).astype(bf16)


def multiply(a, b):
    return (f32(a) * f32(b)).astype(bf16)


def add(a, b):
    return (f32(a) + f32(b)).astype(bf16)


def causal_attention(q, k, v, head_dim, scale):
    rows, kv_heads = q.shape[0], k.shape[1] // head_dim
    q = f32(q).reshape(rows, kv_heads, -1, head_dim)
    k, v = (f32(a).reshape(rows, kv_heads, head_dim) for a in (k, v))
    out = np.zeros_like(q)
    for row in range(rows):
        for head in range(kv_heads):
            scores = q[row, head] @ k[: row + 1, head].T * np.float32(scale)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[row, head] = weights / weights.sum(-1, keepdims=True) @ v[: row + 1, head]
    return out.reshape(rows, -1).astype(bf16)


class NumpyRunner:
    """Keeps static arguments per buffer-object set, like the runtime, and refuses what does not fit.

    Results are views on buffers that the next call on the same set overwrites.
    """

    def __init__(self, config: ModelConfig):
        self.config = config
        self.sets: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self.calls: list[tuple[str, str]] = []  # (program name, bo_key) in call order

    def record(self):
        return None  # every call comes through `run`

    def unfilled_weights(self, program, /, *, bo_key):
        static = {argument.name for argument in program.arguments if argument.role in STATIC_ROLES}
        return static - self.sets.get(bo_key, {}).keys()

    def preload(self, program, /, *, bo_key, **static):
        roles = self.unfilled_weights(program, bo_key=bo_key)
        assert set(static) == roles, f"{program.name}: {sorted(static)} given, {sorted(roles)} are static"
        assert bo_key not in self.sets, f"{bo_key} was preloaded already"
        arrays = {name: np.full(program.arguments[name].shape, np.nan, bf16) for name in static}
        for name, given in static.items():
            if callable(given):
                given(arrays[name])
            else:
                self.check(program, {name: given})
                arrays[name][...] = given
        self.sets[bo_key] = arrays

    def run(self, program, /, *, bo_key, outputs=None, copy=True, on_device=(), **arrays):
        inputs = {argument.name for argument in program.arguments if argument.role is Role.INPUT}
        assert set(arrays) == inputs, f"{program.name}: {sorted(arrays)} given, {sorted(inputs)} are inputs"
        self.check(program, arrays)
        self.calls.append((program.name, bo_key))
        values = getattr(self, program.kind)(**arrays, **self.sets.get(bo_key, {}))
        wanted = outputs or [a.name for a in program.arguments if a.role is Role.OUTPUT]
        self.check(program, {name: values[name] for name in wanted})
        buffers = self.results.setdefault(bo_key, {name: array.copy() for name, array in values.items()})
        for name, array in values.items():
            buffers[name][...] = array
        return {name: buffers[name].copy() if copy else buffers[name] for name in wanted}

    @staticmethod
    def check(program, arrays):
        for name, array in arrays.items():
            argument = program.arguments[name]
            assert array.shape == argument.shape, f"{program.name}.{name}: {array.shape}, not {argument}"
            assert array.dtype == argument.dtype.numpy, f"{program.name}.{name} is {array.dtype}"
            assert array.flags.c_contiguous, f"{program.name}.{name} is strided"

    def rms_gemms_rope(self, rope_lut, **arrays):
        return self.before_attention(gemm, rope_lut, **arrays)

    def rms_gemv_rope(self, rope_row, **arrays):
        return self.before_attention(gemv, rope_row, **arrays)

    def norm(self, x, weight):
        return rms_norm(x, weight, self.config.rms_norm_eps, self.config.family.norm_weight_offset)

    def before_attention(self, product, lut, *, x, attn_norm=None, **more):
        """Biases of queries, keys and values, and norms of their heads, where the model has them."""
        values = {} if attn_norm is None else {"normed": self.norm(x, attn_norm)}
        for of in "qkv":
            values[of] = product(more[f"w{of}"], values.get("normed", x))
            if f"b{of}" in more:
                values[of] = add(values[of], more[f"b{of}"])
        for of in "qk":
            heads = values[of]
            if f"{of}_norm" in more:
                weight = more[f"{of}_norm"]
                heads = self.norm(heads.reshape(*x.shape[:-1], -1, len(weight)), weight)
            values[f"{of}_roped"] = rope(heads.reshape(values[of].shape), lut, self.config.head_dim)
        return values

    def rms_gemms_gate(self, **arrays):
        return self.before_conv(gemm, **arrays)

    def rms_gemv_gate(self, **arrays):
        return self.before_conv(gemv, **arrays)

    def before_conv(self, product, *, x, attn_norm, w_conv_b, w_conv_c, w_conv_x):
        normed = self.norm(x, attn_norm)
        b, c, x = (product(weight, normed) for weight in (w_conv_b, w_conv_c, w_conv_x))
        return {"conv_b": b, "conv_c": c, "conv_x": x, "gated": multiply(b, x)}

    def short_conv(self, conv_rows, conv_c, w_conv):
        conv = (f32(conv_rows) * f32(w_conv)).sum(-2).astype(bf16)
        return {"conv": conv, "attn_out": multiply(conv_c, conv)}

    short_conv_row = short_conv

    def flash_attn(self, q_roped, k_roped, v):
        head_dim, factors = self.config.head_dim, self.config.multipliers
        scale = 1 / np.sqrt(head_dim) if factors.attention is None else factors.attention
        return {"attn_out": causal_attention(q_roped, k_roped, v, head_dim, scale)}

    def o_ffn(self, **arrays):
        return self.attention_output_and_ffn(gemm, **arrays)

    def o_gemv_ffn(self, **arrays):
        return self.attention_output_and_ffn(gemv, **arrays)

    def attention_output_and_ffn(
        self, product, *, attn_out, x, wo, w_gate, w_up, w_down, ffn_norm=None, **after
    ):
        """after: weights of norms of what is added, attn_post_norm and ffn_post_norm, where it has these."""
        proj = product(wo, attn_out)
        res1 = self.residual(x, self.norm(proj, after["attn_post_norm"]) if after else proj)
        normed = res1 if ffn_norm is None else self.norm(res1, ffn_norm)
        gate, up = product(w_gate, normed), product(w_up, normed)
        gated = swiglu(gate, up, self.config.activation)
        down = product(w_down, gated)
        added = self.norm(down, after["ffn_post_norm"]) if after else down
        values = {"proj": proj, "res1": res1, "gate": gate, "up": up}
        return {**values, "swiglu": gated, "down": down, "x_next": self.residual(res1, added)}

    def residual(self, x, added):
        factor = self.config.multipliers.residual
        return add(x, added if factor == 1 else (f32(added) * np.float32(factor)).astype(bf16))

    def lm_head_gemv(self, x, **parts):
        return {name.replace("lm_head", "logits"): gemv(weight, x) for name, weight in parts.items()}
