"""The LM head: from rows of the last layer's output to logits. The host computes the final RMSNorm."""

from __future__ import annotations

import numpy as np

from aerie.engine.communication import broadcast_from_first
from aerie.engine.logits import last_row
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array, bf16, rms_norm, widen
from aerie.engine.programs import buffer_set


def logits_rows(model: LoadedModel, hidden: BF16Array, decode_path: str = "") -> list[BF16Array | F32Array]:
    """Logits after each of these rows, (rows, hidden_size), which the LM head takes a few at a time:
    (vocab_size,) each, bf16 if the program gives bf16. A Sampler takes both.

    decode_path: whose LM head to use; "" means the model's. With several processes, the first one's LM head
    computes the logits for all.
    """
    if model.group.world_size == 1:
        return _logits_rows(model, hidden, decode_path)
    rows = np.empty((len(hidden), model.config.vocab_size), bf16)
    if model.group.rank == 0:
        try:
            rows[...] = _logits_rows(model, hidden, decode_path)
        except BaseException:
            model.group.abort()
            raise
    return list(broadcast_from_first(model.group, rows))


def _logits_rows(model: LoadedModel, hidden: BF16Array, decode_path: str) -> list[BF16Array | F32Array]:
    name, rows = model.variant_set.lm_head(len(hidden), decode_path), list[BF16Array | F32Array]()
    model.ensure_programs([name])
    head = model.program(name)
    key, x = buffer_set(head, 0), np.zeros(head.arguments["x"].shape, bf16)
    input_rows = x.reshape(head.rows, -1)
    for first in range(0, len(hidden), head.rows):
        chunk = hidden[first : first + head.rows]
        with model.host_timer("final RMSNorm"):
            input_rows[: len(chunk)] = final_norm(model, chunk)
            input_rows[len(chunk) :] = 0
        outputs = model.runner.run(head, bo_key=key, on_device=(), copy=False, x=x)
        for row in range(len(chunk)):
            row_outputs = {name: array.reshape(head.rows, -1)[row] for name, array in outputs.items()}
            logits = last_row(head.arguments, row_outputs, model.config.vocab_size)
            rows.append(_divided(logits, model.config.multipliers.logits_divisor))
    return rows


def final_norm(model: LoadedModel, hidden: BF16Array) -> BF16Array:
    """The RMSNorm after the last layer, of rows of its output, (rows, hidden_size)."""
    config = model.config
    return rms_norm(hidden, model.final_norm, config.rms_norm_eps, config.family.norm_weight_offset)


def _divided(logits: BF16Array | F32Array, divisor: float) -> BF16Array | F32Array:
    """Logits divided by a factor of the model, with the dtype that they have."""
    if divisor == 1:
        return logits
    wide = widen(logits) if logits.dtype == bf16 else logits
    return (wide / np.float32(divisor)).astype(logits.dtype)
