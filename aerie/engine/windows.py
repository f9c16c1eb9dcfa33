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
from aerie.engine.kv import DeviceKVStorage, KVBuffers, Layers
from aerie.engine.model import LoadedModel
from aerie.engine.pages import PAGE, PagedSequence

ALIGN = 256
"""Positions after which K/V tiles fall to the same rows of cores again: four rows of 64, or of 32 and then
twice (kernel_builder/attention.py, STAGES and kv_rows)."""


class Window:
    """A cache that several sequences share, in a home of the device. `room` is it, once one was placed."""

    def __init__(self, home: DeviceKVStorage, contexts: Sequence[int]) -> None:
        self._home, self._contexts = home, sorted(contexts)
        self.room = KVBuffers(())
        self._places: WeakKeyDictionary[PagedSequence, range] = WeakKeyDictionary()
        self._give_back: Callable[[], object] = _nothing

    @property
    def context(self) -> int:
        """Positions of the cache."""
        return int(self.room.layers[0][0].shape[1]) if self.room.layers else 0

    @property
    def layers(self) -> Layers:
        return self.room.layers

    @property
    def slot(self) -> str:
        return self.room.slot

    def context_for(self, positions: Sequence[int]) -> int:
        """The smallest context for sequences of so many positions each. NoVariantError."""
        needed = sum(map(_whole, positions))
        context = next((one for one in self._contexts if one >= needed), None)
        if context is None:
            raise NoVariantError(needed, 0, self._contexts[-1])
        return context

    def contexts(self, first: int, last: int) -> list[int]:
        """Those that it may have, from one to another."""
        return [one for one in self._contexts if first <= one <= last]

    def place(self, wanted: Mapping[PagedSequence, int], context: int = 0) -> list[int]:
        """Have each of these with room for so many positions, in a cache of the smallest context, or of this
        one; where each begins. NoVariantError."""
        context = context or self.context_for([*wanted.values()])
        if context != self.context:
            self._open(context)
        for sequence, positions in wanted.items():
            if len(self._places.get(sequence, ())) < positions:
                self._places.pop(sequence, None)
        if not all(sequence in self._places or self._fit(sequence, wanted) for sequence in wanted):
            self._lay_anew(wanted)
        for sequence in wanted:
            self._gather(sequence)
        return [self._places[sequence].start for sequence in wanted]

    def wrote(self, sequence: PagedSequence) -> None:
        """All that the sequence holds is in its place."""
        sequence.gathered = sequence.length

    def leave(self) -> None:
        """Give the cache back; what was placed is gathered anew."""
        self._give_back()
        self._give_back, self.room = _nothing, KVBuffers(())
        self._places.clear()

    def _open(self, context: int) -> None:
        self.leave()
        self.room = self._home.take(context)
        self._give_back = given_back = weakref.finalize(self, self._home.give_back, self.room)
        given_back.atexit = False

    def _fit(self, sequence: PagedSequence, wanted: Mapping[PagedSequence, int]) -> bool:
        """Take the first gap that is wide enough; those of sequences that are not wanted now count as gaps
        where there is no other."""
        width = _whole(wanted[sequence])
        for stay in (self._places, {one: at for one, at in self._places.items() if one in wanted}):
            taken = sorted(stay.values(), key=lambda at: at.start)
            ends = [0, *(at.stop for at in taken)]
            starts = [*(at.start for at in taken), self.context]
            for end, start in zip(ends, starts, strict=True):
                if start - end >= width:
                    self._take(sequence, range(end, end + width))
                    return True
        return False

    def _take(self, sequence: PagedSequence, place: range) -> None:
        for other, at in [*self._places.items()]:
            if at.start < place.stop and place.start < at.stop:
                del self._places[other]
        self._places[sequence], sequence.gathered = place, 0

    def _lay_anew(self, wanted: Mapping[PagedSequence, int]) -> None:
        """One after the other from the beginning."""
        self._places.clear()
        end = 0
        for sequence, positions in wanted.items():
            self._places[sequence], sequence.gathered = range(end, end + _whole(positions)), 0
            end += _whole(positions)

    def _gather(self, sequence: PagedSequence) -> None:
        """Copy what is not there yet from its pages."""
        if sequence.gathered < sequence.length:
            done = sequence.gathered // PAGE * PAGE
            base = self._places[sequence].start
            for first, source, count in _runs(sequence.pages, done, sequence.length):
                for pool, window in zip(sequence.pool.layers, self.layers, strict=True):
                    for held, to in zip(pool, window, strict=True):
                        to[:, base + first : base + first + count] = held[:, source : source + count]
        self.wrote(sequence)


def window_of(model: LoadedModel) -> Window:
    """A window for sequences of a model: of any context up to the variants' largest, or 8192."""
    return Window(model.home, model.blocks.window_contexts)


def _nothing() -> None:
    """Nothing is to be given back."""


def _whole(positions: int) -> int:
    return -(-positions // ALIGN) * ALIGN


def _runs(pages: Sequence[int], first: int, end: int) -> list[tuple[int, int, int]]:
    """How positions first .. end - 1 lie in the pool: of each run, its first position, its place, its length.

    `first` is the first of a page.
    """
    runs: list[tuple[int, int, int]] = []
    for number in range(first // PAGE, -(-end // PAGE)):
        position, place = number * PAGE, pages[number] * PAGE
        count = min(PAGE, end - position)
        if runs and runs[-1][1] + runs[-1][2] == place:
            begin, source, length = runs[-1]
            runs[-1] = begin, source, length + count
        else:
            runs.append((position, place, count))
    return runs
