"""One contiguous cache of the layers with the same window: pages of several sequences, side by side.

Each sequence has a span of it. In layers without a window the span holds all positions of the sequence. In
layers with one it holds the last positions only, from a multiple of ALIGN on: what no row sees is neither
gathered nor, as the programs of a smaller context read it, moved to the cores. A span moves on when its end
is reached, at most once in ALIGN positions.

The bits of a row depend on which K/V tiles it reads in which rows of cores. Spans, and the first positions in
them, are at multiples of ALIGN, where this assignment starts again. So a sequence has the same bits as if it
were alone, and as if all of its positions were there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from aerie.engine.errors import NoVariantError
from aerie.engine.kv_cache import DeviceKVStorage, KVBuffers
from aerie.engine.layer_masks import ALIGN, positions_needed
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import PagedSequence


@dataclass(frozen=True)
class Span:
    """A sequence's place in a cache: `places` hold its positions from `origin` on, of which those before
    `gathered` have been copied."""

    places: range
    origin: int
    gathered: int = 0

    @property
    def base(self) -> int:
        """What to add to a position for its place; negative where the positions before `origin` are not
        there."""
        return self.places.start - self.origin

    def holds(self, origin: int, end: int) -> bool:
        """Whether there are places for the positions from `origin` to `end` - 1."""
        return self.origin <= origin and end <= self.origin + len(self.places)


class WindowCache:
    """The gathered cache of the layers with the window number `number` of the storage's; None for `window`
    where they have none. `buffers`: its memory; empty before the first `gather`."""

    def __init__(
        self, storage: DeviceKVStorage, contexts: Sequence[int], number: int, window: int | None
    ) -> None:
        self._storage, self._contexts, self._number, self._window = storage, sorted(contexts), number, window
        self.buffers = KVBuffers({})
        self._spans: WeakKeyDictionary[PagedSequence, Span] = WeakKeyDictionary()
        self._free: Callable[[], object] = _no_op

    @property
    def context(self) -> int:
        """Positions of the cache; 0 before the first `gather`."""
        return self.buffers.positions

    def context_for(self, new: Sequence[range], rows: int = 1) -> int:
        """The smallest context for sequences of which these positions are new, in a program of so many rows.
        Raises NoVariantError if none is large enough."""
        needed = max(rows, sum(map(self._width, new)))
        context = next((one for one in self._contexts if one >= needed), None)
        if context is None:
            raise NoVariantError(needed, 0, self._contexts[-1])
        return context

    def gather(self, new: Mapping[PagedSequence, range], context: int) -> list[Span]:
        """Copy these sequences into a cache of `context` positions, each into a span that has places for its
        new positions and for what they see. Returns the spans."""
        if context != self.context:
            self._open(context)
        for sequence, positions in new.items():
            span = self._spans.get(sequence)
            if span and not span.holds(self._origin(positions), positions.stop):
                del self._spans[sequence]
        if not all(sequence in self._spans or self._fit(sequence, new) for sequence in new):
            self._repack(new)
        for sequence in new:
            self._copy_pages(sequence)
        return [self._spans[sequence] for sequence in new]

    def mark_gathered(self, sequence: PagedSequence) -> None:
        """Record that the sequence's span, if it has one, holds all positions."""
        if span := self._spans.get(sequence):
            self._spans[sequence] = replace(span, gathered=sequence.length)

    def release(self) -> None:
        """Free the buffers. The next `gather` copies all sequences again."""
        self._free()
        self._free, self.buffers = _no_op, KVBuffers({})
        self._spans.clear()

    def _open(self, context: int) -> None:
        self.release()
        self.buffers = self._storage.allocate(context, self._number)
        self._free = given_back = weakref.finalize(self, self._storage.free, self.buffers, self._number)
        given_back.atexit = False

    def _width(self, new: range) -> int:
        return positions_needed(self._window, new)

    def _origin(self, new: range) -> int:
        """The first position of a span for these positions: where a tile of the first that they see begins
        in the first row of cores."""
        return 0 if self._window is None else max(0, new.start - self._window + 1) // ALIGN * ALIGN

    def _fit(self, sequence: PagedSequence, new: Mapping[PagedSequence, range]) -> bool:
        """Assign the first gap that is wide enough. If there is none, spans of sequences that are not in
        `new` count as gaps."""
        width = self._width(new[sequence])
        spans = {one: span.places for one, span in self._spans.items()}
        for stay in (spans, {one: at for one, at in spans.items() if one in new}):
            taken = sorted(stay.values(), key=lambda at: at.start)
            ends = [0, *(at.stop for at in taken)]
            starts = [*(at.start for at in taken), self.context]
            for end, start in zip(ends, starts, strict=True):
                if start - end >= width:
                    self._assign(sequence, Span(range(end, end + width), self._origin(new[sequence])))
                    return True
        return False

    def _assign(self, sequence: PagedSequence, span: Span) -> None:
        places = span.places
        for other, theirs in [*self._spans.items()]:
            if theirs.places.start < places.stop and places.start < theirs.places.stop:
                del self._spans[other]
        self._spans[sequence] = span

    def _repack(self, new: Mapping[PagedSequence, range]) -> None:
        """Assign spans to all sequences again, one after the other from place 0."""
        self._spans.clear()
        end = 0
        for sequence, positions in new.items():
            width = self._width(positions)
            self._spans[sequence] = Span(range(end, end + width), self._origin(positions))
            end += width

    def _copy_pages(self, sequence: PagedSequence) -> None:
        """Copy from the sequence's pages what its span does not hold yet."""
        span = self._spans[sequence]
        done = max(min(span.gathered, sequence.gathered_length), span.origin, sequence.first_held)
        if done < sequence.length:
            first = done // PAGE_SIZE * PAGE_SIZE
            for start, source, count in _runs(sequence.pages, first, sequence.length):
                to = span.base + start
                for layer, cache in self.buffers.layers.items():
                    for pages, target in zip(sequence.pool.layers[layer], cache, strict=True):
                        target[:, to : to + count] = pages[:, source : source + count]
        self.mark_gathered(sequence)


def _no_op() -> None:
    """Do nothing: no buffers are allocated."""


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
