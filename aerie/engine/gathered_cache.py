"""Gathers the pages of several sequences into contiguous caches, which attention programs read.

An attention program reads the KV cache of one context as one contiguous array. The sequences of an engine
step are therefore copied from their pages into such a cache, each into its own span, and the mask shows each
row only its own sequence. Layers with the same window share a cache of their own, of the context that the
window needs (window_cache.py). New rows are written to the pages and to these caches, so a sequence is copied
once, and again only if it outgrows its span. The pages hold the original: the caches can be released at any
time without loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aerie.engine.kv_cache import DeviceKVStorage, KeysAndValues
from aerie.engine.model import LoadedModel
from aerie.engine.page_pool import PagedSequence
from aerie.engine.window_cache import Span, WindowCache


class GatheredCache:
    """A contiguous KV cache for each of the model's windows (`windows`, by number), which sequences share.
    window_contexts: further contexts, of layers with a window."""

    def __init__(
        self,
        storage: DeviceKVStorage,
        contexts: Sequence[int],
        windows: Sequence[int | None] = (None,),
        window_contexts: Sequence[int] = (),
    ) -> None:
        self._all_contexts = sorted({*contexts, *window_contexts})
        self._caches = [
            WindowCache(storage, contexts if window is None else self._all_contexts, number, window)
            for number, window in enumerate(windows)
        ]

    @property
    def contexts(self) -> tuple[int, ...]:
        """Positions of each cache; 0 before the first `gather`."""
        return tuple(cache.context for cache in self._caches)

    @property
    def layers(self) -> Mapping[int, KeysAndValues]:
        """Keys and values of each layer, (kv_heads, context, head_dim); empty before the first `gather`."""
        return {number: layer for cache in self._caches for number, layer in cache.buffers.layers.items()}

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the caches on the device."""
        return tuple(cache.buffers.slot for cache in self._caches)

    def contexts_for(self, new: Sequence[range], rows: int = 1) -> tuple[int, ...]:
        """The smallest context of each cache for sequences of which these positions are new, in programs of
        so many rows. Raises NoVariantError if none is large enough."""
        return tuple(cache.context_for(new, rows) for cache in self._caches)

    def contexts_between(self, smallest: int, largest: int) -> list[int]:
        """The contexts from `smallest` to `largest`, both included."""
        return [one for one in self._all_contexts if smallest <= one <= largest]

    def gather(self, new: Mapping[PagedSequence, range], contexts: Sequence[int] = ()) -> list[list[Span]]:
        """Copy these sequences into the caches. new: the positions of each that are about to be computed.
        contexts: sizes of the caches; () means the smallest that hold all. Returns for each cache the spans
        of the sequences. Raises NoVariantError if no context is large enough."""
        contexts = contexts or self.contexts_for([*new.values()])
        spans = [cache.gather(new, context) for cache, context in zip(self._caches, contexts, strict=True)]
        for sequence in new:
            sequence.gathered_length = sequence.length
        return spans

    def mark_gathered(self, sequence: PagedSequence) -> None:
        """Record that the caches hold all positions of the sequence."""
        for cache in self._caches:
            cache.mark_gathered(sequence)
        sequence.gathered_length = sequence.length

    def release(self) -> None:
        """Free the buffers. The next `gather` copies all sequences again."""
        for cache in self._caches:
            cache.release()


def gathered_cache_for(model: LoadedModel) -> GatheredCache:
    """A GatheredCache for a model, with all contexts up to the larger of its variants' largest and 8192."""
    blocks, windows = model.variant_set, model.config.masks.windows
    return GatheredCache(model.kv_storage, blocks.gathered_contexts, windows, blocks.window_contexts)
