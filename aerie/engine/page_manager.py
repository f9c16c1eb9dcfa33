"""Which pages of the KV cache are in use, and which can be found again; the tensors are page_pool's.

A page has 64 positions of every layer (vLLM calls it a block). Sequences with the same first tokens share
pages. A full page has a key: the hash of its tokens and of the key of the page before it. So one key stands
for all tokens up to the end of its page.

A page with no references is free. It keeps its content until it is allocated again, least recently released
first: free pages are the prefix cache.

Source: nano-vllm's block manager has the same rules (block_manager.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from aerie.common.errors import UserError

PAGE_SIZE = 64
"""Positions of a page: one K/V tile of attention, or two if heads are wide."""


class PoolFullError(UserError):
    """The pool has fewer free pages than needed. `needed` and `free` count pages."""

    def __init__(self, needed: int, free: int, pages: int) -> None:
        super().__init__(
            f"the KV pool has {free} of its {pages} pages of {PAGE_SIZE} positions free, and {needed} are "
            "needed; "
            "wait for other answers to end, ask for fewer tokens, or make the pool larger (kv_pool of load)"
        )
        self.needed, self.free = needed, free


class PageManager:
    """Reference counts of pages, and the key of each full page. It holds no tensors.

    A method that raises changes nothing.
    """

    def __init__(self, pages: int) -> None:
        self._ref_counts = [0] * pages
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(pages))
        self._keys: dict[int, bytes] = {}
        self._by_key: dict[bytes, int] = {}

    @property
    def page_count(self) -> int:
        """Number of pages."""
        return len(self._ref_counts)

    @property
    def free_count(self) -> int:
        """Number of pages without references."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` free pages with one reference each, and forget their keys. Raises PoolFullError if
        fewer are free."""
        if count > self.free_count:
            raise PoolFullError(count, self.free_count, self.page_count)
        pages = [self._free.popitem(last=False)[0] for _ in range(count)]
        for page in pages:
            self._evict(page)
            self._ref_counts[page] = 1
        return pages

    def retain(self, pages: Sequence[int]) -> None:
        """Add one reference to each page."""
        for page in pages:
            self._free.pop(page, None)
            self._ref_counts[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Remove one reference from each page. Pages without references are allocated again from the last of
        `pages` to the first: a page is of no use without the pages before it. Raises ValueError if one has no
        reference."""
        if not all(self._ref_counts[page] for page in pages):
            raise ValueError(f"of the pages {list(pages)} one is held by nobody")
        for page in reversed(pages):
            self._ref_counts[page] -= 1
            if not self._ref_counts[page]:
                self._free[page] = None

    def is_shared(self, page: int) -> bool:
        """Whether the page has more than one reference."""
        return self._ref_counts[page] > 1

    def is_private(self, page: int) -> bool:
        """Whether the page has one reference and no key."""
        return self._ref_counts[page] == 1 and page not in self._keys

    def invalidate(self, pages: Sequence[int]) -> None:
        """Forget the keys of these pages: their content is about to change."""
        for page in pages:
            self._evict(page)

    def publish(self, page: int, key: bytes) -> None:
        """Let `lookup` find a full page by this key. The page must have a reference; raises ValueError if
        not. If another page has the key, that page keeps it."""
        if not self._ref_counts[page]:
            raise ValueError(f"page {page} is held by nobody, so it cannot be published")
        if key not in self._by_key:
            self._evict(page)
            self._keys[page], self._by_key[key] = key, page

    def lookup(self, keys: Iterable[bytes]) -> list[int]:
        """The pages of the first keys, up to the first key that no page has. Each gets one more reference."""
        pages: list[int] = []
        for key in keys:
            if (page := self._by_key.get(key)) is None:
                break
            pages.append(page)
        self.retain(pages)
        return pages

    def contains(self, keys: Iterable[bytes]) -> bool:
        """Whether a page has each of these keys."""
        return all(key in self._by_key for key in keys)

    def evict(self, keys: Iterable[bytes]) -> None:
        """Forget these keys. References do not change."""
        for page in [self._by_key[key] for key in keys if key in self._by_key]:
            self._evict(page)

    def evict_all(self) -> None:
        """Forget all keys."""
        self._keys.clear()
        self._by_key.clear()

    def check_invariants(self) -> None:
        """Raises AssertionError if references, free pages and keys contradict each other."""
        held = [page for page, holders in enumerate(self._ref_counts) if holders]
        assert sorted([*held, *self._free]) == [*range(self.page_count)], (
            "free and held pages are not all pages"
        )
        assert {page: key for key, page in self._by_key.items()} == self._keys, "keys and pages differ"

    def _evict(self, page: int) -> None:
        if (key := self._keys.pop(page, None)) is not None:
            del self._by_key[key]
