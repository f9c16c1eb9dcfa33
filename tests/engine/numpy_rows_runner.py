"""Programs of rows in numpy, with a cache and a mask, and those of linear attention: for models that have no
six programs."""

from __future__ import annotations

import numpy as np

from tests.engine.numpy_runner import NumpyRunner, bf16, f32, gemm, rms_norm


def sigmoid(x):
    return 1 / (1 + np.exp(-f32(x)))


def unit(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


class NumpyRowsRunner(NumpyRunner):
    """As NumpyRunner, for the programs of variants."""

    def shared_array(self, name, argument):
        return np.zeros(argument.shape, argument.dtype.numpy)

    def rms_gemms_rope(self, rope_lut=None, rope_rows=None, wg=None, **arrays):
        """rope_lut: of six programs, none here."""
        assert rope_lut is None
        values = self.before_attention(gemm, rope_rows, **arrays)
        return values if wg is None else values | {"attn_gate": gemm(wg, values["normed"])}

    def cached_attn(self, q_roped, keys, values, mask):
        """A row sees the positions whose bits its mask has."""
        kv_heads, _, head_dim = keys.shape
        seen = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little").astype(bool)
        q, out = f32(q_roped).reshape(len(mask), kv_heads, -1, head_dim), []
        for row in range(len(mask)):
            if not seen[row].any():
                out.append(np.zeros(q_roped.shape[1], np.float32))
                continue
            k, v = f32(keys[:, seen[row]]), f32(values[:, seen[row]])
            scores = q[row] @ k.swapaxes(1, 2) / np.sqrt(head_dim)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out.append((weights / weights.sum(-1, keepdims=True) @ v).ravel())
        return {"attn_out": np.stack(out).astype(bf16)}

    def attn_gate(self, attended, attn_gate):
        return {"attn_out": (f32(attended) * sigmoid(attn_gate)).astype(bf16)}

    def rms_gemms_delta(self, x, attn_norm, w_qkv, w_z, w_ab):
        normed = self.norm(x, attn_norm)
        products = {"delta_qkv": w_qkv, "delta_z": w_z, "delta_ab": w_ab}
        return {name: gemm(weight, normed) for name, weight in products.items()}

    def delta_conv(self, conv_rows, w_conv):
        conv = f32((f32(conv_rows) * f32(w_conv)).sum(-2).astype(bf16))
        return {"mixed": (conv * sigmoid(conv)).astype(bf16)}

    def delta_rule(self, delta_rows, state):
        """A head's row: query, key, decay, rate and whether it is there in f32, value."""
        delta, results = self.config.delta, []
        assert delta
        tiles = state.reshape(delta.values, -1, *state.shape[1:])
        states = np.concatenate([*tiles.swapaxes(0, 1)], axis=-1).astype(np.float64)
        at = 2 * delta.key_dim
        for head, rows in enumerate(delta_rows):
            out = np.zeros((len(rows), delta.value_dim))
            for position, row in enumerate(rows):
                decay, rate, there = np.ascontiguousarray(row[at : at + 16]).view(np.float32)[:3]
                if there:
                    query, key = (unit(f32(part)) for part in np.split(row[:at], 2))
                    decayed = states[head] * decay
                    missing = f32(row[at + 16 :]) - key @ decayed
                    states[head] = decayed + np.outer(key, rate * missing)
                    out[position] = query / np.sqrt(delta.key_dim) @ states[head]
            results.append(out)
        columns = np.split(states, tiles.shape[1], axis=-1)
        new = np.stack(columns, axis=1).reshape(state.shape).astype(np.float32)
        return {"rule_out": np.concatenate(results, axis=1).astype(bf16), "state_out": new}

    def delta_gate(self, delta_out, delta_norm, delta_z):
        heads = delta_out.reshape(len(delta_out), -1, len(delta_norm))
        normed = rms_norm(heads, delta_norm, self.config.rms_norm_eps, 0).reshape(delta_out.shape)
        return {"attn_out": (f32(normed) * f32(delta_z) * sigmoid(delta_z)).astype(bf16)}

    def lm_head(self, x, **parts):
        return {name.replace("lm_head", "logits"): gemm(weight, x) for name, weight in parts.items()}
