"""From a hidden row to logits: the final RMSNorm on the host, the projection in eight partitions."""

from __future__ import annotations

import numpy as np

from llama32_1b.model import LlamaModel
from llama32_1b.numerics import BF16Array, F32Array, rms_norm, widen
from llama32_1b.programs import LM_HEAD_PARTITIONS


def next_token_logits(model: LlamaModel, hidden: BF16Array) -> F32Array:
    """Logits after one position: `hidden` is that row of the last layer's output, (hidden_size,).

    Returns (vocab_size,) in float32 (values of bf16 precision); the padding of the vocabulary is cut.
    """
    with model.host_timer("final RMSNorm"):
        x = rms_norm(hidden, model.final_norm, model.config.rms_norm_eps)
    parts = model.run("lm_head_gemv", x=x)
    logits = np.concatenate([parts[f"logits_{part}"] for part in range(LM_HEAD_PARTITIONS)])
    return widen(logits[: model.config.vocab_size])
