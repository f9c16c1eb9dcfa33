"""Choose the replica that has most of a prompt's first pages, unless it has too much to do.

A page has 64 tokens. Its key is a hash of these and all earlier tokens, as in the KV pool
(engine/page_manager.py). So two prompts share keys as long as they share a prefix. Replicas are not asked
what their pools hold: a replica that was sent a prompt is assumed to have its pages. A wrong assumption costs
time and changes no output. benchmarks/scale.py simulates this class.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from aerie.engine.page_manager import PAGE_SIZE

MAX_PREFIX_KEYS = 64
"""Pages of a prompt that are compared: 4,096 tokens."""
MAX_TRACKED_PREFIXES = 2**16
"""Page keys that are remembered, least recently used dropped first: 4 million tokens."""
LOAD_SLACK = 8
"""How many more unfinished outputs the preferred replica may have than the least loaded one."""


def prefix_keys(tokens: Sequence[int]) -> list[bytes]:
    """Return the 16-byte keys of the first full pages of a prompt, at most MAX_PREFIX_KEYS."""
    keys, key = list[bytes](), b""
    for start in range(0, min(len(tokens) // PAGE_SIZE, MAX_PREFIX_KEYS) * PAGE_SIZE, PAGE_SIZE):
        page = np.asarray(tokens[start : start + PAGE_SIZE], np.int64)
        key = hashlib.blake2b(page.tobytes(), digest_size=16, key=key).digest()
        keys.append(key)
    return keys


class PrefixAffinity:
    """Remembers which replica was sent which page. slack: as LOAD_SLACK. max_tracked: as
    MAX_TRACKED_PREFIXES."""

    def __init__(self, slack: float = LOAD_SLACK, max_tracked: int = MAX_TRACKED_PREFIXES) -> None:
        self._slack, self._max_tracked = slack, max_tracked
        self._holders: OrderedDict[bytes, set[str]] = OrderedDict()

    def choose(self, keys: Sequence[bytes], loads: Mapping[str, float]) -> str:
        """Return the name of the replica for a prompt. loads: unfinished outputs by name, one replica or
        more. Ties are broken by a hash of the first key, so that several proxies agree before they have seen
        any request."""
        first = keys[0] if keys else b""

        def order(name: str) -> tuple[float, bytes]:
            return loads[name], hashlib.blake2b(name.encode(), digest_size=8, key=first).digest()

        idlest = min(loads, key=order)
        holding = min(self._holding(keys, loads), key=order, default=idlest)
        return holding if loads[holding] <= loads[idlest] + self._slack else idlest

    def record(self, keys: Sequence[bytes], name: str) -> None:
        """Record that the replica `name` was sent a prompt with these keys."""
        for key in reversed(keys):  # what comes first is of most use, and so is forgotten last
            self._holders.setdefault(key, set()).add(name)
            self._holders.move_to_end(key)
        while len(self._holders) > self._max_tracked:
            self._holders.popitem(last=False)

    def _holding(self, keys: Sequence[bytes], names: Collection[str]) -> list[str]:
        """The replicas among `names` that have the longest known prefix of `keys`."""
        for key in reversed(keys):
            holders = self._holders.get(key, ())
            if holders and (here := [name for name in names if name in holders]):
                return here
        return []
