"""Where sequences lie side by side for attention's programs: a window on the pool of pages.

A program of attention reads a cache of one context that is one run of memory. So the pages of the sequences
of a step are gathered into such a cache, each sequence from a place of its own on, and the mask shows every
row its own alone. New rows are written to both, so a sequence is gathered once, when it comes, and again
where it outgrows its place. The pool has the truth: a window can be left at any moment, and nothing is lost.

A row's bits depend on which K/V tiles it sees in which rows of cores. A place begins where these begin anew
(ALIGN), so a sequence has the bits that it would have alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakKeyDictionary

from aerie.engine.errors import NoVariantError
from aerie.engine.kv_cache import DeviceKVStorage, KVBuffers, Layers
from aerie.engine.model import LoadedModel
from aerie.engine.page_pool import PAGE_SIZE, PagedSequence

ALIGN = 256
"""Positions after which K/V tiles fall to the same rows of cores again: four rows of 64, or of 32 and then
twice (kernel_builder/attention.py, STAGES and kv_rows)."""


class GatheredCache:
    """A cache that several sequences share, in a home of the device. `room` is it, once one was placed."""

    def __init__(self, storage: DeviceKVStorage, contexts: Sequence[int]) -> None:
        self._storage, self._contexts = storage, sorted(contexts)
        self.buffers = KVBuffers(())
        self._spans: WeakKeyDictionary[PagedSequence, range] = WeakKeyDictionary()
        self._free: Callable[[], object] = _no_op

    @property
    def context(self) -> int:
        """Positions of the cache."""
        return int(self.buffers.layers[0][0].shape[1]) if self.buffers.layers else 0

    @property
    def layers(self) -> Layers:
        return self.buffers.layers

    @property
    def slot(self) -> str:
        return self.buffers.slot

    def context_for(self, positions: Sequence[int]) -> int:
        """The smallest context for sequences of so many positions each. NoVariantError."""
        needed = sum(map(_aligned, positions))
        context = next((one for one in self._contexts if one >= needed), None)
        if context is None:
            raise NoVariantError(needed, 0, self._contexts[-1])
        return context

    def contexts_between(self, smallest: int, largest: int) -> list[int]:
        """Those that it may have, from one to another."""
        return [one for one in self._contexts if smallest <= one <= largest]

    def gather(self, lengths: Mapping[PagedSequence, int], context: int = 0) -> list[int]:
        """Have each of these with room for so many positions, in a cache of the smallest context, or of this
        one; where each begins. NoVariantError."""
        context = context or self.context_for([*lengths.values()])
        if context != self.context:
            self._open(context)
        for sequence, positions in lengths.items():
            if len(self._spans.get(sequence, ())) < positions:
                self._spans.pop(sequence, None)
        if not all(sequence in self._spans or self._fit(sequence, lengths) for sequence in lengths):
            self._repack(lengths)
        for sequence in lengths:
            self._copy_pages(sequence)
        return [self._spans[sequence].start for sequence in lengths]

    def mark_gathered(self, sequence: PagedSequence) -> None:
        """All that the sequence holds is in its place."""
        sequence.gathered_length = sequence.length

    def release(self) -> None:
        """Give the cache back; what was placed is gathered anew."""
        self._free()
        self._free, self.buffers = _no_op, KVBuffers(())
        self._spans.clear()

    def _open(self, context: int) -> None:
        self.release()
        self.buffers = self._storage.allocate(context)
        self._free = given_back = weakref.finalize(self, self._storage.free, self.buffers)
        given_back.atexit = False

    def _fit(self, sequence: PagedSequence, lengths: Mapping[PagedSequence, int]) -> bool:
        """Take the first gap that is wide enough; those of sequences that are not wanted now count as gaps
        where there is no other."""
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

    def _assign(self, sequence: PagedSequence, place: range) -> None:
        for other, at in [*self._spans.items()]:
            if at.start < place.stop and place.start < at.stop:
                del self._spans[other]
        self._spans[sequence], sequence.gathered_length = place, 0

    def _repack(self, lengths: Mapping[PagedSequence, int]) -> None:
        """One after the other from the beginning."""
        self._spans.clear()
        end = 0
        for sequence, positions in lengths.items():
            self._spans[sequence], sequence.gathered_length = range(end, end + _aligned(positions)), 0
            end += _aligned(positions)

    def _copy_pages(self, sequence: PagedSequence) -> None:
        """Copy what is not there yet from its pages."""
        if sequence.gathered_length < sequence.length:
            done = sequence.gathered_length // PAGE_SIZE * PAGE_SIZE
            base = self._spans[sequence].start
            for first, source, count in _runs(sequence.pages, done, sequence.length):
                for pool, window in zip(sequence.pool.layers, self.layers, strict=True):
                    for held, to in zip(pool, window, strict=True):
                        to[:, base + first : base + first + count] = held[:, source : source + count]
        self.mark_gathered(sequence)


def gathered_cache_for(model: LoadedModel) -> GatheredCache:
    """A window for sequences of a model: of any context up to the variants' largest, or 8192."""
    return GatheredCache(model.kv_storage, model.variant_set.gathered_contexts)


def _no_op() -> None:
    """Nothing is to be given back."""


def _aligned(positions: int) -> int:
    return -(-positions // ALIGN) * ALIGN


def _runs(pages: Sequence[int], first: int, end: int) -> list[tuple[int, int, int]]:
    """How positions first .. end - 1 lie in the pool: of each run, its first position, its place, its length.

    `first` is the first of a page.
    """
    runs: list[tuple[int, int, int]] = []
    for number in range(first // PAGE_SIZE, -(-end // PAGE_SIZE)):
        position, place = number * PAGE_SIZE, pages[number] * PAGE_SIZE
        count = min(PAGE_SIZE, end - position)
        if runs and runs[-1][1] + runs[-1][2] == place:
            begin, source, length = runs[-1]
            runs[-1] = begin, source, length + count
        else:
            runs.append((position, place, count))
    return runs
