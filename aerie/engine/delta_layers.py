"""The calls of a layer with linear attention, for the rows of a forward pass.

All that changes the layer's state comes with the projections: convolution and delta rule run for all rows of
the call, so that pages are complete whichever rows are looked at afterwards. What is left for these rows is
the norm of heads and the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.engine.delta_states import (
    F32_ELEMENTS,
    HELD,
    NOT_A_PAGE,
    DeltaPart,
    DeltaPlan,
    GateFactors,
    decays_and_rates,
    delta_row,
)
from aerie.engine.layer_states import DeltaHeads
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array, bf16
from aerie.engine.programs import buffer_set
from aerie.kernel_builder.delta_rows import LANES, PRESENT
from aerie.multi_launch_builder import Program
from aerie.runtime import HostWork

Arrays = dict[str, NDArray[Any]]
Bits = NDArray[np.uint16]
"""Numbers of bf16, which numpy copies one by one where it knows them as such."""


class DeltaCalls:
    """Calls the programs of layers with linear attention, with `calls`. width: rows of the programs.
    pool_states: of each layer, what pages have at their ends, (1, pages, elements) bf16.

    Call `set_plan` before each call, with a plan of as many runs as the one before if calls are recorded.
    """

    def __init__(
        self, model: LoadedModel, heads: DeltaHeads, width: int, pool_states: Sequence[BF16Array], calls: Any
    ) -> None:
        self._model, self._heads, self._calls = model, heads, calls
        self._pool_states = [of_layer.view(np.uint16) for of_layer in pool_states]
        self._row, self._taps = delta_row(heads), model.config.conv_taps
        self._gates = np.zeros((width, heads.values, PRESENT), np.float32)
        self._out = np.zeros((width, heads.values * heads.value_dim), bf16)
        self._factors = dict[int, GateFactors]()
        self._plan, self._arrays = DeltaPlan((), ()), dict[tuple[str, str], NDArray[Any]]()

    def set_plan(self, plan: DeltaPlan) -> None:
        """Set the parts and runs of the rows."""
        self._plan = plan

    def project(
        self, programs: Sequence[Program], layer: int, x: BF16Array, on_device: Collection[str]
    ) -> Arrays:
        """`delta_out` and `delta_z` of each row, (rows, value heads * value_dim). Stores what the layer keeps
        of them. programs: of the layer, in order."""
        before, conv, rule = programs[:3]
        stays = {"delta_z"} & {*on_device}
        made = self._calls.run(before, bo_key=buffer_set(before, layer), on_device=stays, x=x)
        state, qkv = self._model.state_index(layer), made["delta_qkv"].view(np.uint16)
        conv_rows = self._array(conv, "conv_rows")
        if layer not in self._factors:
            self._factors[layer] = GateFactors.of_layer(*self._model.delta_gates[layer])
        self._host("state read", self._gather_taps, state, qkv, conv_rows.view(np.uint16))
        self._host("decays and rates", self._compute_gates, made["delta_ab"], self._factors[layer])
        key = buffer_set(conv, layer)
        mixed = self._calls.run(conv, bo_key=key, on_device=(), conv_rows=conv_rows)["mixed"].view(np.uint16)
        self._apply_rule(rule, layer, state, qkv, mixed)
        self._host("state write", self._store_rows, state, qkv, mixed)
        return {"delta_out": self._out, "delta_z": made["delta_z"]}

    def mix(
        self, programs: Sequence[Program], layer: int, projected: Arrays
    ) -> tuple[BF16Array, Sequence[Program]]:
        """The norm of each head, and the gate. projected: the result of `project`, or rows of it."""
        program, inputs = programs[2], {name: projected[name] for name in ("delta_out", "delta_z")}
        out = self._calls.run(program, bo_key=buffer_set(program, layer), on_device=("attn_out",), **inputs)
        return out["attn_out"], programs[3:]

    def _host(self, name: str, work: Callable[..., None], *arguments: Any) -> None:
        self._calls.host(name, HostWork(partial(work, *arguments)))

    def _array(self, program: Program, name: str) -> NDArray[Any]:
        """A program's input where the host fills it, one for all layers."""
        key = program.name, name
        if key not in self._arrays:
            argument = program.arguments[name]
            place = self._model.buffer_names.get((buffer_set(program, 0), name), name)
            self._arrays[key] = self._model.runner.shared_array(place, argument)
        return self._arrays[key]

    def _apply_rule(self, rule: Program, layer: int, state: int, qkv: Bits, mixed: Bits) -> None:
        """The delta rule, run by run. Runs of a sequence follow each other, and the rule has its result where
        the next run has the state before it."""
        rows, before = self._array(rule, "delta_rows"), self._array(rule, "state")
        after: F32Array | None = None
        bits = rows.view(np.uint16)
        for number in range(len(self._plan.runs)):
            self._host("state read", self._start_run, number, state, mixed, bits, before, after)
            made = self._calls.run(
                rule, bo_key=buffer_set(rule, layer), on_device=(), delta_rows=rows, state=before
            )
            after = made["state_out"]
            self._host(
                "state write", self._end_run, number, state, qkv, made["rule_out"].view(np.uint16), after
            )

    def _gather_taps(self, state: int, qkv: Bits, out: Bits) -> None:
        """Write the rows that each token's convolution reads to the first of `out`, (rows, taps, width)."""
        for part in self._plan.parts:
            rows = self._before(part, state, range(part.first - self._taps + 1, part.stop), qkv)
            for tap in range(self._taps):
                out[part.row : part.row + part.rows, tap] = rows[tap : tap + part.rows]
        _clear(out.reshape(len(out), -1)[self._plan.rows :])

    def _before(self, part: DeltaPart, state: int, positions: range, qkv: Bits) -> Bits:
        """What a convolution reads of these positions, (positions, width): of those held, and of the rows."""
        held, new = part.places(positions)
        return np.concatenate([part.history.rows[state, held, self._row.before], qkv[new]])

    def _compute_gates(self, products: BF16Array, factors: GateFactors) -> None:
        count = self._plan.rows
        self._gates[:count] = decays_and_rates(products[:count], factors)
        _clear(self._out[count:])

    def _start_run(
        self,
        number: int,
        state: int,
        mixed: Bits,
        out: Bits,
        before: F32Array,
        after: F32Array | None,
    ) -> None:
        """Write the rows of a run, (heads, positions, width) as the kernel has them, and the state before it.
        Rows behind are marked as not there."""
        run = self._plan.runs[number]
        held, new = run.part.places(range(run.first, run.stop))
        rows = run.part.history.rows[state, held]
        gates = np.ascontiguousarray(rows[:, self._row.gates]).view(np.float32)
        gates = np.concatenate([gates.reshape(-1, self._heads.values, PRESENT), self._gates[new]])
        self._fill(np.concatenate([rows[:, self._row.mixed], mixed[new]]), gates, out)
        if run.is_first:
            before[...] = run.part.history.states[state]
        elif after is not None and not np.may_share_memory(before, after):
            before[...] = after

    def _fill(self, mixed: Bits, gates: F32Array, out: Bits) -> None:
        heads, count, at = self._heads, len(mixed), 2 * self._heads.key_dim
        query, key, value = _split(mixed, heads)
        groups = out.reshape(heads.keys, -1, *out.shape[1:])[:, :, :count]
        groups[..., : heads.key_dim] = query.swapaxes(0, 1)[:, None]
        groups[..., heads.key_dim : at] = key.swapaxes(0, 1)[:, None]
        out[:, :count, at + LANES :] = value.swapaxes(0, 1)
        of_rows = out[..., at : at + LANES].view(np.float32)
        of_rows[:, :count, :PRESENT] = gates.swapaxes(0, 1)
        of_rows[:, :count, PRESENT], of_rows[:, count:, PRESENT] = 1, 0

    def _end_run(self, number: int, state: int, qkv: Bits, out: Bits, after: F32Array) -> None:
        """Take the results of a run, and store the state after it where that stays."""
        run = self._plan.runs[number]
        _, new = run.part.places(range(run.first, run.stop))
        count = new.stop - new.start
        self._out.view(np.uint16)[new] = out[run.stop - run.first - count : run.stop - run.first]
        if run.is_kept:
            run.part.history.states[state] = after
        if run.page != NOT_A_PAGE:
            reach = self._before(run.part, state, range(run.stop - self._taps + 1, run.stop), qkv)
            of_page, bits = self._pool_states[state][0, run.page], after.size * F32_ELEMENTS
            of_page[:bits], of_page[bits:] = after.reshape(-1).view(np.uint16), reach.reshape(-1)

    def _store_rows(self, state: int, qkv: Bits, mixed: Bits) -> None:
        """Hold the last of the rows."""
        for part in self._plan.parts:
            count = min(part.rows, HELD)
            rows, held = slice(part.row + part.rows - count, part.row + part.rows), part.history.rows[state]
            at = np.arange(part.stop - count, part.stop) % HELD
            held[at, self._row.before], held[at, self._row.mixed] = qkv[rows], mixed[rows]
            held[at, self._row.gates] = self._gates[rows].reshape(count, -1).view(np.uint16)


def _clear(rows: NDArray[Any]) -> None:
    """Set rows behind a call's to zeros, if the first of them is not: calls fill rows from the first on. They
    are not looked at, and cost less where they are zeros."""
    bits = rows.view(np.uint64)
    if len(bits) and bits[0].any():
        bits[...] = 0


def _split(mixed: Bits, heads: DeltaHeads) -> tuple[Bits, Bits, Bits]:
    """Queries and keys (rows, keys, key_dim) and values (rows, values, value_dim)."""
    width = heads.keys * heads.key_dim
    query, key, value = mixed[:, :width], mixed[:, width : 2 * width], mixed[:, 2 * width :]
    shape = len(mixed), heads.keys, heads.key_dim
    return query.reshape(shape), key.reshape(shape), value.reshape(len(mixed), heads.values, heads.value_dim)
