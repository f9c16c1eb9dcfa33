"""The entries `rope_parameters` of a config.json, from a GGUF file.

Keys name the rules linear, yarn and longrope. The rule of Llama 3.1 and later leaves no key: the file has a
tensor of divisors, one for each frequency, of which the four numbers of the rule are found again where they
can be, so that tables have the bits that they have from the source's config.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aerie.engine.errors import ConfigError
from aerie.engine.gguf.architectures import LONG_FACTORS, ROPE_FREQS, SHORT_FACTORS
from aerie.engine.gguf.block_types import READ
from aerie.engine.gguf.container import TensorEntry, read_bytes, short
from aerie.engine.gguf.model_files import GGUFModel

ORIGINAL = "original_max_position_embeddings"
DEFAULT_BASE = 10000.0
LLAMA_3 = (1.0, 4.0, 8192)
"""low_freq_factor, high_freq_factor and original length of every published model of the rule."""
MAX_ORIGINAL_POSITIONS = 1 << 30
CLOSE = 1e-6
"""How far the inverse of a divisor, computed in float32, may be from that of the rule that made it."""

OF_YARN = {
    "attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


def rope_entries(model: GGUFModel, head_dim: int) -> dict[str, Any]:
    """With rope_theta and rope_type. Raises ConfigError."""
    base = rope_base(model)
    kind = model.metadata.get(f"{model.architecture}.rope.scaling.type") or "none"
    if kind == "none" and LONG_FACTORS in model.tensors:  # files of Phi-3 name no rule
        kind = "longrope"
    if ROPE_FREQS in model.tensors:
        if kind != "none":
            raise ConfigError(
                f"{model.path}: it has {ROPE_FREQS} and rope.scaling.type {short(repr(kind))}: which of them "
                "the model was trained with is not known; fetch the file again"
            )
        rule = _by_divisors(_factors(model, ROPE_FREQS, head_dim), base, head_dim, model)
    else:
        rule = _by_keys(model, str(kind), head_dim)
    return {"rope_theta": base, **rule}


def rope_base(model: GGUFModel) -> float:
    """RoPE's base. Raises ConfigError."""
    return _number(model, "freq_base", DEFAULT_BASE)


def _by_keys(model: GGUFModel, kind: str, head_dim: int) -> dict[str, Any]:
    """By rope.scaling.type; an older key says a linear factor alone."""
    linear = _number(model, "scale_linear", 1.0)
    if kind == "none":
        return {"rope_type": "linear", "factor": linear} if linear != 1 else {"rope_type": "default"}
    rule: dict[str, Any] = {"rope_type": kind}
    if f"{model.architecture}.rope.scaling.factor" in model.metadata or kind in ("linear", "yarn"):
        rule["factor"] = _number(model, "scaling.factor", linear)
    original = model.metadata.get(f"{model.architecture}.rope.scaling.original_context_length")
    if original:
        rule[ORIGINAL] = original
    for ours, theirs in OF_YARN.items():
        if f"{model.architecture}.rope.scaling.{ours}" in model.metadata:
            rule[theirs] = _number(model, f"scaling.{ours}", 1.0)
    if kind == "yarn" and "attention_factor" in rule:  # files have a factor of yarn's own magnitude
        rule["attention_factor"] *= 0.1 * math.log(rule["factor"]) + 1
    if kind == "longrope":
        rule["long_factor"] = _factors(model, LONG_FACTORS, head_dim)
        rule["short_factor"] = _factors(model, SHORT_FACTORS, head_dim)
    return rule


def _number(model: GGUFModel, name: str, default: float) -> float:
    key = f"{model.architecture}.rope.{name}"
    value = model.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(
            f"{model.path}: {key} is {short(repr(value))}; it must be a finite number above 0: fetch the "
            "file again"
        )
    return float(value)


def _factors(model: GGUFModel, name: str, head_dim: int) -> list[float]:
    """The values of a tensor of factors, one for each pair of a head."""
    entry = model.tensors.get(name)
    if entry is None:
        raise ConfigError(
            f"{model.path}: tensor {name} is missing, and its RoPE rule needs it; fetch it again"
        )
    values = _values(entry)
    if len(values) != head_dim // 2 or not all(0 < value < math.inf for value in values):
        raise ConfigError(
            f"{entry.path}: tensor {name} has {len(values)} values of {entry.kind.name} "
            f"({short(', '.join(map(str, values)))}); wanted are {head_dim // 2} finite ones above 0 in F32, "
            "one for each pair of a head: fetch the file again"
        )
    return values


def _values(entry: TensorEntry) -> list[float]:
    """Of a vector in F32; none for another."""
    if entry.kind is not READ[0] or len(entry.shape) != 1:
        return []
    raw = read_bytes(entry.path, entry.start, min(entry.size, 1 << 20), f"tensor {entry.name}")
    return [float(value) for value in np.frombuffer(raw, "<f4")]


def _by_divisors(divisors: Sequence[float], base: float, head_dim: int, model: GGUFModel) -> dict[str, Any]:
    """The rule llama3 that made them, where one did; else they are taken as they are, by longrope's rule with
    one set of factors."""
    given = np.array(divisors, np.float32)
    powers = np.float64(base) ** (np.arange(0, head_dim, 2) / head_dim)
    turns = 1 / (2 * math.pi * powers)  # per token
    factor = max(divisors)
    for low, high, original in (LLAMA_3, *_solved(given, turns, factor)):
        made = _divisors(turns, factor, low, high, original)
        if np.all(np.abs(1 / made - 1 / given) <= CLOSE):
            rule = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high, ORIGINAL: original}
            return {"rope_type": "llama3", **rule}
    same = list(divisors)
    positions = model.metadata.get(f"{model.architecture}.context_length")
    return {
        "rope_type": "longrope",
        "short_factor": same,
        "long_factor": same,
        ORIGINAL: positions,
        "attention_factor": 1.0,
    }


Values = npt.NDArray[np.float64]


def _divisors(turns: Values, factor: float, low: float, high: float, original: int) -> Values:
    """What llama.cpp's converter writes for the rule llama3, of frequencies in turns per token."""
    kept = np.clip((original * turns - low) / (high - low), 0, 1)
    return 1 / ((1 - kept) / factor + kept)


def _solved(
    given: npt.NDArray[np.float32], turns: Values, factor: float
) -> Iterator[tuple[float, float, int]]:
    """The numbers of the rule from the divisors between 1 and the factor. Only their proportions make a
    difference: low_freq_factor is taken for 1, as it is in every published model."""
    between = np.flatnonzero((given > 1) & (given < np.float32(factor)))
    if len(between) < 2 or turns[between[0]] == turns[between[-1]]:
        return
    ends = between[[0, -1]]
    kept = (1 / given[ends].astype(np.float64) - 1 / factor) / (1 - 1 / factor)
    slope = float((kept[0] - kept[1]) / (turns[ends[0]] - turns[ends[1]]))
    offset = float(kept[0]) - slope * float(turns[ends[0]])
    if not (offset < 0 < slope and 1 <= -slope / offset <= MAX_ORIGINAL_POSITIONS):
        return
    high = round(1 - 1 / offset, 3)
    if high > 1:
        yield 1.0, high, round(-slope / offset)
