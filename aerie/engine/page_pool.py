"""Keys and values of many sequences in pages of one pool.

page_manager.py has which pages are in use and the keys by which full pages are found again. A sequence that
writes into a shared page gets its own copy first. The key before the first page hashes what the bits depend
on beside the tokens (`Session.provenance`).

If a context end policy drops positions (context_end.py), pages also store the keys before RoPE. Keys of
positions that move are computed again from them.

Source: the HND layout of pages, heads before positions, is that of vLLM and FlashInfer.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import mmap
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.delta_states import DeltaHistory
from aerie.engine.embeddings import Token
from aerie.engine.kv_cache import Layers
from aerie.engine.layer_states import BEFORE_START, read_positions
from aerie.engine.numerics import BF16Array, apply_rope, bf16
from aerie.engine.page_manager import PAGE_SIZE, PageManager
from aerie.engine.rope_tables import RopeTables

RELEASED = 1 << 40
"""In a page table, a page that was released because no layer sees its positions any more: an index beyond any
pool."""

PAGES_PER_SWAP_PAGE = 4
"""Pages of the pool for each page of swap space."""


class PagePool:
    """The memory of the pages: keys and values of each layer, (kv_heads, positions, head_dim) bf16. Page p
    has the positions p * PAGE_SIZE .. p * PAGE_SIZE + PAGE_SIZE - 1.

    first_key: hash of what the bits of keys and values depend on beside the tokens. swap_pages: pages behind
    the pool for sequences that are swapped out; `manager` does not count them. with_keys_before_rope: store
    each layer's keys before RoPE too, in `keys_before_rope`; else that is empty. Layers without attention
    have no keys and values; `states` has a row of each of them for every position or page, (1, rows, width)
    (layer_states.py). window: the window of all layers, behind which pages are released; None if a layer has
    none, or if positions move.
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
        windows = config.masks.windows
        self.window = windows[0] if len(windows) == 1 and not with_keys_before_rope else None
        self.config, self._pages = config, pages + swap_pages
        positions = self._pages * PAGE_SIZE
        shape = (len(config.layers_with_attention), config.num_key_value_heads, positions, config.head_dim)
        self._arrays = [_zeros(shape) for _ in range(3 if with_keys_before_rope else 2)]
        self.layers: Layers = list(zip(*self._arrays[:2], strict=True))
        self.keys_before_rope: Sequence[BF16Array] = list(self._arrays[2]) if with_keys_before_rope else []
        self.states: Sequence[BF16Array] = []
        if config.states.layers:
            self._arrays.append(_zeros(config.states.shape(positions)))
            self.states = list(self._arrays[-1])
        self._to_release: list[PagedSequence] = []

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays)

    def positions_at_once(self, count: int, step: int) -> int:
        """How many of a sequence's positions have pages at the same time, for `count` positions in steps of
        `step` or less."""
        return count if self.window is None else min(count, self.window + step + 3 * PAGE_SIZE)

    def release_later(self, sequence: PagedSequence) -> None:
        """Release a sequence at the next `collect_released`. Any thread may call it at any time."""
        self._to_release.append(sequence)

    def collect_released(self) -> None:
        """Release the sequences that were passed to `release_later`."""
        while self._to_release:
            self._to_release.pop().release()

    def copy(self, page: int, target: int) -> None:
        """Copy a page, in all layers, to the page `target`."""
        for array in self._arrays:
            rows = array.shape[2] // self._pages
            array[:, :, target * rows : (target + 1) * rows] = array[:, :, page * rows : (page + 1) * rows]

    def positions_of_row(self, array: NDArray[Any]) -> int:
        """How many positions have a row of one of the arrays together: 1, or those of a page. array: of a
        layer, (heads, rows, elements)."""
        return int(self._pages * PAGE_SIZE // array.shape[1])

    def root_key(self, more: bytes) -> bytes:
        """The first key of sequences whose keys and values depend on `more` too."""
        return hashlib.blake2b(more, digest_size=16, key=self.first_key).digest()

    def page_keys(self, tokens: Sequence[Token], before: bytes) -> Iterator[bytes]:
        """The keys of the full pages with these tokens, after a page with the key `before`. Stops at the
        first embedding, which has no key."""
        key = before
        for first in range(0, len(tokens) - PAGE_SIZE + 1, PAGE_SIZE):
            page = tokens[first : first + PAGE_SIZE]
            if not all(isinstance(token, Integral) for token in page):
                return
            key = hashlib.blake2b(np.array(page, np.int64).tobytes(), digest_size=16, key=key).digest()
            yield key


def _zeros(shape: Sequence[int]) -> BF16Array:
    """Zeros in small memory pages. One position touches every head of every layer, far apart: with the huge
    pages that numpy requests, the first position of 28 layers of 8 heads touched 0.9 GB."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, math.prod(shape) * bf16.itemsize, flags=private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # Linux alone has it
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, bf16).reshape(shape)


def page_bytes(config: ModelConfig) -> int:
    """Bytes of a page: keys and values, and what layers without attention keep."""
    return kv_page_bytes(config) + int(PAGE_SIZE * config.states.nbytes)


def kv_page_bytes(config: ModelConfig) -> int:
    """Bytes of the keys and values of a page in all layers."""
    per_head = 2 * PAGE_SIZE * config.head_dim * bf16.itemsize
    return len(config.layers_with_attention) * config.num_key_value_heads * per_head


def pool_bytes(config: ModelConfig, pages: int) -> int:
    """Bytes of a pool with this number of pages, swap space included."""
    return (pages + pages // PAGES_PER_SWAP_PAGE) * page_bytes(config)


def pages_for(config: ModelConfig, positions: int | None, sequences: int, available: int | None) -> int:
    """Number of pages of a pool.

    positions: as requested; None means as many as `sequences` sequences of the model's context take, but at
    most a quarter of the `available` bytes that what each keeps beside its pages leaves, and at least one
    sequence. Raises UserError if `positions` is less than a page.
    """
    if positions is not None and positions < PAGE_SIZE:
        raise UserError(
            f"kv_pool is {positions} positions, and a page has {PAGE_SIZE}; give {PAGE_SIZE} or more"
        )
    if positions is not None:
        return positions // PAGE_SIZE
    per_sequence = -(-config.context // PAGE_SIZE)
    count = sequences * per_sequence
    if available is None:
        return count
    left = max(0, available - sequences * config.states.per_sequence)
    return max(per_sequence, min(count, left // 4 // page_bytes(config)))


class PagedSequence:
    """The tokens of a sequence, and its page table: the pages with their keys and values.

    An engine step reserves positions, writes at `pool_positions`, then calls `advance` with its tokens.
    Content beyond `length` is never read. token_ids: the token of each position. key: what keys and values
    depend on beside the tokens and the pool's first_key; None means nothing.

    reusable_length: the first positions that were computed in blocks of rows; their bits depend on their
    tokens only. dropped_tokens: tokens dropped at the end of the context. gathered_length: positions that the
    gathered cache holds (gathered_cache.py). first_held: so many first positions have no page any more,
    because no layer sees them (`release_behind_window`).
    """

    def __init__(self, pool: PagePool, key: bytes | None = None) -> None:
        self.pool, self.pages, self.token_ids = pool, list[int](), list[Token]()
        self._first_key = pool.first_key if key is None else pool.root_key(key)
        self._keys: list[bytes] = []
        self._reusable_length = self.dropped_tokens = self.gathered_length = self.first_held = 0
        self.history: DeltaHistory | None = None

    def start_history(self, pages: int) -> int:
        """Go on with linear attention behind so many pages. Returns the number of their positions."""
        config = self.pool.config
        assert config.delta
        self.history = DeltaHistory(len(config.states.layers), config.delta, config.conv_taps)
        if pages:
            self.history.start_behind(self.pages[pages - 1], pages * PAGE_SIZE, self.pool.states)
        return pages * PAGE_SIZE

    @property
    def length(self) -> int:
        """Number of positions that are held."""
        return len(self.token_ids)

    @property
    def tokens_seen(self) -> int:
        """Number of tokens computed so far, dropped ones included."""
        return len(self.token_ids) + self.dropped_tokens

    @property
    def reusable_length(self) -> int:
        """Number of first positions whose bits depend on their tokens only."""
        return min(self._reusable_length, len(self.token_ids))

    @property
    def held_pages(self) -> list[int]:
        """The pages of the positions from `first_held` on."""
        return self.pages[self.first_held // PAGE_SIZE :]

    def is_in_reach(self, length: int) -> bool:
        """Whether a token after the first `length` positions sees only positions that have pages."""
        return not self.first_held or length - (self.pool.window or 0) + 1 >= self.first_held

    def release_behind_window(self) -> None:
        """Release the pages whose positions no layer sees any more, but for one page: what is computed in
        vain, such as drafts, is truncated. They stay in the prefix cache until they are allocated again."""
        if self.pool.window is None:
            return
        count = max(0, self.length - self.pool.window) // PAGE_SIZE - 1
        if count * PAGE_SIZE > self.first_held:
            pages = slice(self.first_held // PAGE_SIZE, count)
            self.pool.manager.release(self.pages[pages])
            self.pages[pages] = [RELEASED] * len(self.pages[pages])
            self.first_held = count * PAGE_SIZE

    def start_behind_window(self, tokens: Sequence[Token], first_held: int, reusable_length: int) -> None:
        """Hold the first of these tokens without pages, as a sequence did that released them. The sequence
        must be empty."""
        self.pages, self.first_held = [RELEASED] * (first_held // PAGE_SIZE), first_held
        self.token_ids = list(tokens[:first_held])
        self._reusable_length = min(reusable_length, first_held)
        self._keys = [*self.pool.page_keys(self.token_ids[: self._reusable_length], self._first_key)]

    def match_prefix(self, tokens: Sequence[Token]) -> int:
        """Share the cached pages of these tokens, all but the last of which may be cached. Returns the number
        of tokens found. The sequence must be empty."""
        self.pages = self.pool.manager.lookup(self.pool.page_keys(tokens[:-1], self._first_key))
        self.token_ids = list(tokens[: len(self.pages) * PAGE_SIZE])
        self._keys = [*self.pool.page_keys(self.token_ids, self._first_key)]
        self._reusable_length = self.length
        return self.length

    def common_prefix(self, tokens: Sequence[Token]) -> int:
        """Number of positions that a sequence with these tokens can reuse. The last token is always computed.

        Tokens that GEMVs decoded are not reused, so that no answer depends on the one before. Positions after
        a drop are not reused, since they attended to dropped tokens; nor are those whose window was released.
        """
        pairs = zip(self.token_ids[: self.reusable_length], tokens[:-1], strict=False)
        count = sum(1 for _ in itertools.takewhile(_is_same_id, pairs))
        return count if self.is_in_reach(count) else 0

    def pages_needed(self, count: int) -> int:
        """Number of pages that `reserve` would allocate for `count` more tokens."""
        more = -(-(self.length + count) // PAGE_SIZE) - len(self.pages)
        return max(0, more) + len(self._shared_pages(self.length))

    def reserve(self, count: int) -> None:
        """Allocate pages to write `count` more tokens. Shared pages are copied first. Raises PoolFullError,
        which changes nothing."""
        fits = (self.length + count - 1) // PAGE_SIZE < len(self.pages)
        if fits and all(map(self.pool.manager.is_private, self.pages[self.length // PAGE_SIZE :])):
            return
        self._make_writable(self.length, self.pages_needed(count))

    def _make_writable(self, position: int, needed: int) -> None:
        """Copy shared pages from this position on, and append pages. `needed`: pages to allocate."""
        shared = self._shared_pages(position)
        new_pages = self.pool.manager.allocate(needed)
        for page in shared:
            copy = new_pages.pop()
            self.pool.copy(page, copy)
            self.pages[self.pages.index(page)] = copy
        self.pool.manager.release(shared)
        self.pages += new_pages
        self.pool.manager.invalidate(self.pages[position // PAGE_SIZE :])

    def _shared_pages(self, position: int) -> list[int]:
        """Pages from this position on with other references."""
        return [page for page in self.pages[position // PAGE_SIZE :] if self.pool.manager.is_shared(page)]

    def pool_positions(self, first: int, count: int) -> NDArray[np.int64]:
        """Positions in the pool of positions first .. first + count - 1, int64 (count,)."""
        return self._pool_positions(np.arange(first, first + count))

    def _pool_positions(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array(self.pages, np.int64)[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE

    def state_positions(self, first: int, count: int, reach: int) -> NDArray[np.int64]:
        """Positions in the pool of the rows of states that positions first .. first + count - 1 read, each
        the own one last: int64 (count, reach + 1). BEFORE_START stands for those before the first position.
        """
        positions = read_positions(first, count, reach)
        return np.where(positions < 0, BEFORE_START, self._pool_positions(np.maximum(positions, 0)))

    def pool_index(self, positions: slice | NDArray[np.int64]) -> slice | NDArray[np.int64]:
        """Index into the pool for these positions: a slice if they are contiguous there, else int64
        positions."""
        pages = self.pages
        if not isinstance(positions, slice):
            return self._pool_positions(positions)
        first, stop, _ = positions.indices(len(pages) * PAGE_SIZE)
        number = first // PAGE_SIZE
        used = pages[number : -(-stop // PAGE_SIZE)]
        if used == [*range(used[0], used[0] + len(used))]:
            base = (used[0] - number) * PAGE_SIZE
            return slice(base + first, base + stop)
        return self.pool_positions(first, stop - first)

    def advance(self, tokens: Sequence[Token], reusable: bool = True) -> None:
        """Append tokens whose keys and values were written. Full pages get a key and can be shared, if all
        tokens up to their end are `reusable` (computed in blocks of rows; other programs give other bits).
        """
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
        """Keep the first `length` positions only; none, if what a token after them sees was released."""
        length = length if self.is_in_reach(length) else 0
        self._forget_tokens(length)
        self._release_beyond(length)

    def _forget_tokens(self, length: int) -> None:
        if self.history:
            self.history.forget_after(length)
        del self.token_ids[length:], self._keys[length // PAGE_SIZE :]
        self._reusable_length = min(self._reusable_length, length)
        self.gathered_length = min(self.gathered_length, length)

    def _release_beyond(self, length: int) -> None:
        count = -(-length // PAGE_SIZE)
        self.first_held = min(self.first_held, count * PAGE_SIZE)
        self.pool.manager.release([page for page in self.pages[count:] if page != RELEASED])
        del self.pages[count:]

    def pages_needed_to_drop(self, positions: range) -> int:
        """Number of pages that `drop` would allocate."""
        return len(self._shared_pages(positions.start))

    def drop(self, positions: range, rope: RopeTables) -> None:
        """Drop these positions. Later positions move down with their rows of states, and their keys are
        computed again with the rows of `rope` of their new positions.

        Raises PoolFullError, which changes nothing. After another exception the sequence has the positions
        before the dropped ones only.
        """
        self._make_writable(positions.start, self.pages_needed_to_drop(positions))
        tokens = self.token_ids[:]
        count = len(tokens) - positions.stop
        source = self.pool_positions(positions.stop, count)
        target = self.pool_positions(positions.start, count)
        self._forget_tokens(positions.start)
        layers, tables = self.pool.layers, rope.each(self.pool.config)
        for (keys, values), keys_before_rope, table in zip(
            layers, self.pool.keys_before_rope, tables, strict=True
        ):
            for array in (keys_before_rope, values):
                array[:, target] = array[:, source]
            keys[:, target] = apply_rope(
                keys_before_rope[:, target], table[positions.start : positions.start + count]
            )
        for state in self.pool.states:
            state[:, target] = state[:, source]
        self.token_ids += tokens[positions.stop :]
        self.dropped_tokens += len(positions)
        self._release_beyond(self.length)

    def fork(self) -> PagedSequence:
        """A new sequence with the same tokens. Both share the pages until one writes."""
        copy = PagedSequence(self.pool)
        copy._first_key = self._first_key
        copy._reusable_length = self.reusable_length
        copy.dropped_tokens = self.dropped_tokens
        self.pool.manager.retain(self.held_pages)
        copy.pages, copy.token_ids, copy._keys = self.pages[:], self.token_ids[:], self._keys[:]
        copy.first_held, copy.history = self.first_held, self.history and self.history.copy()
        return copy

    def swap_out(self) -> SwappedSequence:
        """Copy the sequence to the swap space. Raises PoolFullError if that has too few free pages."""
        pages = self.pages[self.first_held // PAGE_SIZE : -(-self.length // PAGE_SIZE)]
        swap_pages = self.pool.swap.allocate(len(pages))
        for page, swap_page in zip(pages, swap_pages, strict=True):
            self.pool.copy(page, self.pool.manager.page_count + swap_page)
        history, self.history = self.history, None  # what is released forgets its rows
        return SwappedSequence(
            self.pool,
            self.token_ids[:],
            swap_pages,
            self.reusable_length,
            self.dropped_tokens,
            self.first_held,
            history,
        )

    def release(self) -> None:
        """Release all pages. Full pages stay in the prefix cache until they are allocated again."""
        self.history = None
        self.truncate(0)


def _is_same_id(tokens: tuple[Token, Token]) -> bool:
    """Whether both tokens are ids and equal. An embedding equals nothing."""
    return all(isinstance(token, Integral) for token in tokens) and bool(tokens[0] == tokens[1])


class SwappedSequence(NamedTuple):
    """A copy of a sequence in the swap space: its tokens and its pages there."""

    pool: PagePool
    token_ids: list[Token]
    swap_pages: list[int]
    reusable_length: int
    dropped_tokens: int
    first_held: int
    history: DeltaHistory | None = None

    def start(self, sequence: PagedSequence) -> None:
        """Let an empty sequence hold the positions that need not be copied: those behind the window, or
        those that the prefix cache has."""
        if self.first_held:
            sequence.start_behind_window(self.token_ids, self.first_held, self.reusable_length)
        else:
            sequence.match_prefix([*self.token_ids[: self.reusable_length], 0])

    def swap_in(self, sequence: PagedSequence) -> None:
        """Copy the swapped pages into `sequence`, which has pages for all of them and may hold the first
        positions already (`start`). Releases the swap space."""
        first = self.first_held // PAGE_SIZE
        for number in range(sequence.length // PAGE_SIZE, first + len(self.swap_pages)):
            swap_page = self.pool.manager.page_count + self.swap_pages[number - first]
            self.pool.copy(swap_page, sequence.pages[number])
        sequence.advance(self.token_ids[sequence.length : self.reusable_length])
        sequence.advance(self.token_ids[sequence.length :], reusable=False)
        sequence.dropped_tokens, sequence.history = self.dropped_tokens, self.history
        self.release()

    def release(self) -> None:
        """Free the pages in the swap space."""
        self.pool.swap.release(self.swap_pages)


class KVCache(PagedSequence):
    """A sequence with a pool of its own, for code that runs tokens by hand (forward.py): position p of the
    sequence is position p of the pool.

    executor: the executor that forward.py made for this cache.
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
        """Number of positions that are held. Assign a smaller number to truncate."""
        if not 0 <= positions <= self.length:
            raise IndexError(f"a cache of {self.length} positions cannot go back to {positions}")
        self.truncate(positions)

    @property
    def layers(self) -> Layers:
        """Keys and values of each layer, (kv_heads, capacity, head_dim)."""
        return self.pool.layers

    @property
    def keys_before_rope(self) -> Sequence[BF16Array]:
        """Keys before RoPE of each layer; empty if they are not stored."""
        return self.pool.keys_before_rope

    @property
    def capacity(self) -> int:
        """Number of positions of the pool."""
        return len(self.pages) * PAGE_SIZE

    def _release_beyond(self, length: int) -> None:
        """Does nothing: a KVCache keeps all its pages."""
