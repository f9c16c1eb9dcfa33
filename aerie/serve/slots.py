"""Slots of llama.cpp's API: numbers by which clients name the cached tokens of an output and its prompt.

A slot is only a name. It holds the token ids of the last output that used it and no pages: the prefix cache
finds pages by their tokens, for any request.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aerie.engine.embeddings import Token
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import PagePool
from aerie.engine.requests import Request
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS


@dataclass
class Slot:
    """One slot. request: the last one that used it. restored: token ids from a file, instead of a request.
    used: larger means more recently used; 0 means never."""

    request: Request | None = None
    restored: Sequence[Token] = ()
    used: int = 0

    @property
    def tokens(self) -> Sequence[Token]:
        """Prompt and output token ids so far."""
        return self.request.tokens if self.request else self.restored

    @property
    def is_processing(self) -> bool:
        return self.request is not None and not self.request.is_finished

    def prefix_length_in(self, prompt: Sequence[Token]) -> int:
        """Length of the slot's prompt if `prompt` starts with all of it, else 0."""
        own = tuple(self.request.prompt if self.request else self.restored)
        return len(own) if own == tuple(prompt[: len(own)]) else 0


class Slots:
    """One slot per concurrently running request. Call assign, restore and erase in the model thread only."""

    def __init__(self) -> None:
        self.all = [Slot() for _ in range(MAX_RUNNING_REQUESTS)]
        self._uses = itertools.count(1)

    def assign(self, request: Request, number: int | None) -> None:
        """Give a request its slot: `number`, else the idle slot with the longest prompt that the new prompt
        starts with (the next turn of a conversation), else the least recently used idle slot."""
        self._put(self.all[self._idle(request.prompt) if number is None else number], Slot(request))

    def restore(self, number: int, tokens: Sequence[Token]) -> None:
        """Set the token ids of a slot."""
        self._put(self.all[number], Slot(restored=tokens))

    def erase(self, number: int, pool: PagePool) -> int:
        """Clear a slot and drop its pages from the prefix cache, except pages that other slots share. Returns
        the number of dropped tokens."""
        tokens = self.all[number].tokens
        self._put(self.all[number], Slot())
        shared = max(_common_prefix(tokens, other.tokens) for other in self.all)
        keys = list(pool.page_keys(tokens, pool.first_key))[shared // PAGE_SIZE :]
        cached = [key for key in keys if pool.manager.contains([key])]
        pool.manager.evict(cached)
        return len(cached) * PAGE_SIZE

    def to_json(self, positions: int) -> list[dict[str, Any]]:
        """The body of GET /slots. positions: the context of the model, in tokens."""
        return [
            {"id": number, "n_ctx": positions, **_slot_to_json(slot)} for number, slot in enumerate(self.all)
        ]

    def _put(self, slot: Slot, content: Slot) -> None:
        slot.request, slot.restored, slot.used = content.request, content.restored, next(self._uses)

    def _idle(self, prompt: Sequence[Token]) -> int:
        """Index of the best idle slot; of any slot if none is idle, as clients may use the slots of running
        requests."""
        numbers = range(len(self.all))
        idle = [number for number in numbers if not self.all[number].is_processing] or [*numbers]
        return max(
            idle, key=lambda number: (self.all[number].prefix_length_in(prompt), -self.all[number].used)
        )


def _slot_to_json(slot: Slot) -> dict[str, Any]:
    request = slot.request
    generated, remaining = (len(request.token_ids), request.remaining_tokens) if request else (0, 0)
    next_token = {"has_next_token": slot.is_processing, "n_remain": remaining, "n_decoded": generated}
    return {
        "speculative": False,
        "is_processing": slot.is_processing,
        "n_prompt_tokens": len(request.prompt) if request else len(slot.restored),
        "n_prompt_tokens_cache": request.cached_tokens if request else 0,
        "next_token": [next_token],
    }


def _common_prefix(tokens: Sequence[Token], others: Sequence[Token]) -> int:
    """Length of the common prefix of two token sequences."""
    return sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(tokens, others, strict=False))
    )
