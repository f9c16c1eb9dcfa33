"""Sliding windows: which positions each layer hides, beside those that the rule of all layers hides.

In a layer with a window of W, the key at position j is visible to the query at position i if j <= i and
j > i - W (transformers, masking_utils.py). A window is data: it narrows the mask of a call and the positions
that attention on the host reads, so all layers run the same programs. Layers with the same window share one
mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

ALIGN = 256
"""Positions after which K/V tiles fall to the same rows of cores again: four rows of 64, or of 32 and then
twice (kernel_builder/attention.py, STAGES and kv_rows)."""

MaskRule: TypeAlias = "Callable[[int], Any]"
"""Maps the position of a query to an index over key positions: a slice, or an array of positions."""


@dataclass(frozen=True)
class LayerMasks:
    """The different windows of a model, None where a layer sees all positions, and of each layer the number
    of its own."""

    windows: tuple[int | None, ...]
    of_layer: tuple[int, ...]

    def rules(self, rule: MaskRule) -> list[MaskRule]:
        """For each window the positions that a query attends to, where `rule` is that of all layers."""
        return [rule if window is None else _narrowed(rule, window) for window in self.windows]

    def visible(
        self,
        seen: NDArray[np.bool_],
        positions: NDArray[np.int64],
        keys: NDArray[np.int64],
        number: int,
    ) -> NDArray[np.bool_]:
        """What queries at `positions`, (rows,), see of the keys at the positions `keys`, (n,), in layers with
        the window of this number: bool (rows, n). seen: what they would see without a window, of this
        shape."""
        window = self.windows[number]
        return seen if window is None else seen & (positions[:, None] - keys < window)


@lru_cache
def layer_masks(layers: int, window: int | None, windowed: frozenset[int]) -> LayerMasks:
    """The masks of a model in which the layers `windowed`, from 0 on, have a window. Each token asks for
    them."""
    of_each = [window if layer in windowed else None for layer in range(layers)]
    windows = tuple(dict.fromkeys(of_each))
    return LayerMasks(windows, tuple(map(windows.index, of_each)))


def aligned(positions: int) -> int:
    """The next multiple of ALIGN."""
    return -(-positions // ALIGN) * ALIGN


def positions_needed(window: int | None, new: range) -> int:
    """Places of a cache for the positions `new` of a sequence and for what they see in a layer with this
    window, wherever in an ALIGN they begin. So it is the same for each token of a long answer."""
    if window is None:
        return aligned(new.stop)
    return min(aligned(new.stop), aligned(window + len(new) + ALIGN - 2))


def _narrowed(rule: MaskRule, window: int) -> MaskRule:
    def narrowed(position: int) -> Any:
        index, first = rule(position), position - window + 1
        if isinstance(index, slice):
            return slice(max(index.start or 0, first), index.stop)
        return index[index >= first]

    return narrowed
