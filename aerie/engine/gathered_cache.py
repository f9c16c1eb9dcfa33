"""Gathers the pages of several sequences into one contiguous cache, which attention programs read.

An attention program reads the KV cache of one context as one contiguous array. The sequences of an engine
step are therefore copied from their pages into such a cache, each into its own span, and the mask shows each
row only its own sequence. New rows are written to the pages and to this cache, so a sequence is copied once,
and again only if it outgrows its span. The pages hold the original: this cache can be released at any time
without loss.

The bits of a row depend on which K/V tiles it reads in which rows of cores. A span starts where this
assignment starts again (ALIGN), so a sequence has the same bits as if it were alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakKeyDictionary

from aerie.engine.errors import NoVariantError
from aerie.engine.kv_cache import DeviceKVStorage, KVBuffers, Layers
from aerie.engine.model import LoadedModel
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import PagedSequence

ALIGN = 256
"""Positions after which K/V tiles fall to the same rows of cores again: four rows of 64, or of 32 and then
twice (kernel_builder/attention.py, STAGES and kv_rows)."""


class GatheredCache:
    """A contiguous KV cache that several sequences share. `buffers`: its memory; empty before the first
    `gather`."""

    def __init__(self, storage: DeviceKVStorage, contexts: Sequence[int]) -> None:
        self._storage, self._contexts = storage, sorted(contexts)
        self.buffers = KVBuffers(())
        self._spans: WeakKeyDictionary[PagedSequence, range] = WeakKeyDictionary()
        self._free: Callable[[], object] = _no_op

    @property
    def context(self) -> int:
        """Positions of the cache; 0 before the first `gather`."""
        return int(self.buffers.layers[0][0].shape[1]) if self.buffers.layers else 0

    @property
    def layers(self) -> Layers:
        return self.buffers.layers

    @property
    def slot(self) -> str:
        return self.buffers.slot

    def context_for(self, positions: Sequence[int]) -> int:
        """The smallest context for sequences of these lengths, in positions. Raises NoVariantError if none is
        large enough."""
        needed = sum(map(_aligned, positions))
        context = next((one for one in self._contexts if one >= needed), None)
        if context is None:
            raise NoVariantError(needed, 0, self._contexts[-1])
        return context

    def contexts_between(self, smallest: int, largest: int) -> list[int]:
        """The contexts from `smallest` to `largest`, both included."""
        return [one for one in self._contexts if smallest <= one <= largest]

    def gather(self, lengths: Mapping[PagedSequence, int], context: int = 0) -> list[int]:
        """Copy these sequences into the cache, each into a span of at least its length in `lengths`
        (positions). Returns the first position of each span. context: size of the cache; 0 means the smallest
        that holds all. Raises NoVariantError if none does."""
        context = context or self.context_for([*lengths.values()])
        if context != self.context:
            self._open(context)
        for sequence, length in lengths.items():
            if len(self._spans.get(sequence, ())) < length:
                self._spans.pop(sequence, None)
        if not all(sequence in self._spans or self._fit(sequence, lengths) for sequence in lengths):
            self._repack(lengths)
        for sequence in lengths:
            self._copy_pages(sequence)
        return [self._spans[sequence].start for sequence in lengths]

    def mark_gathered(self, sequence: PagedSequence) -> None:
        """Record that the cache holds all positions of the sequence."""
        sequence.gathered_length = sequence.length

    def release(self) -> None:
        """Free the buffers. The next `gather` copies all sequences again."""
        self._free()
        self._free, self.buffers = _no_op, KVBuffers(())
        self._spans.clear()

    def _open(self, context: int) -> None:
        self.release()
        self.buffers = self._storage.allocate(context)
        self._free = given_back = weakref.finalize(self, self._storage.free, self.buffers)
        given_back.atexit = False

    def _fit(self, sequence: PagedSequence, lengths: Mapping[PagedSequence, int]) -> bool:
        """Assign the first gap that is wide enough. If there is none, spans of sequences that are not in
        `lengths` count as gaps."""
        width = _aligned(lengths[sequence])
        for stay in (self._spans, {one: at for one, at in self._spans.items() if one in lengths}):
            taken = sorted(stay.values(), key=lambda at: at.start)
            ends = [0, *(at.stop for at in taken)]
            starts = [*(at.start for at in taken), self.context]
            for end, start in zip(ends, starts, strict=True):
                if start - end >= width:
                    self._assign(sequence, range(end, end + width))
                    return True
        return False

    def _assign(self, sequence: PagedSequence, span: range) -> None:
        for other, other_span in [*self._spans.items()]:
            if other_span.start < span.stop and span.start < other_span.stop:
                del self._spans[other]
        self._spans[sequence], sequence.gathered_length = span, 0

    def _repack(self, lengths: Mapping[PagedSequence, int]) -> None:
        """Assign spans to all sequences again, one after the other from position 0."""
        self._spans.clear()
        end = 0
        for sequence, length in lengths.items():
            self._spans[sequence], sequence.gathered_length = range(end, end + _aligned(length)), 0
            end += _aligned(length)

    def _copy_pages(self, sequence: PagedSequence) -> None:
        """Copy from the sequence's pages what its span does not hold yet."""
        if sequence.gathered_length < sequence.length:
            done = sequence.gathered_length // PAGE_SIZE * PAGE_SIZE
            base = self._spans[sequence].start
            for first, source, count in _runs(sequence.pages, done, sequence.length):
                for pool, cache in zip(sequence.pool.layers, self.layers, strict=True):
                    for pages, target in zip(pool, cache, strict=True):
                        target[:, base + first : base + first + count] = pages[:, source : source + count]
        self.mark_gathered(sequence)


def gathered_cache_for(model: LoadedModel) -> GatheredCache:
    """A GatheredCache for a model, with all contexts up to the larger of its variants' largest and 8192."""
    return GatheredCache(model.kv_storage, model.variant_set.gathered_contexts)


def _no_op() -> None:
    """Do nothing: no buffers are allocated."""


def _aligned(positions: int) -> int:
    return -(-positions // ALIGN) * ALIGN


def _runs(pages: Sequence[int], first: int, end: int) -> list[tuple[int, int, int]]:
    """Contiguous runs of the pool that hold positions first .. end - 1: (first position, first position in
    the pool, count) each. `first` is the first position of a page."""
    runs: list[tuple[int, int, int]] = []
    for number in range(first // PAGE_SIZE, -(-end // PAGE_SIZE)):
        position, pool_position = number * PAGE_SIZE, pages[number] * PAGE_SIZE
        count = min(PAGE_SIZE, end - position)
        if runs and runs[-1][1] + runs[-1][2] == pool_position:
            first_position, source, length = runs[-1]
            runs[-1] = first_position, source, length + count
        else:
            runs.append((position, pool_position, count))
    return runs
