"""What linear attention keeps of a sequence: its state while it runs, and the state at the end of each page.

A head's state is a matrix of keys by values that each position changes, too large for one at each position.
So a sequence has one state, after its last position that stays, and the rows of its last positions, from
which those after it are computed: queries, keys and values before their convolution, the same behind it,
decay and rate. A draft token that is rejected is forgotten by the length alone: the rule goes on from the
state before the drafts, over the rows of those that were accepted.

Each full page has the state at its end, with the rows that a convolution reads behind it. So a page is all
that it takes to go on behind it: for a prefix that is found again, and for a sequence whose state is lost
because it went back further than its rows, or was saved. Then the tokens from the end of the page before on
are computed again (executor.py).

Each position is one step from the state before it. So it has the same bits in whatever calls a sequence came.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from aerie.engine.layer_states import DeltaHeads, LayerStates
from aerie.engine.numerics import BF16Array, F32Array, bf16
from aerie.engine.page_manager import PAGE_SIZE
from aerie.kernel_builder.delta_rows import DECAY, PRESENT, RATE, state_shape

F32_ELEMENTS = 2
"""Elements of bf16 whose place a number in f32 takes."""
HELD = 64
"""The last positions of a sequence whose rows are held."""
NOT_A_PAGE = -1
"""In place of the page at whose end a run ends."""


class DeltaRow(NamedTuple):
    """Where the parts of a position's row are: queries, keys and values before the convolution; the same
    behind it; decay and rate of each head, f32."""

    before: slice
    mixed: slice
    gates: slice


def delta_row(heads: DeltaHeads) -> DeltaRow:
    """The row of a position in a layer with these heads."""
    parts = heads.mixed_width, heads.mixed_width, heads.values * 2 * F32_ELEMENTS
    ends = [0, *np.cumsum(parts).tolist()]
    return DeltaRow(*(slice(first, end) for first, end in itertools.pairwise(ends)))


def delta_states(layers: tuple[int, ...], heads: DeltaHeads, taps: int) -> LayerStates:
    """What layers with linear attention have at the end of a page: the state, f32, and the rows before the
    convolution that one of so many taps reads behind the page. And in a sequence: its `DeltaHistory`."""
    width = heads.state_elements * F32_ELEMENTS + (taps - 1) * heads.mixed_width
    states, rows = map(math.prod, history_shapes(len(layers), heads))
    nbytes = states * np.dtype(np.float32).itemsize + rows * bf16.itemsize
    return LayerStates(layers, width, taps - 1, PAGE_SIZE, nbytes)


def history_shapes(layers: int, heads: DeltaHeads) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of a sequence's states, f32, and of its rows, bf16, in so many layers (`DeltaHistory`)."""
    states = layers, *state_shape(heads.values, heads.key_dim, heads.value_dim)
    return states, (layers, HELD, delta_row(heads).gates.stop)


class DeltaHistory:
    """What a sequence has of its layers with linear attention.

    states: after its first `state_at` positions, (layers, units, keys, columns of a unit) f32. rows: of the
    positions before `stop`, (layers, HELD, width of a row), the bits of bf16; position p has the row p %
    HELD. Rows before the first position are zeros.
    """

    def __init__(self, layers: int, heads: DeltaHeads, taps: int) -> None:
        states, rows = history_shapes(layers, heads)
        self.states, self.rows = np.zeros(states, np.float32), np.zeros(rows, np.uint16)
        self.state_at = self.stop = 0
        self._reach, self._before = taps - 1, delta_row(heads).before

    def can_go_on_at(self, position: int) -> bool:
        """Whether a token at this position has all that it needs: the state before it, or before positions
        whose rows are held."""
        oldest = min(self.state_at, position - self._reach)
        return self.state_at <= position <= self.stop and oldest >= self.stop - HELD

    def forget_after(self, length: int) -> None:
        """Forget the rows from this position on."""
        self.stop = min(self.stop, length)

    def copy(self) -> DeltaHistory:
        """The same of a sequence that begins alike."""
        other = object.__new__(DeltaHistory)
        other.__dict__ |= self.__dict__
        other.states, other.rows = self.states.copy(), self.rows.copy()
        return other

    def start_behind(self, page: int, position: int, pool_states: Sequence[BF16Array]) -> None:
        """Take what a page has at its end. position: of the sequence, behind that page."""
        places = np.arange(position - self._reach, position) % HELD
        count = self.states[0].size * F32_ELEMENTS
        for states, rows, stored in zip(self.states, self.rows, pool_states, strict=True):
            states[...] = np.ascontiguousarray(stored[0, page, :count]).view(np.float32).reshape(states.shape)
            rows[places, self._before] = stored[0, page, count:].view(np.uint16).reshape(self._reach, -1)
        self.state_at = self.stop = position


class WithHistory(Protocol):
    """A sequence, as page_pool.PagedSequence."""

    pages: list[int]
    history: DeltaHistory | None


class DeltaRun(NamedTuple):
    """Positions first .. stop - 1 of a sequence in one call of the rule. part: the sequence's rows of the
    step. is_first: the state before is the history's, else that after the run before. is_kept: the state
    after it becomes the history's. page: at whose end it ends, or NOT_A_PAGE."""

    part: DeltaPart
    first: int
    stop: int
    is_first: bool
    is_kept: bool
    page: int


class DeltaPart(NamedTuple):
    """A sequence's rows of a step: `rows` from `row` on, at positions from `first` on. state_at: the
    positions before which the history has the state. kept: positions that stay."""

    history: DeltaHistory
    row: int
    first: int
    rows: int
    state_at: int
    kept: int

    @property
    def stop(self) -> int:
        """The position behind the last row."""
        return self.first + self.rows

    def places(self, positions: range) -> tuple[NDArray[np.int64], slice]:
        """Where these positions are: the history's rows of those before `first`, and the step's rows of the
        others."""
        held = np.arange(positions.start, min(positions.stop, self.first)) % HELD
        new = (max(0, at - self.first) + self.row for at in (positions.start, positions.stop))
        return held, slice(*new)


class DeltaPlan(NamedTuple):
    """The calls of the rule for the rows of a step, in order."""

    parts: Sequence[DeltaPart]
    runs: Sequence[DeltaRun]

    @property
    def key(self) -> int:
        """What calls that are recorded depend on."""
        return len(self.runs)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.parts[-1].row + self.parts[-1].rows if self.parts else 0

    def for_rows(self, rows: NDArray[np.int64]) -> DeltaPlan:  # noqa: ARG002 the rule has run for all rows
        """The plan of the end of a layer for some of the rows."""
        return DeltaPlan((), ())

    def finish(self) -> None:
        """Let the histories have what these rows gave, after all layers."""
        for part in self.parts:
            part.history.state_at, part.history.stop = part.kept, part.stop


def plan_delta(rows: Sequence[tuple[WithHistory, range, int]], positions: int) -> DeltaPlan:
    """rows: of each sequence, the positions that are computed, and how many then stay. positions: of a call
    of the rule. Until `finish` the histories are of no use, since the layers do not have them alike."""
    parts, row = list[DeltaPart](), 0
    for sequence, new, kept in rows:
        history = sequence.history
        assert history is not None
        parts.append(DeltaPart(history, row, new.start, len(new), history.state_at, kept))
        row += len(new)
    runs = [
        run
        for part, (sequence, *_) in zip(parts, rows, strict=True)
        for run in _runs(part, sequence, positions)
    ]
    for part in parts:
        part.history.stop = -1
    return DeltaPlan(parts, runs)


def _runs(part: DeltaPart, sequence: WithHistory, most: int) -> Iterator[DeltaRun]:
    """From the history's state on, cut at the ends of pages, and where the positions end that stay."""
    first = part.state_at
    while first < part.stop:
        ends = (part.stop, first + most, (first // PAGE_SIZE + 1) * PAGE_SIZE)
        stop = min(*ends, part.kept if first < part.kept else part.stop)
        page = NOT_A_PAGE if stop % PAGE_SIZE else sequence.pages[stop // PAGE_SIZE - 1]
        yield DeltaRun(part, first, stop, first == part.state_at, stop == part.kept, page)
        first = stop


class GateFactors(NamedTuple):
    """What decays and rates are computed with, each f64 (2 * heads,), decays first: a product is multiplied
    with `sign`, and `added` to it; the softplus of that is multiplied with `factor`."""

    sign: NDArray[np.float64]
    added: NDArray[np.float64]
    factor: NDArray[np.float64]

    @classmethod
    def of_layer(cls, a_log: BF16Array, dt_bias: BF16Array) -> GateFactors:
        """Those of a layer with these tensors, (heads,) each."""
        ones = np.ones(len(a_log))
        return cls(
            np.concatenate([ones, -ones]),
            np.concatenate([dt_bias.astype(np.float64), 0 * ones]),
            np.concatenate([-np.exp(a_log.astype(np.float64)), -ones]),
        )


def decays_and_rates(gates: BF16Array, factors: GateFactors) -> F32Array:
    """Decay and rate of each head, f32 (rows, heads, 2), of the product of the gates, (rows, 2 * heads or
    more): exp(-exp(a_log) softplus(a + dt_bias)), and the sigmoid of b in bf16, exp(-softplus(-b)).

    The host computes them: a core's exp2 has 8 bits, and a decay near 1 needs more. In f64, so that what a
    CPU's library gives in the last place does not show in f32.
    """
    count = len(factors.sign)
    softplus = np.logaddexp(0, gates[:, :count].astype(np.float64) * factors.sign + factors.added)
    both = np.exp(softplus * factors.factor).astype(np.float32).reshape(len(gates), 2, count // 2)
    out = np.empty((len(gates), count // 2, PRESENT), np.float32)
    out[..., DECAY], out[..., RATE] = both[:, 0], both[:, 1].astype(bf16)
    return out
