"""Keys and values of many sequences in pages of one pool, and which pages are found again by what they hold.

A page has 64 positions of every layer. Sequences that begin alike share the pages of what they have in
common; whoever writes into a shared page gets a copy of its own first. A page that is full is known by its
key: a hash of its tokens and of the key of the page before it, so a key stands for all that came before, and
the first one is made from what the bits of keys and values depend on (Session's `made_by`).

Where positions may be dropped (context_end.py), pages have keys before RoPE as well: those that move are
turned anew from them.

A page that nobody holds is free, and keeps what it has until it is taken for something else, the one that
was let go longest ago first: free pages are the cache of prefixes.

Sources: nano-vllm's block manager has the same rules (block_manager.py); pages of HND layout, heads before
positions, are those of vLLM and FlashInfer.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import mmap
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.embeddings import Token
from aerie.engine.kv_cache import Layers
from aerie.engine.numerics import BF16Array, apply_rope, bf16

PAGE_SIZE = 64
"""Positions of a page: a K/V tile of attention, or two of them where heads are wide."""

PAGES_PER_SWAP_PAGE = 4
"""For so many pages of a pool there is one place more, for what is put aside."""


class PoolFullError(UserError):
    """More pages than are free. `needed` and `free` count them."""

    def __init__(self, needed: int, free: int, pages: int) -> None:
        super().__init__(
            f"the KV pool has {free} of its {pages} pages of {PAGE_SIZE} positions free, and {needed} are needed; "
            "wait for other answers to end, ask for fewer tokens, or make the pool larger (kv_pool of load)"
        )
        self.needed, self.free = needed, free


class PageManager:
    """Which pages are held, how often, and by which key a full one is found. It knows numbers alone.

    Every method leaves all as it was where it raises.
    """

    def __init__(self, pages: int) -> None:
        self._ref_counts = [0] * pages
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(pages))
        self._keys: dict[int, bytes] = {}
        self._by_key: dict[bytes, int] = {}

    @property
    def page_count(self) -> int:
        """How many there are."""
        return len(self._ref_counts)

    @property
    def free_count(self) -> int:
        """How many nobody holds."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """So many free pages, held once each; what they had is forgotten. PoolFullError."""
        if count > self.free_count:
            raise PoolFullError(count, self.free_count, self.page_count)
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for page in taken:
            self._evict(page)
            self._ref_counts[page] = 1
        return taken

    def retain(self, pages: Sequence[int]) -> None:
        """Hold these once more."""
        for page in pages:
            self._free.pop(page, None)
            self._ref_counts[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Hold these once less. The last one is taken first, as what comes after is of no use without what
        came before. ValueError for one that nobody holds."""
        if not all(self._ref_counts[page] for page in pages):
            raise ValueError(f"of the pages {list(pages)} one is held by nobody")
        for page in reversed(pages):
            self._ref_counts[page] -= 1
            if not self._ref_counts[page]:
                self._free[page] = None

    def is_shared(self, page: int) -> bool:
        """Whether more than one holds it."""
        return self._ref_counts[page] > 1

    def is_private(self, page: int) -> bool:
        """Whether one alone holds it, and nobody finds it."""
        return self._ref_counts[page] == 1 and page not in self._keys

    def invalidate(self, pages: Sequence[int]) -> None:
        """What these have is not found any more, as others are written there."""
        for page in pages:
            self._evict(page)

    def publish(self, page: int, key: bytes) -> None:
        """A page that is held is full and computed, and may be found by this key. Where another page has it,
        that one goes on being found."""
        if not self._ref_counts[page]:
            raise ValueError(f"page {page} is held by nobody, so it cannot be published")
        if key not in self._by_key:
            self._evict(page)
            self._keys[page], self._by_key[key] = key, page

    def lookup(self, keys: Iterable[bytes]) -> list[int]:
        """The pages of the first keys, as far as there are any, held once more each."""
        found: list[int] = []
        for key in keys:
            if (page := self._by_key.get(key)) is None:
                break
            found.append(page)
        self.retain(found)
        return found

    def contains(self, keys: Iterable[bytes]) -> bool:
        """Whether all of them would be found."""
        return all(key in self._by_key for key in keys)

    def evict(self, keys: Iterable[bytes]) -> None:
        """What has these keys is found no more. Its pages stay held, or free, as they are."""
        for page in [self._by_key[key] for key in keys if key in self._by_key]:
            self._evict(page)

    def evict_all(self) -> None:
        """Nothing is found any more."""
        self._keys.clear()
        self._by_key.clear()

    def check_invariants(self) -> None:
        """AssertionError where the books do not agree with each other."""
        held = [page for page, holders in enumerate(self._ref_counts) if holders]
        assert sorted([*held, *self._free]) == [*range(self.page_count)], (
            "free and held pages are not all pages"
        )
        assert {page: key for key, page in self._by_key.items()} == self._keys, "keys and pages differ"

    def _evict(self, page: int) -> None:
        if (key := self._keys.pop(page, None)) is not None:
            del self._by_key[key]


class PagePool:
    """The memory of pages: keys and values of each layer, (kv_heads, places, head_dim) bf16, of which
    page p has the positions from p * PAGE_SIZE on.

    first_key: what the bits of keys and values depend on, beside the tokens. spare: so many places more,
    behind the pages, for what is put aside (Sequence.swap_out); they are no part of the pool's pages.
    with_unturned: `keys_before_rope` has each layer's keys before RoPE, in the same places; else it is empty.
    """

    def __init__(
        self,
        config: ModelConfig,
        pages: int,
        first_key: bytes = b"",
        swap_pages: int = 0,
        with_keys_before_rope: bool = False,
    ) -> None:
        self.manager, self.swap, self.first_key = PageManager(pages), PageManager(swap_pages), first_key
        places = (pages + swap_pages) * PAGE_SIZE
        shape = (config.num_hidden_layers, config.num_key_value_heads, places, config.head_dim)
        self._arrays = [_zeros(shape) for _ in range(3 if with_keys_before_rope else 2)]
        self.layers: Layers = list(zip(*self._arrays[:2], strict=True))
        self.keys_before_rope: Sequence[BF16Array] = list(self._arrays[2]) if with_keys_before_rope else []
        self._to_release: list[PagedSequence] = []

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays)

    def release_later(self, sequence: PagedSequence) -> None:
        """A sequence is not used any more. May come from any thread, at any moment."""
        self._to_release.append(sequence)

    def collect_released(self) -> None:
        """Free the pages of what was left."""
        while self._to_release:
            self._to_release.pop().release()

    def copy(self, page: int, target: int) -> None:
        """All layers of a page."""
        for array in self._arrays:
            array[:, :, target * PAGE_SIZE : (target + 1) * PAGE_SIZE] = array[
                :, :, page * PAGE_SIZE : (page + 1) * PAGE_SIZE
            ]

    def root_key(self, more: bytes) -> bytes:
        """The first key of what depends on more than the pool says."""
        return hashlib.blake2b(more, digest_size=16, key=self.first_key).digest()

    def page_keys(self, tokens: Sequence[Token], before: bytes) -> Iterator[bytes]:
        """The keys of the full pages that these tokens make, after a page with the key `before`; up to the
        first embedding, which has no key."""
        key = before
        for first in range(0, len(tokens) - PAGE_SIZE + 1, PAGE_SIZE):
            page = tokens[first : first + PAGE_SIZE]
            if not all(isinstance(token, Integral) for token in page):
                return
            key = hashlib.blake2b(np.array(page, np.int64).tobytes(), digest_size=16, key=key).digest()
            yield key


def _zeros(shape: Sequence[int]) -> BF16Array:
    """Zeros, in the system's small pages: a position touches every head of every layer, places far apart. By
    huge pages, which numpy asks for, the first position of 28 layers of 8 heads filled 0.9 GB with zeros."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, math.prod(shape) * bf16.itemsize, flags=private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux alone has it
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, bf16).reshape(shape)


def page_bytes(config: ModelConfig) -> int:
    """Bytes of a page's keys and values in all layers."""
    per_head = 2 * PAGE_SIZE * config.head_dim * bf16.itemsize
    return config.num_hidden_layers * config.num_key_value_heads * per_head


def pool_bytes(config: ModelConfig, pages: int) -> int:
    """Of a pool of so many pages, with the places for what is put aside."""
    return (pages + pages // PAGES_PER_SWAP_PAGE) * page_bytes(config)


def pages_for(config: ModelConfig, positions: int | None, sequences: int, available: int | None) -> int:
    """How many pages a pool has: for so many positions; or, where nobody says, for as many sequences of the
    model's context, but in a quarter of the memory that is available, in bytes, at most, or for one sequence.

    UserError for fewer positions than a page.
    """
    if positions is not None and positions < PAGE_SIZE:
        raise UserError(
            f"kv_pool is {positions} positions, and a page has {PAGE_SIZE}; give {PAGE_SIZE} or more"
        )
    if positions is not None:
        return positions // PAGE_SIZE
    least = -(-config.context // PAGE_SIZE)
    wanted = sequences * least
    return wanted if available is None else max(least, min(wanted, available // 4 // page_bytes(config)))


class PagedSequence:
    """A sequence of tokens, and the pages that have their keys and values: its block table.

    A step reserves room, writes at `places`, and then calls `advance` with its tokens; what is written beyond
    `length` is never looked at. `token_ids` has the token of each position. `key` is what its keys and
    values depend on beside its tokens and what the pool says; None where that is nothing.

    `in_blocks` is how many positions, from the first on, were made by blocks of rows: what these hold depends
    on their tokens alone. `dropped` is how many tokens were dropped at the end of the context, and `seen` how
    many went in. `gathered` is how many positions lie in the window as they are here (windows.py).
    """

    def __init__(self, pool: PagePool, key: bytes | None = None) -> None:
        self.pool, self.pages, self.token_ids = pool, list[int](), list[Token]()
        self._first_key = pool.first_key if key is None else pool.root_key(key)
        self._keys: list[bytes] = []
        self._reusable_length = self.dropped_tokens = self.gathered_length = 0

    @property
    def length(self) -> int:
        """The positions that are held."""
        return len(self.token_ids)

    @property
    def tokens_seen(self) -> int:
        """See the class."""
        return len(self.token_ids) + self.dropped_tokens

    @property
    def reusable_length(self) -> int:
        """See the class."""
        return min(self._reusable_length, len(self.token_ids))

    def match_prefix(self, tokens: Sequence[Token]) -> int:
        """Take the pages that are known of these tokens, the last of which always runs; how many tokens that
        are. Only of an empty sequence."""
        self.pages = self.pool.manager.lookup(self.pool.page_keys(tokens[:-1], self._first_key))
        self.token_ids = list(tokens[: len(self.pages) * PAGE_SIZE])
        self._keys = [*self.pool.page_keys(self.token_ids, self._first_key)]
        self._reusable_length = self.length
        return self.length

    def common_prefix(self, tokens: Sequence[Token]) -> int:
        """How many of its positions are of use for a sequence of these tokens, the last of which always runs.

        Tokens that GEMVs decoded are no part of it, so that no answer depends on the one before; nor is what
        came after dropped tokens, which it has seen.
        """
        pairs = zip(self.token_ids[: self.reusable_length], tokens[:-1], strict=False)
        return sum(1 for _ in itertools.takewhile(_is_same_id, pairs))

    def pages_needed(self, count: int) -> int:
        """Pages that `reserve` would take for so many more tokens."""
        more = -(-(self.length + count) // PAGE_SIZE) - len(self.pages)
        return max(0, more) + len(self._shared_pages(self.length))

    def reserve(self, count: int) -> None:
        """Have room to write so many more tokens, in pages that nobody else holds. PoolFullError, which
        leaves all as it was."""
        last = self.length // PAGE_SIZE
        if (self.length + count - 1) // PAGE_SIZE < len(self.pages) and self._is_private(last):
            return
        self._make_writable(self.length, self.pages_needed(count))

    def _is_private(self, first: int) -> bool:
        """Whether nobody else holds its pages from the first of these on, nor can find them."""
        return all(self.pool.manager.is_private(page) for page in self.pages[first:])

    def _make_writable(self, position: int, needed: int) -> None:
        """Have pages of its own from this position on, and more, `needed` of which have to be taken."""
        shared = self._shared_pages(position)
        taken = self.pool.manager.allocate(needed)
        for page in shared:
            to = taken.pop()
            self.pool.copy(page, to)
            self.pages[self.pages.index(page)] = to
        self.pool.manager.release(shared)
        self.pages += taken
        self.pool.manager.invalidate(self.pages[position // PAGE_SIZE :])

    def _shared_pages(self, position: int) -> list[int]:
        """Pages from this position on that others hold too."""
        return [page for page in self.pages[position // PAGE_SIZE :] if self.pool.manager.is_shared(page)]

    def pool_positions(self, first: int, count: int) -> NDArray[np.int64]:
        """Where in the pool the positions from `first` on are, (count,)."""
        return self._pool_positions(np.arange(first, first + count))

    def _pool_positions(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array(self.pages, np.int64)[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE

    def pool_index(self, positions: slice | NDArray[np.int64]) -> slice | NDArray[np.int64]:
        """Where in the pool these positions are: a run of places where they are one."""
        pages = self.pages
        if not isinstance(positions, slice):
            return self._pool_positions(positions)
        first, stop, _ = positions.indices(len(pages) * PAGE_SIZE)
        if pages == [*range(pages[0], pages[0] + len(pages))]:
            return slice(pages[0] * PAGE_SIZE + first, pages[0] * PAGE_SIZE + stop)
        return self.pool_positions(first, stop - first)

    def advance(self, tokens: Sequence[Token], reusable: bool = True) -> None:
        """Count these tokens as held; pages that are full now may be found by others, unless tokens in them
        or before them were made in another way than by blocks, which gives other bits."""
        if reusable and self._reusable_length >= self.length:
            self._reusable_length = self.length + len(tokens)
        else:
            self._reusable_length = self.reusable_length
        self.token_ids += tokens
        if self._reusable_length // PAGE_SIZE > len(self._keys):
            self._publish()

    def _publish(self) -> None:
        before = self._keys[-1] if self._keys else self._first_key
        for key in self.pool.page_keys(
            self.token_ids[len(self._keys) * PAGE_SIZE : self._reusable_length], before
        ):
            self.pool.manager.publish(self.pages[len(self._keys)], key)
            self._keys.append(key)

    def truncate(self, length: int) -> None:
        """Hold the first `length` positions alone."""
        self._forget_tokens(length)
        self._release_beyond(length)

    def _forget_tokens(self, length: int) -> None:
        del self.token_ids[length:], self._keys[length // PAGE_SIZE :]
        self._reusable_length, self.gathered_length = (
            min(self._reusable_length, length),
            min(self.gathered_length, length),
        )

    def _release_beyond(self, length: int) -> None:
        kept = -(-length // PAGE_SIZE)
        self.pool.manager.release(self.pages[kept:])
        del self.pages[kept:]

    def pages_needed_to_drop(self, positions: range) -> int:
        """Pages that `drop` would take."""
        return len(self._shared_pages(positions.start))

    def drop(self, positions: range, rope: BF16Array) -> None:
        """Forget the positions `gone`: those after them move down, and their keys are turned by their new
        rows of `rope`, (positions, head_dim).

        PoolFullError leaves all as it was. What another exception leaves halfway is what was held before
        `gone`.
        """
        self._make_writable(positions.start, self.pages_needed_to_drop(positions))
        tokens = self.token_ids[:]
        stay = len(tokens) - positions.stop
        source, to = self.pool_positions(positions.stop, stay), self.pool_positions(positions.start, stay)
        self._forget_tokens(positions.start)
        for (keys, values), keys_before_rope in zip(
            self.pool.layers, self.pool.keys_before_rope, strict=True
        ):
            for each in (keys_before_rope, values):
                each[:, to] = each[:, source]
            keys[:, to] = apply_rope(keys_before_rope[:, to], rope[positions.start : positions.start + stay])
        self.token_ids += tokens[positions.stop :]
        self.dropped_tokens += len(positions)
        self._release_beyond(self.length)

    def fork(self) -> PagedSequence:
        """Another that begins as this one; the pages are shared until one writes."""
        other = PagedSequence(self.pool)
        other._first_key, other._reusable_length, other.dropped_tokens = (
            self._first_key,
            self.reusable_length,
            self.dropped_tokens,
        )
        self.pool.manager.retain(self.pages)
        other.pages, other.token_ids, other._keys = self.pages[:], self.token_ids[:], self._keys[:]
        return other

    def swap_out(self) -> SwappedSequence:
        """A copy of what is held, behind the pool's pages. PoolFullError where there is no room."""
        pages = self.pages[: -(-self.length // PAGE_SIZE)]
        places = self.pool.swap.allocate(len(pages))
        for page, place in zip(pages, places, strict=True):
            self.pool.copy(page, self.pool.manager.page_count + place)
        return SwappedSequence(
            self.pool, self.token_ids[:], places, self.reusable_length, self.dropped_tokens
        )

    def release(self) -> None:
        """Hold nothing any more. What is full can be found until its pages are taken."""
        self.truncate(0)


def _is_same_id(tokens: tuple[Token, Token]) -> bool:
    """An embedding is compared with nothing."""
    return all(isinstance(one, Integral) for one in tokens) and bool(tokens[0] == tokens[1])


class SwappedSequence(NamedTuple):
    """What a sequence held: its tokens, and the places behind the pool's pages that have a copy; `in_blocks`
    and `dropped` as it had them."""

    pool: PagePool
    token_ids: list[Token]
    swap_pages: list[int]
    reusable_length: int
    dropped_tokens: int

    @property
    def cacheable_tokens(self) -> Sequence[Token]:
        """Those of its tokens that others may have published, and one more."""
        return [*self.token_ids[: self.reusable_length], 0]

    def swap_in(self, sequence: PagedSequence) -> None:
        """Have a sequence hold it, which has the pages for it and may hold the first of it already."""
        for number in range(sequence.length // PAGE_SIZE, len(self.swap_pages)):
            self.pool.copy(self.pool.manager.page_count + self.swap_pages[number], sequence.pages[number])
        sequence.advance(self.token_ids[sequence.length : self.reusable_length])
        sequence.advance(self.token_ids[sequence.length :], reusable=False)
        sequence.dropped_tokens = self.dropped_tokens
        self.release()

    def release(self) -> None:
        """It is not needed any more."""
        self.pool.swap.release(self.swap_pages)


class KVCache(PagedSequence):
    """A sequence with all pages of a pool of its own, for whoever runs tokens by hand (forward.py): its
    position p lies at place p.

    `executor` is what runs it, kept here by whoever does.
    """

    def __init__(self, config: ModelConfig, positions: int, with_keys_before_rope: bool = False) -> None:
        super().__init__(
            PagePool(config, -(-positions // PAGE_SIZE), with_keys_before_rope=with_keys_before_rope)
        )
        self.pages = self.pool.manager.allocate(self.pool.manager.page_count)
        self.executor: Any = None

    @property
    def length(self) -> int:
        """The positions that are held. Setting it to less goes back."""
        return len(self.token_ids)

    @length.setter
    def length(self, positions: int) -> None:
        if not 0 <= positions <= self.length:
            raise IndexError(f"a cache of {self.length} positions cannot go back to {positions}")
        self.truncate(positions)

    @property
    def layers(self) -> Layers:
        """Keys and values of each layer, (kv_heads, capacity, head_dim)."""
        return self.pool.layers

    @property
    def keys_before_rope(self) -> Sequence[BF16Array]:
        """Keys before RoPE of each layer, where it has them."""
        return self.pool.keys_before_rope

    @property
    def capacity(self) -> int:
        """The positions that there is room for."""
        return len(self.pages) * PAGE_SIZE

    def _release_beyond(self, length: int) -> None:
        """All pages stay."""
