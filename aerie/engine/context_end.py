"""What happens where a sequence comes to the end of the largest context: policies, chosen by name.

    stop            nothing is dropped: the answer ends there, and a longer prompt is refused (the default)
    shift:KEEP      the first KEEP tokens stay (4 unless given), and of the rest the older half is dropped
    sink:WINDOW     a token sees the first 4 positions and the last WINDOW, itself among them (half of the
                    context unless given); what no later token sees is dropped, all in one go

The tokens that stay move down in the cache: a token's position is its place there, always. So the positions
that the model is given never pass those that it has, as in StreamingLLM (Xiao et al. 2023).

A key is turned by its position, so keys that move are turned anew. They are made from the keys as they were
before RoPE, which the host keeps beside the cache where a policy asks for them, in bf16: half as many bytes
again as keys and values. Turning the cache's own keys on would take no memory, but they are rounded: a second
rounding changes a fifth of their elements, and more with every time that they move. Turned once from what
RoPE was given, a key has the bits that it would have had, had the token been read in its new place.

What is dropped depends on how many tokens went in before and on nothing else. A step of a prompt ends where
something is dropped, so in the family `rows` no bit depends on how a sequence was cut.
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
"""The first tokens that always stay: attention rests on them (StreamingLLM, section 3.2)."""
STOP, SHIFT, SINK = "stop", "shift", "sink"
POLICIES = (STOP, SHIFT, SINK)


class ContextEndPolicy(Protocol):
    """A policy. `drops`: whether it makes room; else the end is an end."""

    @property
    def drops(self) -> bool: ...

    def mask(self, position: int) -> Any:
        """What a token sees (kv.MaskRule)."""

    def dropped_positions(self, length: int) -> range:
        """Of a full cache of so many positions, those to be dropped: 1 or more."""


@dataclass(frozen=True)
class StopAtEnd:
    """A token sees itself and all before it, and nothing is dropped."""

    drops = False

    def mask(self, position: int) -> Any:
        return causal(position)

    def dropped_positions(self, length: int) -> range:
        raise IndexError(f"a cache of {length} positions is full, and nothing of it is dropped")


@dataclass(frozen=True)
class ShiftContext:
    """A token sees all that is held. keep: how many first tokens stay."""

    keep: int = SINK_TOKENS
    drops = True

    def mask(self, position: int) -> Any:
        return causal(position)

    def dropped_positions(self, length: int) -> range:
        return range(self.keep, self.keep + (length - self.keep) // 2)


@dataclass(frozen=True)
class AttentionSink:
    """A token sees the first SINK_TOKENS and the last `window` positions, itself among them."""

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
    """How `tokens` after `past` are cut by what is dropped on the way: of each part, tokens before it and in
    it.

    positions: of a full cache.
    """
    while tokens:
        if past >= positions and policy.drops:
            past -= len(policy.dropped_positions(past))
        taken = min(tokens, positions - past) if policy.drops else tokens
        yield past, taken
        past, tokens = past + taken, tokens - taken


def context_end(text: str, variant_set: VariantSet, context: int) -> ContextEndPolicy:
    """The policy that `text` names, for programs of `blocks` and a model of `context` positions.

    Raises UserError for a name that is none, a number that leaves nothing to drop, and programs that the
    policy cannot be had with.
    """
    name, _, given = text.partition(":")
    if name not in POLICIES or (name == STOP and text != STOP):
        raise UserError(
            f"context-end is {text!r} (CONTEXT_END); give stop, shift or sink, with a number where you want "
            "another: shift:KEEP first tokens, sink:WINDOW positions"
        )
    if name == STOP:
        return StopAtEnd()
    _check_programs(name, variant_set)
    positions = variant_set.positions(context)
    least, most = (0, positions - 2) if name == SHIFT else (1, positions - SINK_TOKENS)
    default = SINK_TOKENS if name == SHIFT else positions // 2
    number = int(given) if given.isdecimal() else default if text == name else -1
    if not least <= number <= most:
        raise UserError(
            f"context-end is {text!r} (CONTEXT_END), and its number must be from {least} to {most}: of the "
            f"{positions} positions of the context some must be left to drop; give another"
        )
    return ShiftContext(number) if name == SHIFT else AttentionSink(number)


def _check_programs(name: str, variant_set: VariantSet) -> None:
    """UserError where a prompt's programs cannot go on in a cache of which something is gone."""
    check_feature(name, variant_set)
    if not variant_set.seq_len and all(one.rows == one.context for one in variant_set.variants):
        raise UserError(
            f"context-end {name} goes on after what the cache holds (CONTEXT_END), and the variants "
            "(VARIANTS) have as many rows as positions and compute it anew; add one of fewer rows, as 8x512"
        )
