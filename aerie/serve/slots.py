"""Slots, as llama.cpp's server has them: numbers by which clients name what the KV pool holds of an answer
and its prompt.

A slot is a name, and no room of its own: pages are found by what they hold, whoever asks. So a slot has the
token ids of what was answered in it last, and whether that goes on, and no page.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aerie.engine.embeddings import Token
from aerie.engine.pages import PAGE, PagePool
from aerie.engine.requests import Request
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS


@dataclass
class Slot:
    """request: the last one that was answered in it. restored: what it has from a file, in its place. used:
    the higher, the later it was used; 0: never."""

    request: Request | None = None
    restored: Sequence[Token] = ()
    used: int = 0

    @property
    def tokens(self) -> Sequence[Token]:
        """Of the prompt, and of the answer as far as it came."""
        return self.request.tokens if self.request else self.restored

    @property
    def is_processing(self) -> bool:
        return self.request is not None and not self.request.is_over

    def is_begun_by(self, prompt: Sequence[Token]) -> int:
        """How many tokens of the slot's own prompt a prompt begins with: all of them, or 0."""
        own = tuple(self.request.prompt if self.request else self.restored)
        return len(own) if own == tuple(prompt[: len(own)]) else 0


class Slots:
    """As many as answers are under way at once. `give`, `restore` and `erase` in the model's thread."""

    def __init__(self) -> None:
        self.all = [Slot() for _ in range(MAX_RUNNING_REQUESTS)]
        self._uses = itertools.count(1)

    def give(self, request: Request, wanted: int | None) -> None:
        """The slot of a request that is about to be answered: the one that it wants; else one in which
        nothing goes on, that whose prompt it begins with, as the next turn of a conversation does, or the one
        that was not used for longest."""
        self._put(self.all[self._idle(request.prompt) if wanted is None else wanted], Slot(request))

    def restore(self, number: int, tokens: Sequence[Token]) -> None:
        """A slot has these from now on."""
        self._put(self.all[number], Slot(restored=tokens))

    def erase(self, number: int, pool: PagePool) -> int:
        """Have a slot be empty, and what it had found no more, but for what other slots have too; how many
        tokens are forgotten."""
        tokens = self.all[number].tokens
        self._put(self.all[number], Slot())
        shared = max(_alike(tokens, other.tokens) for other in self.all)
        keys = list(pool.keys(tokens, pool.first_key))[shared // PAGE :]
        found = [key for key in keys if pool.manager.has([key])]
        pool.manager.forget(found)
        return len(found) * PAGE

    def told(self, positions: int) -> list[dict[str, Any]]:
        """As GET /slots has it. positions: of a sequence, at most."""
        return [{"id": number, "n_ctx": positions, **_told(slot)} for number, slot in enumerate(self.all)]

    def _put(self, slot: Slot, what: Slot) -> None:
        slot.request, slot.restored, slot.used = what.request, what.restored, next(self._uses)

    def _idle(self, prompt: Sequence[Token]) -> int:
        """Of the slots in which nothing goes on; of all where there is none, as where clients want slots of
        answers that are under way."""
        numbers = range(len(self.all))
        idle = [number for number in numbers if not self.all[number].is_processing] or [*numbers]
        return max(idle, key=lambda number: (self.all[number].is_begun_by(prompt), -self.all[number].used))


def _told(slot: Slot) -> dict[str, Any]:
    request = slot.request
    made, left = (len(request.token_ids), request.left) if request else (0, 0)
    next_token = {"has_next_token": slot.is_processing, "n_remain": left, "n_decoded": made}
    return {
        "speculative": False,
        "is_processing": slot.is_processing,
        "n_prompt_tokens": len(request.prompt) if request else len(slot.restored),
        "n_prompt_tokens_cache": request.cached_tokens if request else 0,
        "next_token": [next_token],
    }


def _alike(one: Sequence[Token], other: Sequence[Token]) -> int:
    """How many first tokens both have."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
