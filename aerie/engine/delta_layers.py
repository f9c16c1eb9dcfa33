"""The calls of a layer with linear attention, for the rows of a forward pass.

All that changes the layer's state comes with the projections: convolution and delta rule run for all rows of
the call, so that pages are complete whichever rows are looked at afterwards. What is left for these rows is
the norm of heads and the gate.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.engine.delta_states import DeltaStates, decays_and_rates, empty_run
from aerie.engine.layer_states import DeltaHeads
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, bf16
from aerie.engine.programs import buffer_set
from aerie.multi_launch_builder import Program

Arrays = dict[str, NDArray[Any]]


class DeltaCalls:
    """Calls the programs of layers with linear attention, with `calls`. width: rows of the programs."""

    def __init__(
        self, model: LoadedModel, heads: DeltaHeads, width: int, states: DeltaStates, calls: Any
    ) -> None:
        self._model, self._heads, self._states, self._calls = model, heads, states, calls
        self._taps = np.zeros((width, model.config.conv_taps, heads.mixed_width), bf16)
        self._run = empty_run(heads)
        self._out = np.zeros((width, heads.values * heads.value_dim), bf16)

    def project(
        self, programs: Sequence[Program], layer: int, x: BF16Array, on_device: Collection[str]
    ) -> Arrays:
        """`delta_out` and `delta_z` of each row, (rows, value heads * value_dim). Stores what the layer keeps
        of them. programs: of the layer, in order."""
        before, conv, rule = programs[:3]
        state, states = self._model.state_index(layer), self._states
        stays = {"delta_z"} & {*on_device}
        made = self._calls.run(before, bo_key=buffer_set(before, layer), on_device=stays, x=x)
        gates = decays_and_rates(
            made["delta_ab"][: states.count], self._heads.values, *self._model.delta_gates[layer]
        )
        self._calls.host("state write", states.store_projected(state, made["delta_qkv"], gates))
        self._calls.host("state read", states.gather_taps(state, self._taps))
        key = buffer_set(conv, layer)
        mixed = self._calls.run(conv, bo_key=key, on_device=(), conv_rows=self._taps)["mixed"]
        self._calls.host("state write", states.store_mixed(state, mixed))
        self._apply_rule(rule, layer, state)
        return {"delta_out": self._out, "delta_z": made["delta_z"]}

    def _apply_rule(self, rule: Program, layer: int, state: int) -> None:
        """The delta rule over the pages of these rows, page by page."""
        key, self._out[self._states.count :] = buffer_set(rule, layer), 0
        for run in self._states.runs:
            self._calls.host("state read", self._states.gather_run(state, run, self._run))
            inputs: Arrays = {"delta_rows": self._run, "state": self._states.state_before(state, run)}
            made = self._calls.run(rule, bo_key=key, on_device=(), **inputs)
            self._out[run.start : run.stop] = made["rule_out"][run.first : run.end]
            self._states.store_state(state, run, made["state_out"])

    def gate(self, program: Program, layer: int, projected: Arrays) -> BF16Array:
        """The norm of each head, and the gate. projected: the result of `project`, or rows of it."""
        inputs = {name: projected[name] for name in ("delta_out", "delta_z")}
        out = self._calls.run(program, bo_key=buffer_set(program, layer), on_device=("attn_out",), **inputs)
        attn_out: BF16Array = out["attn_out"]
        return attn_out
