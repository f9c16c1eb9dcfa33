"""Chunks: texts that are read once, each by itself, and stand in any sequence afterwards.

What is kept of a chunk are its values and its keys before RoPE, in pages of the pool, where other sequences
have their keys turned. In a sequence the keys are turned by their positions there: so they have the bits that
they would have, had the chunk been read at that place, seeing itself alone. Turning keys that were turned
already, as seed 004 does, would round them twice.

A chunk's id is the SHA-256 of its token ids, so the same content is there once. Its pages are held by nobody
but while they are read, or where it is pinned; they go when the pool needs them, those first that were not
used for longest, and come back from the chunk's file, or by reading it anew.
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
from aerie.engine.page_pool import PAGE_SIZE, KVCache, PagedSequence, PagePool, PoolFullError

PrefillChunk: TypeAlias = "Callable[[Sequence[int]], KVCache]"
"""Runs tokens that see nothing before them; gives a cache with keys before RoPE."""


def chunk_id(token_ids: Sequence[int]) -> str:
    """SHA-256 of the ids as 64-bit integers, lowest byte first: 64 hexadecimal digits."""
    return hashlib.sha256(np.array(token_ids, "<i8").tobytes()).hexdigest()


class ChunkInfo(NamedTuple):
    """A chunk that is registered.

    tokens: how many. pinned: whether its pages stay. resident: whether they are in the pool now. reads: how
    often it was run through the model in this process. uses: how often it was laid into a sequence.
    """

    id: str
    tokens: int
    pinned: bool
    resident: bool
    reads: int
    uses: int


class ChunkStorage(Protocol):
    """Where chunks are kept beyond the process (saved.ChunkFolder)."""

    def tokens(self) -> dict[str, tuple[int, ...]]:
        """Of every chunk, by its id."""

    def read(self, name: str) -> Layers | None:
        """Keys before RoPE and values of each layer, (kv_heads, tokens, head_dim); None where there are
        none that are whole."""

    def write(self, name: str, token_ids: Sequence[int], layers: Layers) -> None: ...

    def delete(self, name: str) -> None: ...

    def other_model(self, name: str) -> str | None:
        """What other model made this chunk; None where none did."""


@dataclass
class ChunkState:
    """What the registry knows of a chunk. `held` are its pages where it is pinned."""

    tokens: tuple[int, ...]
    pinned_pages: list[int] | None = None
    reads: int = 0
    uses: int = 0


class ChunkRegistry:
    """The chunks of a model on a pool of pages.

    rope: rows of the model's rope_table. read: runs a chunk. files: where chunks are kept; None: nowhere.
    One thread at a time.
    """

    def __init__(
        self, pool: PagePool, rope: BF16Array, read: PrefillChunk, files: ChunkStorage | None = None
    ) -> None:
        self._pool, self._rope, self._read, self._files = pool, rope, read, files
        kept = files.tokens() if files else {}
        self._chunks = {name: ChunkState(tokens) for name, tokens in kept.items()}

    def register(self, token_ids: Sequence[int], pinned: bool = False) -> str:
        """The id of this content, which is read now unless it is known; `pinned`: its pages stay from now on.

        Raises PromptError for no tokens and those that cannot be run, PoolFullError where pinned pages find
        no room; nothing is registered then.
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
        """What stands for it in a Composition. UserError for an id that is not registered."""
        if name in self._chunks:
            return Chunk(self, name, self._chunks[name])
        made_by = self._files.other_model(name) if self._files else None
        if made_by:
            raise UserError(
                f"chunk {name} was made by another model ({made_by}), whose keys and values do not fit this "
                "one; register its text here"
            )
        raise UserError(f"no chunk has the id {name!r}: it was never registered, or evicted; register it")

    def evict(self, name: str) -> None:
        """Forget a chunk, its file too. Its pages are free; what answers are under way with it goes on.
        UserError for an id that is not registered."""
        self.chunk(name)
        state = self._chunks.pop(name)
        self._pool.manager.evict(self._page_keys(name, state))
        if state.pinned_pages:
            self._pool.manager.release(state.pinned_pages)
        if self._files:
            self._files.delete(name)

    def pin(self, name: str, pinned: bool = True) -> None:
        """Have its pages stay, or not any more. As register."""
        state = self.chunk(name).state
        if pinned:
            self.register(state.tokens, pinned=True)
        elif state.pinned_pages is not None:
            self._pool.manager.release(state.pinned_pages)
            state.pinned_pages = None

    def chunks(self) -> list[ChunkInfo]:
        """All that are registered, in the order of their first registration."""
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
        """See composing.Part."""
        begin = sequence.length
        sequence.reserve(end - begin)
        to, own = sequence.pool_positions(begin, end - begin), slice(begin - first, end - first)
        with self._resident(chunk.name, chunk.state) as layers:
            for (keys, values), (keys_before_rope, held) in zip(self._pool.layers, layers, strict=True):
                keys[:, to] = apply_rope(keys_before_rope[:, own], self._rope[begin:end])
                values[:, to] = held[:, own]
        chunk.state.uses += 1
        sequence.advance(chunk.tokens[own])

    @contextmanager
    def _resident(self, name: str, state: ChunkState) -> Iterator[Iterator[tuple[BF16Array, BF16Array]]]:
        """Keys before RoPE and values of each layer, (kv_heads, tokens, head_dim): from its pages; where they
        are gone from its file, or from the model."""
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
        """Its pages, held once more; none where one of them is gone."""
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
        """Put it into pages, which are held once; none where too few are free."""
        keys, count = self._page_keys(name, state), len(state.tokens)
        try:
            pages = self._pool.manager.allocate(len(keys))
        except PoolFullError:
            return []
        places = (np.array(pages)[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)[:count]
        for to, source in zip(self._pool.layers, layers, strict=True):
            for pool, held in zip(to, source, strict=True):
                pool[:, places] = held
        for page, key in zip(pages, keys, strict=True):
            self._pool.manager.publish(page, key)
        return pages

    def _page_keys(self, name: str, state: ChunkState) -> list[bytes]:
        """Of its pages, the last of which may be full in part: it is never written to again."""
        count = -(-len(state.tokens) // PAGE_SIZE)
        return [self._pool.root_key(f"chunk {name} {number}".encode()) for number in range(count)]

    def _raise_full(self, state: ChunkState) -> list[int]:
        manager = self._pool.manager
        raise PoolFullError(-(-len(state.tokens) // PAGE_SIZE), manager.free_count, manager.page_count)


class Chunk(NamedTuple):
    """A chunk of a registry, as it was when it was asked for: a Part of compositions."""

    registry: ChunkRegistry
    name: str
    state: ChunkState

    @property
    def tokens(self) -> Sequence[int]:
        """Its ids."""
        return self.state.tokens

    def insert(self, sequence: PagedSequence, first: int, end: int) -> None:
        """See composing.Part."""
        self.registry.insert(self, sequence, first, end)
