"""From a hidden row to logits: the final RMSNorm on the host, the projection in eight partitions."""

from __future__ import annotations

import numpy as np

from llama32_1b.model import LlamaModel
from llama32_1b.numerics import BF16Array, F32Array, bf16, rms_norm, widen
from llama32_1b.programs import LM_HEAD_PARTITIONS

_PARTS = [f"logits_{part}" for part in range(LM_HEAD_PARTITIONS)]


def next_token_logits(model: LlamaModel, hidden: BF16Array) -> F32Array:
    """Logits after one position: `hidden` is that row of the last layer's output, (hidden_size,).

    Returns (vocab_size,) in float32 (values of bf16 precision); the padding of the vocabulary is cut.
    """
    return widen(next_token_row(model, hidden))


def next_token_row(model: LlamaModel, hidden: BF16Array) -> BF16Array:
    """As next_token_logits, in bf16 as the program gives them: what a Sampler takes as well."""
    with model.host_timer("final RMSNorm"):
        x = rms_norm(hidden, model.final_norm, model.config.rms_norm_eps)
    parts = model.run("lm_head_gemv", x=x)
    bits = np.concatenate([parts[name].view(np.uint16) for name in _PARTS])
    return bits[: model.config.vocab_size].view(bf16)
