"""What linear attention keeps of a sequence, in the pages of its keys and values.

A head's state is a matrix of keys by values that each position changes, too large for a row of it at each
position. So a page has the state at its end, and a row for each position, from which the states between are
computed again: queries, keys and values before their convolution, the same behind it, decay and rate. The
state lies in the page's rows too, a part in each. So a page is all that it takes to go on behind it, and what
holds for pages of keys and values holds for these: a page that is found again has the state at its end, a
rejected draft token is forgotten by the length alone, and a sequence that is copied, swapped out or saved
takes its state along.

To compute positions of a page, the rule runs from the page's first position on, over the rows that lie there.
So a position has the same bits in whatever calls a sequence came: each is one step from the state before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerie.engine.layer_states import BEFORE_START, DeltaHeads, LayerStates
from aerie.engine.numerics import BF16Array, F32Array, bf16
from aerie.engine.page_manager import PAGE_SIZE
from aerie.kernel_builder.delta_rows import DECAY, LANES, PRESENT, RATE, row_width, state_shape
from aerie.runtime import HostWork

F32_ELEMENTS = 2
"""Elements of bf16 whose place a number in f32 takes."""


class DeltaRow(NamedTuple):
    """Where the parts of a position's row are: queries, keys and values before the convolution; the same
    behind it; decay and rate of each head, f32; a part of the state at the page's end, f32."""

    before: slice
    mixed: slice
    gates: slice
    state: slice


def delta_row(heads: DeltaHeads) -> DeltaRow:
    """The row of a position in a layer with these heads."""
    parts = (
        heads.mixed_width,
        heads.mixed_width,
        heads.values * 2 * F32_ELEMENTS,
        heads.state_elements * F32_ELEMENTS // PAGE_SIZE,
    )
    ends = [0, *np.cumsum(parts).tolist()]
    return DeltaRow(*(slice(first, end) for first, end in itertools.pairwise(ends)))


def delta_states(layers: tuple[int, ...], heads: DeltaHeads) -> LayerStates:
    """What layers with linear attention keep. A position reads as far back as the end of the page before."""
    return LayerStates(layers, delta_row(heads).state.stop, PAGE_SIZE)


class DeltaRun(NamedTuple):
    """Rows of a call that lie in one page: start to stop of the call's rows, the page, the position in the
    page of the first of these rows, and the page before it, BEFORE_START if there is none."""

    start: int
    stop: int
    page: int
    first: int
    page_before: int

    @property
    def end(self) -> int:
        """Positions of the page up to the last of these rows."""
        return self.first + self.stop - self.start


class DeltaStates:
    """Stores what linear attention keeps, and gathers what its launches read.

    states: of each layer, (1, positions, width) bf16. Call `set_positions` before each call.
    """

    def __init__(self, states: Sequence[BF16Array], heads: DeltaHeads, taps: int) -> None:
        self._states, self._heads, self._taps = states, heads, taps
        self._row = delta_row(heads)
        self._positions = np.zeros((0, PAGE_SIZE + 1), np.int64)
        self.runs: Sequence[DeltaRun] = ()

    def set_positions(self, positions: NDArray[np.int64]) -> None:
        """Positions in the pool of the PAGE_SIZE rows before each token's own and of that, int64 (tokens,
        PAGE_SIZE + 1). BEFORE_START stands for those that a sequence has not. Raises IndexError for one
        outside the pool."""
        capacity = self._states[0].shape[1]
        if positions.size and not BEFORE_START <= positions.min() <= positions.max() < capacity:
            raise IndexError(f"positions {positions.min()}..{positions.max()} in a pool of {capacity}")
        self._positions, self.runs = positions, [*_runs(positions)]

    @property
    def count(self) -> int:
        """Number of the call's tokens."""
        return len(self._positions)

    def store(self, layer: int, part: slice, new: BF16Array) -> None:
        """Store the first of these rows, (rows, elements), one for each token, in a part of the layer's."""
        self._states[layer][0, self._positions[:, -1], part] = new[: self.count]

    def store_projected(self, layer: int, projected: BF16Array, gates: F32Array) -> HostWork:
        """The host work that stores what the convolution reads, and decay and rate, (tokens, heads, 2)."""

        def store() -> None:
            self.store(layer, self._row.before, projected)
            self.store(layer, self._row.gates, np.ascontiguousarray(gates).reshape(len(gates), -1).view(bf16))

        return HostWork(store)

    def store_mixed(self, layer: int, mixed: BF16Array) -> HostWork:
        """The host work that stores queries, keys and values behind the convolution."""
        return HostWork(lambda: self.store(layer, self._row.mixed, mixed))

    def gather_taps(self, layer: int, out: BF16Array) -> HostWork:
        """The host work that writes the rows that each token's convolution reads to the first of `out`,
        (rows, taps, width), and zeros to those behind."""

        def gather() -> None:
            positions, count = self._positions[:, -self._taps :], self.count
            out[:count] = self._states[layer][0, :, self._row.before][positions]
            out[:count][positions == BEFORE_START] = 0
            out[count:] = 0

        return HostWork(gather)

    def gather_run(self, layer: int, run: DeltaRun, out: BF16Array) -> HostWork:
        """The host work that writes the rows of a page up to the last token to `out`, (heads, PAGE_SIZE,
        row_width) as the kernel has it; those behind are marked as not there."""
        return HostWork(lambda: self._gather_run(layer, run, out))

    def _gather_run(self, layer: int, run: DeltaRun, out: BF16Array) -> None:
        heads, count = self._heads, run.end
        first = run.page * PAGE_SIZE
        rows = self._states[layer][0, first : first + count]
        query, key, value = _split(rows[:, self._row.mixed], heads)
        groups = out.reshape(heads.keys, -1, *out.shape[1:])[:, :, :count]
        groups[..., : heads.key_dim] = query.swapaxes(0, 1)[:, None]
        groups[..., heads.key_dim : 2 * heads.key_dim] = key.swapaxes(0, 1)[:, None]
        out[:, :count, 2 * heads.key_dim + LANES :] = value.swapaxes(0, 1)
        gates = out[..., 2 * heads.key_dim : 2 * heads.key_dim + LANES].view(np.float32)
        stored = np.ascontiguousarray(rows[:, self._row.gates]).view(np.float32)
        gates[:, :count, :PRESENT] = stored.reshape(count, heads.values, PRESENT).swapaxes(0, 1)
        gates[:, :count, PRESENT], gates[:, count:, PRESENT] = 1, 0

    def state_before(self, layer: int, run: DeltaRun) -> F32Array:
        """The state before the page, (units, keys, columns of a unit): zeros before the first one."""
        shape = state_shape(self._heads.values, self._heads.key_dim, self._heads.value_dim)
        if run.page_before == BEFORE_START:
            return np.zeros(shape, np.float32)
        rows = self._page(layer, run.page_before)
        return np.ascontiguousarray(rows).view(np.float32).reshape(shape)

    def store_state(self, layer: int, run: DeltaRun, state: F32Array) -> None:
        """Store the state at the end of the page, where the run ends there."""
        if run.end == PAGE_SIZE:
            self._page(layer, run.page)[...] = np.ascontiguousarray(state).view(bf16).reshape(PAGE_SIZE, -1)

    def _page(self, layer: int, page: int) -> BF16Array:
        """The part of a page's rows that holds its state."""
        return self._states[layer][0, page * PAGE_SIZE : (page + 1) * PAGE_SIZE, self._row.state]


def _split(mixed: BF16Array, heads: DeltaHeads) -> tuple[BF16Array, BF16Array, BF16Array]:
    """Queries and keys (rows, keys, key_dim) and values (rows, values, value_dim)."""
    width = heads.keys * heads.key_dim
    query, key, value = mixed[:, :width], mixed[:, width : 2 * width], mixed[:, 2 * width :]
    shape = len(mixed), heads.keys, heads.key_dim
    return query.reshape(shape), key.reshape(shape), value.reshape(len(mixed), heads.values, heads.value_dim)


def _runs(positions: NDArray[np.int64]) -> Iterator[DeltaRun]:
    """The tokens of a call by their pages: no two sequences write into one page."""
    pages, places = np.divmod(positions[:, -1], PAGE_SIZE)
    starts = [0, *(np.flatnonzero(np.diff(pages)) + 1).tolist()] if len(pages) else []
    for start, stop in zip(starts, [*starts[1:], len(pages)], strict=True):
        place = int(places[start])
        before = int(positions[start, PAGE_SIZE - 1 - place])
        page_before = BEFORE_START if before == BEFORE_START else before // PAGE_SIZE
        yield DeltaRun(start, stop, int(pages[start]), place, page_before)


def decays_and_rates(gates: BF16Array, heads: int, a_log: BF16Array, dt_bias: BF16Array) -> F32Array:
    """Decay and rate of each head, f32 (rows, heads, 2), of the product of the gates, (rows, 2 * heads or
    more): exp(-exp(a_log) softplus(a + dt_bias)), and the sigmoid of b in bf16.

    The host computes them: a core's exp2 has 8 bits, and a decay near 1 needs more. In f64, so that what a
    CPU's library gives in the last place does not show in f32.
    """
    given = gates[:, : 2 * heads].astype(np.float64)
    softplus = np.logaddexp(0, given[:, :heads] + dt_bias.astype(np.float64))
    out = np.empty((len(gates), heads, PRESENT), np.float32)
    out[..., DECAY] = np.exp(-np.exp(a_log.astype(np.float64)) * softplus)
    out[..., RATE] = np.exp(-np.logaddexp(0, -given[:, heads:])).astype(np.float32).astype(bf16)
    return out


def empty_run(heads: DeltaHeads) -> BF16Array:
    """Room for the rows of a page, (heads, PAGE_SIZE, row_width)."""
    return np.zeros((heads.values, PAGE_SIZE, row_width(heads.key_dim, heads.value_dim)), bf16)
