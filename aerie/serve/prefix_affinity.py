"""Which replica is asked: the one that has most of the prompt's first pages, unless it has too much to do.

A page has 64 tokens and is known by a hash of them and of all that came before, as in the KV pool
(engine/pages.py), so two prompts have a key in common where they begin alike. Nobody asks the replicas what
their pools hold: a replica that was sent a prompt is taken to have its pages. Where that is wrong, the prompt
is computed, and the answer is the same. benchmarks/scale.py simulates this class.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from aerie.engine.pages import PAGE

MOST_KEYS = 64
"""Pages of a prompt that are looked at: 4,096 tokens."""
MOST_KNOWN = 2**16
"""Pages that are remembered, those longest unused forgotten first: 4 million tokens."""
SLACK = 8
"""Answers that a replica may have more under way than the one that has least, and still be preferred."""


def page_keys(tokens: Sequence[int]) -> list[bytes]:
    """The keys, 16 bytes each, of the first full pages of a prompt."""
    keys, key = list[bytes](), b""
    for start in range(0, min(len(tokens) // PAGE, MOST_KEYS) * PAGE, PAGE):
        page = np.asarray(tokens[start : start + PAGE], np.int64)
        key = hashlib.blake2b(page.tobytes(), digest_size=16, key=key).digest()
        keys.append(key)
    return keys


class Affinity:
    """What each replica was sent. slack, most_known: as SLACK and MOST_KNOWN."""

    def __init__(self, slack: float = SLACK, most_known: int = MOST_KNOWN) -> None:
        self._slack, self._most = slack, most_known
        self._holders: OrderedDict[bytes, set[str]] = OrderedDict()

    def choose(self, keys: Sequence[bytes], loads: Mapping[str, float]) -> str:
        """The name of the replica to ask. loads: answers under way, by name, one or more. Of equal ones the
        same is taken for the same first page, so that several fronts agree before they have seen anything."""
        first = keys[0] if keys else b""

        def order(name: str) -> tuple[float, bytes]:
            return loads[name], hashlib.blake2b(name.encode(), digest_size=8, key=first).digest()

        idlest = min(loads, key=order)
        holding = min(self._holding(keys, loads), key=order, default=idlest)
        return holding if loads[holding] <= loads[idlest] + self._slack else idlest

    def note(self, keys: Sequence[bytes], name: str) -> None:
        """This replica was sent a prompt with these keys."""
        for key in reversed(keys):  # what comes first is of most use, and so is forgotten last
            self._holders.setdefault(key, set()).add(name)
            self._holders.move_to_end(key)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def _holding(self, keys: Sequence[bytes], names: Collection[str]) -> list[str]:
        """Those of these replicas that have the longest beginning that any has."""
        for key in reversed(keys):
            holders = self._holders.get(key, ())
            if holders and (here := [name for name in names if name in holders]):
                return here
        return []
