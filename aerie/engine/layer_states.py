"""What layers without attention keep of a sequence, in the pages of its keys and values.

A layer of a short convolution computes a row for each position, and later positions read the rows of the
few positions before them. The rows lie in the pages as keys and values do, and what holds for these holds for
them: a page that is found again has the state at its end, a rejected draft token is forgotten by the length
alone, and a sequence that is copied, swapped out or saved takes its state along. Where positions are
dropped at the context's end, the rows of those behind move down with their keys: rows know no position.

Before a launch reads them, the host gathers for each row of a call the rows that it reads, so a row's bits do
not depend on what stands beside it. Positions before the first one have zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.native import StatePositions, native_attention
from aerie.engine.numerics import BF16Array, bf16
from aerie.runtime import HostWork

NOT_BUILT = {
    "context_end": "pages keep it at their own ends alone, and end elsewhere when positions move: leave "
    "context_end out",
    "chunks": "behind a chunk it depends on all tokens before the chunk too: give whole prompts, whose "
    "common beginnings are computed once",
    "export": "the static form has no state among its inputs and results, and attention in every layer: run "
    "it with aerie run",
}
"""What models with layers without attention cannot do, with the reason and what to do."""
BEFORE_START = -1
"""In place of a position of the pool: there is none, and the row is zeros."""


class DeltaHeads(NamedTuple):
    """Heads of linear attention: queries and keys have `keys` heads of `key_dim` elements, values have
    `values` heads of `value_dim`."""

    keys: int
    values: int
    key_dim: int
    value_dim: int

    @property
    def mixed_width(self) -> int:
        """Elements of a position's queries, keys and values together."""
        return 2 * self.keys * self.key_dim + self.values * self.value_dim

    @property
    def state_elements(self) -> int:
        """Numbers of a layer's state, of all heads."""
        return self.values * self.key_dim * self.value_dim


class LayerStates(NamedTuple):
    """layers: those that keep rows of `width` elements, by number; empty if all layers have attention. reach:
    the number of positions before its own whose rows a position reads. every: the positions that have a row
    together, of their last one. per_sequence: bytes that each sequence keeps beside its pages while it runs.
    """

    layers: tuple[int, ...]
    width: int
    reach: int
    every: int = 1
    per_sequence: int = 0

    @property
    def nbytes(self) -> float:
        """Bytes of a position, in all layers."""
        return len(self.layers) * self.width * bf16.itemsize / self.every

    def shape(self, positions: int) -> tuple[int, ...]:
        """The shape of the rows of all layers: (layers, 1, rows, width), as of keys with one head."""
        return len(self.layers), 1, positions // self.every, self.width


class StatePlan(Protocol):
    """Which rows of states the rows of a step read and write."""

    @property
    def key(self) -> int:
        """What calls that are recorded depend on."""

    def for_rows(self, rows: NDArray[np.int64]) -> StatePlan:
        """The plan of the end of a layer for some of the rows."""

    def finish(self) -> None:
        """Record that all layers have run."""


class RowReads(NamedTuple):
    """positions: in the pool, of the rows that each row of a step reads, its own last, int64 (rows, reach +
    1). BEFORE_START stands for those that a sequence has not."""

    positions: NDArray[np.int64]

    @property
    def key(self) -> int:
        """One recording serves all."""
        return 0

    def for_rows(self, rows: NDArray[np.int64]) -> RowReads:
        """The same of some of the rows."""
        return RowReads(self.positions[rows])

    def finish(self) -> None:
        """Does nothing: rows are written where they stay."""


def check_no_states(states: LayerStates, feature: str, what: str) -> None:
    """Raises UserError for a feature of NOT_BUILT if layers have states. what: how it was asked for."""
    if states.layers:
        raise UserError(
            f"{what}, and {len(states.layers)} layers of this model keep a state, not keys and values: "
            f"{NOT_BUILT[feature]}"
        )


def read_positions(first: int, count: int, reach: int) -> NDArray[np.int64]:
    """The positions whose rows are read at positions first .. first + count - 1 of a sequence: int64 (count,
    reach + 1), the own one last. Those below 0 are before its start."""
    return first + np.arange(count)[:, None] + np.arange(-reach, 1)


class StateRows:
    """Stores the rows of new tokens, and gathers what a launch reads for them.

    states: of each layer, (1, positions, width). Call `set_positions` before each call.
    """

    def __init__(self, states: Sequence[BF16Array]) -> None:
        self._states, self._positions = states, StatePositions()
        self._native = native_attention()

    def set_positions(self, positions: NDArray[np.int64]) -> None:
        """Positions in the pool of the rows that each token reads, its own last: int64 (tokens, reach + 1).
        BEFORE_START stands for those that a sequence has not. Raises IndexError for one outside the pool."""
        capacity = self._states[0].shape[1] if self._states else None
        if capacity and positions.size and not BEFORE_START <= positions.min() <= positions.max() < capacity:
            raise IndexError(f"positions {positions.min()}..{positions.max()} in a pool of {capacity}")
        self._positions.set(positions)

    def store(self, layer: int, new: BF16Array) -> HostWork:
        """The host work that stores the first of these rows, (rows, width), one for each token. layer: by
        number among those with states. The arrays must stay at their addresses."""
        state = self._states[layer][0]
        if self._native:
            return self._native.state_work("store_state_rows", self._positions, state, new)

        def store() -> None:
            own = self._positions.array[:, -1]
            state[own] = new[: len(own)]

        return HostWork(store)

    def gather(self, layer: int, out: BF16Array) -> HostWork:
        """The host work that writes the rows that each token reads to the first of `out`, (rows, reach + 1,
        width), and zeros to those behind."""
        state = self._states[layer][0]
        if self._native:
            return self._native.state_work("gather_state_rows", self._positions, state, out)

        def gather() -> None:
            positions = self._positions.array
            count = len(positions)
            out[:count] = state[positions]
            out[:count][positions == BEFORE_START] = 0
            out[count:] = 0

        return HostWork(gather)
