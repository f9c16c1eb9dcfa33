"""Chunks: texts that are computed once, alone, and inserted into any sequence afterwards.

A chunk's values and its keys before RoPE are stored in pages of the pool, in the place of keys. When a chunk
is inserted, its keys get RoPE for their positions in that sequence. So they have the bits of a chunk that was
computed at that place and attended only to itself. Adding a rotation to keys that are rotated already, as
seed 004 does, would round them twice.

A chunk's id is the SHA-256 of its token ids, so equal content is stored once. Its pages have no references,
except while they are read or while the chunk is pinned. The pool evicts them least recently used first; they
come back from the chunk's file, or the chunk is computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from aerie.common.errors import UserError
from aerie.engine.errors import PromptError
from aerie.engine.kv_cache import Layers
from aerie.engine.numerics import BF16Array, apply_rope
from aerie.engine.page_manager import PAGE_SIZE, PoolFullError
from aerie.engine.page_pool import KVCache, PagedSequence, PagePool
from aerie.engine.rope_tables import RopeTables

PrefillChunk: TypeAlias = "Callable[[Sequence[int]], KVCache]"
"""Computes tokens that attend to nothing before them. Returns a cache with keys before RoPE."""


def chunk_id(token_ids: Sequence[int]) -> str:
    """SHA-256 of the ids as little-endian 64-bit integers: 64 hexadecimal digits."""
    return hashlib.sha256(np.array(token_ids, "<i8").tobytes()).hexdigest()


class ChunkInfo(NamedTuple):
    """A registered chunk.

    tokens: their number. pinned: whether its pages cannot be evicted. resident: whether its pages are in the
    pool now. reads: how often this process computed it. uses: how often it was inserted into a sequence.
    """

    id: str
    tokens: int
    pinned: bool
    resident: bool
    reads: int
    uses: int


class ChunkStorage(Protocol):
    """Stores chunks beyond the process (chunk_files.ChunkFolder)."""

    def tokens(self) -> dict[str, tuple[int, ...]]:
        """The token ids of every chunk, by its id."""

    def read(self, name: str) -> Layers | None:
        """Keys before RoPE and values of each layer, (kv_heads, tokens, head_dim). None if they are missing
        or damaged."""

    def write(self, name: str, token_ids: Sequence[int], layers: Layers) -> None: ...

    def delete(self, name: str) -> None: ...

    def other_model(self, name: str) -> str | None:
        """The other model that made this chunk; None if no other did."""


@dataclass
class ChunkState:
    """The registry's state of a chunk. pinned_pages: its pages if it is pinned."""

    tokens: tuple[int, ...]
    pinned_pages: list[int] | None = None
    reads: int = 0
    uses: int = 0


class ChunkRegistry:
    """The chunks of a model, on a page pool.

    rope: of the model. read: computes a chunk. files: stores chunks; None means nowhere.
    One thread at a time.
    """

    def __init__(
        self, pool: PagePool, rope: RopeTables, read: PrefillChunk, files: ChunkStorage | None = None
    ) -> None:
        self._pool, self._rope, self._read, self._files = pool, rope, read, files
        stored = files.tokens() if files else {}
        self._chunks = {name: ChunkState(tokens) for name, tokens in stored.items()}

    def register(self, token_ids: Sequence[int], pinned: bool = False) -> str:
        """Register this content, and return its id. It is computed now if it is new. pinned: its pages cannot
        be evicted.

        Raises PromptError for no tokens and for tokens that cannot run, and PoolFullError if pinned pages
        find no space; then nothing is registered.
        """
        if not token_ids:
            raise PromptError("a chunk is empty; give it some text")
        name = chunk_id(token_ids)
        state = self._chunks.get(name, ChunkState(tuple(token_ids)))
        with self._resident(name, state):
            if pinned and state.pinned_pages is None:
                state.pinned_pages = self._cached_pages(name, state) or self._raise_full(state)
        self._chunks[name] = state
        return name

    def chunk(self, name: str) -> Chunk:
        """The chunk with this id, for a ComposedPrompt. Raises UserError if the id is not registered."""
        if name in self._chunks:
            return Chunk(self, name, self._chunks[name])
        other = self._files.other_model(name) if self._files else None
        if other:
            raise UserError(
                f"chunk {name} was made by another model ({other}), whose keys and values do not fit this "
                "one; register its text here"
            )
        raise UserError(f"no chunk has the id {name!r}: it was never registered, or evicted; register it")

    def evict(self, name: str) -> None:
        """Forget a chunk, and delete its file. Requests that use it continue. Raises UserError if the id is
        not registered."""
        self.chunk(name)
        state = self._chunks.pop(name)
        self._pool.manager.evict(self._page_keys(name, state))
        if state.pinned_pages:
            self._pool.manager.release(state.pinned_pages)
        if self._files:
            self._files.delete(name)

    def pin(self, name: str, pinned: bool = True) -> None:
        """Pin or unpin a chunk's pages. Raises as register."""
        state = self.chunk(name).state
        if pinned:
            self.register(state.tokens, pinned=True)
        elif state.pinned_pages is not None:
            self._pool.manager.release(state.pinned_pages)
            state.pinned_pages = None

    def chunks(self) -> list[ChunkInfo]:
        """All registered chunks, in the order of registration."""
        return [
            ChunkInfo(
                name,
                len(state.tokens),
                state.pinned_pages is not None,
                self._pool.manager.contains(self._page_keys(name, state)),
                state.reads,
                state.uses,
            )
            for name, state in self._chunks.items()
        ]

    def insert(self, chunk: Chunk, sequence: PagedSequence, first: int, end: int) -> None:
        """Insert a chunk into a sequence; see composed_prompt.InsertableChunk."""
        begin = sequence.length
        sequence.reserve(end - begin)
        targets, part = sequence.pool_positions(begin, end - begin), slice(begin - first, end - first)
        with self._resident(chunk.name, chunk.state) as layers:
            tables = self._rope.each(self._pool.config)
            for (keys, values), (keys_before_rope, source_values), table in zip(
                self._pool.layers, layers, tables, strict=True
            ):
                keys[:, targets] = apply_rope(keys_before_rope[:, part], table[begin:end])
                values[:, targets] = source_values[:, part]
        chunk.state.uses += 1
        sequence.advance(chunk.tokens[part])

    @contextmanager
    def _resident(self, name: str, state: ChunkState) -> Iterator[Iterator[tuple[BF16Array, BF16Array]]]:
        """Keys before RoPE and values of each layer, (kv_heads, tokens, head_dim): from the chunk's pages,
        else from its file, else computed."""
        pages = self._cached_pages(name, state)
        layers = None if pages else self._compute(name, state)
        if layers:
            pages = self._store(name, state, layers)
        try:
            yield iter(layers) if layers else self._read_pages(pages, len(state.tokens))
        finally:
            self._pool.manager.release(pages)

    def _read_pages(self, pages: Sequence[int], count: int) -> Iterator[tuple[BF16Array, BF16Array]]:
        places = (np.array(pages)[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)[:count]
        return ((keys[:, places], values[:, places]) for keys, values in self._pool.layers)

    def _cached_pages(self, name: str, state: ChunkState) -> list[int]:
        """The chunk's pages, with one more reference each; none if one of them was evicted."""
        keys = self._page_keys(name, state)
        pages = self._pool.manager.lookup(keys)
        if len(pages) == len(keys):
            return pages
        self._pool.manager.release(pages)
        return []

    def _compute(self, name: str, state: ChunkState) -> Layers:
        if self._files and (layers := self._files.read(name)):
            return layers
        cache = self._read(state.tokens)
        state.reads += 1
        count = len(state.tokens)
        pairs = zip(cache.keys_before_rope, cache.layers, strict=True)
        layers = [(keys_before_rope[:, :count], values[:, :count]) for keys_before_rope, (_, values) in pairs]
        if self._files:
            self._files.write(name, state.tokens, layers)
        return layers

    def _store(self, name: str, state: ChunkState, layers: Layers) -> list[int]:
        """Write the chunk into new pages, with one reference each; none if too few are free."""
        keys, count = self._page_keys(name, state), len(state.tokens)
        try:
            pages = self._pool.manager.allocate(len(keys))
        except PoolFullError:
            return []
        places = (np.array(pages)[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)[:count]
        for target, source in zip(self._pool.layers, layers, strict=True):
            for pool, array in zip(target, source, strict=True):
                pool[:, places] = array
        for page, key in zip(pages, keys, strict=True):
            self._pool.manager.publish(page, key)
        return pages

    def _page_keys(self, name: str, state: ChunkState) -> list[bytes]:
        """The keys of the chunk's pages. The last page may be partly filled; it is never written again."""
        count = -(-len(state.tokens) // PAGE_SIZE)
        return [self._pool.root_key(f"chunk {name} {number}".encode()) for number in range(count)]

    def _raise_full(self, state: ChunkState) -> list[int]:
        manager = self._pool.manager
        raise PoolFullError(-(-len(state.tokens) // PAGE_SIZE), manager.free_count, manager.page_count)


class Chunk(NamedTuple):
    """A chunk of a registry, for composed prompts."""

    registry: ChunkRegistry
    name: str
    state: ChunkState

    @property
    def tokens(self) -> Sequence[int]:
        """The chunk's token ids."""
        return self.state.tokens

    def insert(self, sequence: PagedSequence, first: int, end: int) -> None:
        self.registry.insert(self, sequence, first, end)
