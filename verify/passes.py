"""One prompt through the model, recorded: every step's value by layer, for prefill and for decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from llama32_1b.attention import KVCache
from llama32_1b.forward import decode_step, next_token_logits, prefill
from llama32_1b.model import LlamaModel
from llama32_1b.numerics import BF16Array, F32Array
from verify.captures import Call, CallRecorder

# Which argument of which program holds a step's value: (program of prefill, program of decode, argument).
SOURCES: Mapping[str, tuple[str, str, str]] = {
    "input": ("rms_gemms_rope", "rms_gemv_rope", "x"),
    "attn_norm": ("rms_gemms_rope", "rms_gemv_rope", "normed"),
    "q": ("rms_gemms_rope", "rms_gemv_rope", "q"),
    "k": ("rms_gemms_rope", "rms_gemv_rope", "k"),
    "v": ("rms_gemms_rope", "rms_gemv_rope", "v"),
    "rope_q": ("rms_gemms_rope", "rms_gemv_rope", "q_roped"),
    "rope_k": ("rms_gemms_rope", "rms_gemv_rope", "k_roped"),
    "attention": ("flash_attn", "o_gemv_ffn", "attn_out"),  # decode attends on the CPU and passes it on
    "o": ("o_ffn", "o_gemv_ffn", "proj"),
    "attn_residual": ("o_ffn", "o_gemv_ffn", "res1"),
    "ffn_norm": ("o_ffn", "o_gemv_ffn", "normed"),
    "gate": ("o_ffn", "o_gemv_ffn", "gate"),
    "up": ("o_ffn", "o_gemv_ffn", "up"),
    "swiglu": ("o_ffn", "o_gemv_ffn", "swiglu"),
    "down": ("o_ffn", "o_gemv_ffn", "down"),
    "ffn_residual": ("o_ffn", "o_gemv_ffn", "x_next"),
}

UNUSED = 4
"""Positions that the KV cache of decode has to spare, as in a generation: none of them may be looked at."""

StepValues = dict[str, F32Array]
"""By step: (rows, width) in float32, exactly the bf16 values; a step that was never computed is absent."""


@dataclass
class Pass:
    """What prefill or decode computed at the positions `positions`, one row for each."""

    phase: str
    positions: range
    layers: list[StepValues]
    head: StepValues = field(default_factory=dict)


def observe_prefill(model: LlamaModel, token_ids: Sequence[int]) -> Pass:
    """Prefill `token_ids`, then the logits after the last one."""
    recorder = CallRecorder(model.runner)
    recorded = replace(model, runner=recorder)
    cache = model.new_cache(len(token_ids))
    rows = prefill(recorded, token_ids, cache)
    seen = Pass("prefill", range(len(token_ids)), _layers(recorder, 0, len(token_ids), model))
    for layer, values in enumerate(seen.layers):
        _add_keys(values, values, cache, layer, len(token_ids))
    seen.head = _head(recorded, recorder, rows[-1])
    return seen


def observe_decode(model: LlamaModel, token_ids: Sequence[int]) -> Pass:
    """Prefill all of `token_ids` but the last, decode the last, then the logits after it."""
    recorder = CallRecorder(model.runner)
    recorded = replace(model, runner=recorder)
    earlier = len(token_ids) - 1
    cache = model.new_cache(len(token_ids) + UNUSED)
    prefill(recorded, token_ids[:-1], cache)
    row = decode_step(recorded, token_ids[-1], cache)
    seen = Pass("decode", range(earlier, earlier + 1), _layers(recorder, 1, 1, model))
    before = _layers(recorder, 0, earlier, model)
    for layer, values in enumerate(seen.layers):
        _add_keys(values, _joined(before[layer], values), cache, layer, earlier + 1)
    seen.head = _head(recorded, recorder, row)
    return seen


def _layers(recorder: CallRecorder, phase: int, rows: int, model: LlamaModel) -> list[StepValues]:
    """Values of each layer: the n-th call of a program is layer n's, whatever buffers it was made on."""
    layers: list[StepValues] = [{} for _ in range(model.config.num_hidden_layers)]
    for step, source in SOURCES.items():
        calls: list[Call] = recorder.calls.get(source[phase], [])
        for values, call in zip(layers, calls, strict=False):
            values[step] = _rows(call[source[2]], rows)
    return layers


def _joined(before: StepValues, values: StepValues) -> StepValues:
    """Keys and values of the prefilled positions, then those of the decoded one."""
    both = [step for step in ("rope_k", "v") if step in before and step in values]
    return {step: np.concatenate([before[step], values[step]]) for step in both}


def _add_keys(values: StepValues, made: StepValues, cache: KVCache, layer: int, count: int) -> None:
    """Keys and values of all `count` positions: as the programs `made` them, and as the cache holds them."""
    values.update({name: made[step] for name, step in (("keys", "rope_k"), ("values", "v")) if step in made})
    for step, held in zip(("cache_k", "cache_v"), cache.layers[layer], strict=True):
        values[step] = _rows(np.ascontiguousarray(held[:, :count].transpose(1, 0, 2)), count)


def _head(recorded: LlamaModel, recorder: CallRecorder, row: BF16Array) -> StepValues:
    logits = next_token_logits(recorded, row)
    calls = recorder.calls.get("lm_head_gemv", [])
    normed = {"final_norm": _rows(calls[-1]["x"], 1)} if calls else {}
    return {**normed, "logits": logits[None]}


def _rows(array: BF16Array, rows: int) -> F32Array:
    """The first `rows` rows, flat, in float32; a vector is one row."""
    values: F32Array = np.atleast_2d(array)[:rows].astype(np.float32)
    return values.reshape(rows, -1)
