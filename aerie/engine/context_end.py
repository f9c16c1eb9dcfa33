"""What happens when a sequence reaches the end of the largest context: policies, chosen by name.

    stop            nothing is dropped: the answer ends there, and a longer prompt is refused (the default)
    shift:KEEP      the first KEEP tokens stay (4 unless given), and the older half of the rest is dropped
    sink:WINDOW     a token attends to the first 4 positions and the last WINDOW, its own included (half of
    the context unless given); positions that no later token attends to are dropped together

The remaining tokens move down in the cache: a token's position is always its place there. So the model never
gets a position beyond its own, as in StreamingLLM (Xiao et al. 2023).

RoPE rotates a key by its position, so keys that move are rotated again, from the keys before RoPE. The host
stores these in bf16 if a policy needs them: half as many bytes again as keys and values. To rotate the
cache's own keys further would take no memory, but they are rounded: a second rounding changes a fifth of
their elements, and more with every move. Rotated once from the key before RoPE, a key has the bits of a token
that was computed in its new place.

Which positions are dropped depends only on how many tokens came before. A step of a prompt ends where
positions are dropped, so in the decode path `rows` no bit depends on how a sequence was split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from aerie.common.errors import UserError
from aerie.engine.decode_paths import check_feature
from aerie.engine.kv_cache import causal
from aerie.engine.variant_set import VariantSet

SINK_TOKENS = 4
"""The first tokens that always stay: attention sinks (StreamingLLM, section 3.2)."""
STOP, SHIFT, SINK = "stop", "shift", "sink"
POLICIES = (STOP, SHIFT, SINK)


class ContextEndPolicy(Protocol):
    """A policy. `drops`: whether it drops positions; else the sequence ends."""

    @property
    def drops(self) -> bool: ...

    def mask(self, position: int) -> Any:
        """The positions that a token attends to (layer_masks.MaskRule)."""

    def dropped_positions(self, length: int) -> range:
        """The positions to drop from a full cache of `length` positions; one or more."""


@dataclass(frozen=True)
class StopAtEnd:
    """A token attends to itself and all before it. Nothing is dropped."""

    drops = False

    mask = staticmethod(causal)  # the executor knows it, and masks all rows at once

    def dropped_positions(self, length: int) -> range:
        raise IndexError(f"a cache of {length} positions is full, and nothing of it is dropped")


@dataclass(frozen=True)
class ShiftContext:
    """A token attends to all positions that are held. keep: number of first tokens that stay."""

    keep: int = SINK_TOKENS
    drops = True

    mask = staticmethod(causal)  # the executor knows it, and masks all rows at once

    def dropped_positions(self, length: int) -> range:
        return range(self.keep, self.keep + (length - self.keep) // 2)


@dataclass(frozen=True)
class AttentionSink:
    """A token attends to the first SINK_TOKENS and the last `window` positions, its own included."""

    window: int
    drops = True

    def mask(self, position: int) -> Any:
        first = position - self.window + 1
        if first <= SINK_TOKENS:
            return causal(position)
        return np.concatenate([np.arange(SINK_TOKENS), np.arange(first, position + 1)])

    def dropped_positions(self, length: int) -> range:
        return range(SINK_TOKENS, length - self.window + 1)


def split_at_drops(
    policy: ContextEndPolicy, positions: int, tokens: int, past: int
) -> Iterator[tuple[int, int]]:
    """Split `tokens` after `past` where positions are dropped. Yields (positions before, tokens) of each
    part.

    positions: of a full cache.
    """
    while tokens:
        if past >= positions and policy.drops:
            past -= len(policy.dropped_positions(past))
        taken = min(tokens, positions - past) if policy.drops else tokens
        yield past, taken
        past, tokens = past + taken, tokens - taken


def context_end(text: str, variant_set: VariantSet, context: int, reach: int = 0) -> ContextEndPolicy:
    """The policy with the name `text`, for a model of `context` positions. reach: so many last positions stay
    at least, since short convolutions read their rows (LayerStates).

    Raises UserError for an unknown name, for a number that leaves nothing to drop, and for programs that do
    not support the policy.
    """
    name, _, number_text = text.partition(":")
    if name not in POLICIES or (name == STOP and text != STOP):
        raise UserError(
            f"context-end is {text!r} (CONTEXT_END); give stop, shift or sink, with a number where you want "
            "another: shift:KEEP first tokens, sink:WINDOW positions"
        )
    if name == STOP:
        return StopAtEnd()
    _check_programs(name, variant_set)
    positions = variant_set.positions(context)
    limits = (0, positions - max(2, 2 * reach - 1)), (1 + reach, positions - SINK_TOKENS)
    min_number, max_number = limits[name == SINK]
    default = SINK_TOKENS if name == SHIFT else positions // 2
    number = int(number_text) if number_text.isdecimal() else default if text == name else -1
    if not min_number <= number <= max_number:
        raise UserError(
            f"context-end is {text!r} (CONTEXT_END), and its number must be from {min_number} to "
            f"{max_number}: of the {positions} positions of the context some must be left to drop"
            f"{f', and the last {reach} stay, which short convolutions read' if reach else ''}; give another"
        )
    return ShiftContext(number) if name == SHIFT else AttentionSink(number)


def _check_programs(name: str, variant_set: VariantSet) -> None:
    """Raises UserError if a prompt's programs cannot continue in a cache with dropped positions."""
    check_feature(name, variant_set)
    if not variant_set.seq_len and all(one.rows == one.context for one in variant_set.variants):
        raise UserError(
            f"context-end {name} goes on after what the cache holds (CONTEXT_END), and the variants "
            "(VARIANTS) have as many rows as positions and compute it anew; add one of fewer rows, as 8x512"
        )
