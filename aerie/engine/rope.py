"""RoPE scaling: how a rule changes the frequencies of plain RoPE, and up to which length they hold.

Formulas, defaults and order of operations are those of transformers' modeling_rope_utils. Powers are rounded
to float32 from float64, as torch's are in all but rare cases; all else is float32 in the same order. So the
table in bf16 equals transformers' own, but for a few elements in 100,000 whose cosine rounds the other way.

A rule whose frequencies depend on the length of a text does not fit a KV cache, whose keys are rotated once.
LongRoPE has two sets, one for texts within the original length: that one is used, and the context ends there,
unless a session asks for more positions: then the other set turns all its texts, as llama.cpp and vLLM do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from aerie.engine.config_reader import ConfigReader, short
from aerie.engine.errors import ConfigError

Frequencies = npt.NDArray[np.float32]
"""Radians per position for each of the head_dim / 2 pairs, (head_dim // 2,)."""


ONE = np.float32(1)
ORIGINAL, GROWTH = "original_max_position_embeddings", "llama_4_scaling_beta"


class RopeScaling(Protocol):
    """A rule of config.json that changes plain RoPE. name: as in config.json."""

    @property
    def name(self) -> str: ...

    @property
    def magnitude(self) -> float:
        """Factor of cosines and sines, for queries and keys alike."""

    @property
    def positions(self) -> int | None:
        """The length in tokens up to which these frequencies hold; None means any."""

    def frequencies(self, powers: Frequencies) -> Frequencies:
        """The scaled frequencies. powers: theta ** (2 i / head_dim), the inverse of plain RoPE's
        frequencies."""


@dataclass(frozen=True)
class LinearScaling:
    """Divides all frequencies by `factor`."""

    factor: float
    name = "linear"
    magnitude = 1.0
    positions = None

    def frequencies(self, powers: Frequencies) -> Frequencies:
        return ONE / powers / np.float32(self.factor)


@dataclass(frozen=True)
class Llama3Scaling:
    """Long wavelengths are stretched by `factor`, short ones kept, the rest blended.

    Lengths are in tokens. Llama-3.2-1B: factor 32, low 1, high 4, original 8192.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    name = "llama3"
    magnitude = 1.0
    positions = None

    def frequencies(self, powers: Frequencies) -> Frequencies:
        """Wavelengths well inside the original context are kept, those beyond it stretched."""
        plain, factor = ONE / powers, np.float32(self.factor)
        original, low, high = (
            np.float32(value)
            for value in (self.original_max_position_embeddings, self.low_freq_factor, self.high_freq_factor)
        )
        wavelengths = ONE / plain * np.float32(2 * math.pi)  # in tokens per turn
        share_kept = (ONE / wavelengths * original - low) / (high - low)
        blended = (ONE - share_kept) * plain / factor + share_kept * plain
        long, short = wavelengths > original / low, wavelengths < original / high
        return np.where(long, plain / factor, np.where(short, plain, blended))


@dataclass(frozen=True)
class LongRopeScaling:
    """Divides each frequency by its own factor: `short_factor` for texts up to the original length, in
    tokens, `long_factor` for longer ones. is_long: whether texts of a session may be longer, and all are
    turned as long ones are."""

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float
    is_long: bool = False
    name = "longrope"

    @property
    def magnitude(self) -> float:
        return self.attention_factor

    @property
    def positions(self) -> int | None:
        holds_anywhere = self.is_long or self.short_factor == self.long_factor
        return None if holds_anywhere else self.original_max_position_embeddings

    def for_length(self, positions: int) -> LongRopeScaling:
        """The rule for texts of up to so many tokens."""
        return replace(self, is_long=positions > self.original_max_position_embeddings)

    def frequencies(self, powers: Frequencies) -> Frequencies:
        factors = self.long_factor if self.is_long else self.short_factor
        return ONE / (np.array(factors, np.float32) * powers)


@dataclass(frozen=True)
class YarnScaling:
    """Fast frequencies are kept, slow ones divided by `factor`, those between blended (arXiv 2309.00071).

    A frequency is fast that turns `beta_fast` times within the original length, in tokens, and slow that
    turns `beta_slow` times. truncate: whether the ends of the blend are whole pairs. rope_theta: RoPE's base.
    attention_factor: of cosines and sines. llama_4_scaling_beta: how fast queries grow with their position
    beyond the original length, as in Ministral 3; up to it they do not.
    """

    factor: float
    original_max_position_embeddings: int
    rope_theta: float
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    llama_4_scaling_beta: float = 0.0
    name = "yarn"
    positions = None

    @property
    def magnitude(self) -> float:
        return self.attention_factor

    def frequencies(self, powers: Frequencies) -> Frequencies:
        pairs = len(powers)
        first, last = (self._pair(turns, 2 * pairs) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        last += 0.001 if first == last else 0
        ramp = (np.arange(pairs, dtype=np.float32) - np.float32(first)) / np.float32(last - first)
        share_kept = ONE - np.clip(ramp, 0, 1)
        stretched = ONE / (np.float32(self.factor) * powers)
        blended: Frequencies = stretched * (ONE - share_kept) + ONE / powers * share_kept
        return blended

    def _pair(self, turns: float, width: int) -> float:
        """The pair, in fractions, that turns so many times within the original length."""
        length = self.original_max_position_embeddings / (turns * 2 * math.pi)
        return width * math.log(length) / (2 * math.log(self.rope_theta))


def inverse_frequencies(head_dim: int, theta: float, rule: RopeScaling | None) -> Frequencies:
    """The frequencies by a rule, None for plain RoPE."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = (np.float64(theta) ** exponents.astype(np.float64)).astype(np.float32)
    return rule.frequencies(powers) if rule else ONE / powers


def read_rule(rope: ConfigReader, head_dim: int, positions: int) -> RopeScaling | None:
    """The rule that RoPE's entries name, None for plain RoPE, in a model of so many positions.

    Raises ConfigError for a rule, and for an entry beside it, that would not be followed.
    """
    kind = str(rope.get("rope_type"))
    kind = "longrope" if kind == "su" else kind  # as the first Phi-3 called it
    if kind in PLAIN_WITHOUT_FACTOR and rope.get("factor") == 1:
        kind = "default"
    if kind not in RULES:
        *first, last = map(repr, RULES)
        raise ConfigError(
            f"{rope.path}: RoPE rule {short(rope.get('rope_type'))} is not supported; "
            f"{', '.join(first)} and {last} are"
        )
    known, read = RULES[kind]
    for name, value in rope.entries.items():
        is_read = name in {*known, *TYPE_ENTRIES} or (kind == "default" and name in STRETCH_ENTRIES)
        if not is_read and value != NEUTRAL.get(name):
            raise ConfigError(
                f"{rope.path}: RoPE has {name} {short(value)}, which the rule {kind!r} knows nothing of; "
                "models whose positions are turned otherwise are not supported"
            )
    return read(rope, head_dim, positions)


def _plain(rope: ConfigReader, head_dim: int, positions: int) -> None:  # noqa: ARG001
    return None


def _linear(rope: ConfigReader, head_dim: int, positions: int) -> LinearScaling:  # noqa: ARG001
    return LinearScaling(rope.number("factor"))


def _llama3(rope: ConfigReader, head_dim: int, positions: int) -> Llama3Scaling:  # noqa: ARG001
    rule = Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position_embeddings=rope.positive_int(
            ORIGINAL, default=positions, most=MAX_ORIGINAL_LENGTH
        ),
    )
    if rule.high_freq_factor <= rule.low_freq_factor:
        raise ConfigError(
            f"{rope.path}: high_freq_factor {rule.high_freq_factor} must be above "
            f"low_freq_factor {rule.low_freq_factor}"
        )
    return rule


def _longrope(rope: ConfigReader, head_dim: int, positions: int) -> LongRopeScaling:
    original = rope.positive_int(ORIGINAL, default=positions, most=MAX_ORIGINAL_LENGTH)
    factor = rope.number("factor", default=positions / original)
    magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return LongRopeScaling(
        short_factor=_factors(rope, "short_factor", head_dim // 2),
        long_factor=_factors(rope, "long_factor", head_dim // 2),
        original_max_position_embeddings=original,
        attention_factor=rope.number("attention_factor", default=magnitude),
    )


def _yarn(rope: ConfigReader, head_dim: int, positions: int) -> YarnScaling:  # noqa: ARG001
    original = rope.positive_int(ORIGINAL, default=positions, most=MAX_ORIGINAL_LENGTH)
    factor, theta = rope.number("factor", default=positions / original), rope.number("rope_theta", 10000.0)
    fast, slow = rope.number("beta_fast", default=32.0), rope.number("beta_slow", default=1.0)
    if theta <= 1 or fast <= slow:
        raise ConfigError(
            f"{rope.path}: rope_theta {theta:g} must be above 1, and beta_fast {fast:g} above beta_slow "
            f"{slow:g}; other frequencies cannot be blended: fetch it again"
        )

    def magnitude(scale: float = 1.0) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    by_scales = magnitude()
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        by_scales = magnitude(rope.number("mscale")) / magnitude(rope.number("mscale_all_dim"))
    attention_factor = rope.number("attention_factor", default=by_scales)
    growth = rope.number(GROWTH, default=0.0) if rope.get(GROWTH) else 0.0
    return YarnScaling(
        factor, original, theta, attention_factor, fast, slow, rope.flag("truncate", default=True), growth
    )


def _dynamic(rope: ConfigReader, head_dim: int, positions: int) -> None:  # noqa: ARG001
    """Plain RoPE up to the model's positions, where the context ends; beyond them frequencies would change
    with the length of the text, and keys in a cache, turned earlier, would no longer fit."""
    rope.number("factor")


def _factors(rope: ConfigReader, name: str, pairs: int) -> tuple[float, ...]:
    given = rope.items(name)
    if len(given) != pairs:
        raise ConfigError(
            f"{rope.path}: {name} has {len(given)} factors and a head has {pairs} pairs to turn; fetch it "
            "again"
        )
    return tuple(ConfigReader(rope.path, {name: value}).number(name) for value in given)


def rule_entries(rule: RopeScaling) -> dict[str, Any]:
    """The entries of config.json that `read_rule` makes this rule of."""
    of_rule = {name: value for name, value in vars(rule).items() if name != "is_long"}
    if not of_rule.get(GROWTH):
        of_rule.pop(GROWTH, None)
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in of_rule.items()}
    return {"rope_type": rule.name, **given}


Reader = Callable[[ConfigReader, int, int], RopeScaling | None]
"""From RoPE's entries, head_dim and the model's positions."""

MAX_ORIGINAL_LENGTH = 1 << 30
RULES: dict[str, tuple[tuple[str, ...], Reader]] = {
    "default": ((ORIGINAL,), _plain),
    "linear": (("factor", ORIGINAL), _linear),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", ORIGINAL), _llama3),
    "yarn": (
        (
            *("factor", "attention_factor", "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim"),
            *("finetuned", ORIGINAL, GROWTH, "max_position_embeddings"),
        ),
        _yarn,
    ),
    "dynamic": (("factor", ORIGINAL), _dynamic),
    "longrope": (("short_factor", "long_factor", "factor", "attention_factor", ORIGINAL), _longrope),
}
"""Every rule: the entries that it knows, and what reads them."""

PLAIN_WITHOUT_FACTOR = ("dynamic", "yarn")
"""Rules that are plain RoPE with a factor of 1."""

TYPE_ENTRIES = ("rope_theta", "rope_type", "type")
NEUTRAL: dict[str, Any] = {"partial_rotary_factor": 1.0, "attention_factor": 1.0, "factor": 1.0}
"""Entries of RoPE that change nothing at these values."""
STRETCH_ENTRIES = (
    *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate", "finetuned"),
    *("mscale", "mscale_all_dim", ORIGINAL),
)
"""Entries that say how a factor stretches frequencies: nothing where it stretches none."""
