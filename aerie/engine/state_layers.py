"""The calls of layers without attention, for the rows of a forward pass: of a short convolution, or of linear
attention (delta_layers.py)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from aerie.engine.delta_layers import DeltaCalls
from aerie.engine.layer_states import RowReads, StateRows
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, bf16
from aerie.engine.programs import buffer_set
from aerie.multi_launch_builder import Program

Arrays = dict[str, NDArray[Any]]
CONV_ROWS = "conv_rows"
"""The rows of a state that a short convolution reads."""


Plan = TypeVar("Plan", contravariant=True)


class StateCalls(Protocol[Plan]):
    """Calls the programs of layers without attention, whose states have plans of one kind."""

    def set_plan(self, plan: Plan) -> None:
        """Set what the next call's rows read and write."""

    def project(
        self, programs: Sequence[Program], layer: int, x: BF16Array, on_device: Collection[str]
    ) -> Arrays:
        """What the end of the layer reads of each row. Stores what the layer's state becomes. programs: of
        the layer, in order."""

    def mix(
        self, programs: Sequence[Program], layer: int, projected: Arrays
    ) -> tuple[BF16Array, Sequence[Program]]:
        """What the output projection reads, and the programs that are left. programs: of the layer, but for
        the first. projected: the result of `project`, or rows of it."""


class ConvCalls:
    """Calls the programs of layers with a short convolution, with `calls`. width: rows of the programs."""

    def __init__(self, model: LoadedModel, width: int, states: Sequence[BF16Array], calls: Any) -> None:
        self._model, self._states, self._calls = model, StateRows(states), calls
        self._rows = np.zeros((width, model.config.conv_taps, model.config.states.width), bf16)

    def set_plan(self, plan: RowReads) -> None:
        """Set what the rows read."""
        self._states.set_positions(plan.positions)

    def project(
        self, programs: Sequence[Program], layer: int, x: BF16Array, on_device: Collection[str]
    ) -> Arrays:
        """`conv_c` of each row."""
        stays, key = {"conv_c"} & {*on_device}, buffer_set(programs[0], layer)
        outputs: Arrays = self._calls.run(programs[0], bo_key=key, on_device=stays, x=x)
        store = self._states.store(self._model.state_index(layer), outputs.pop("gated"))
        self._calls.host("state write", store)
        return outputs

    def mix(
        self, programs: Sequence[Program], layer: int, projected: Arrays
    ) -> tuple[BF16Array, Sequence[Program]]:
        """A short convolution of the rows of the layer's state, and the gate behind it."""
        self._calls.host("state read", self._states.gather(self._model.state_index(layer), self._rows))
        inputs, key = {CONV_ROWS: self._rows, "conv_c": projected["conv_c"]}, buffer_set(programs[0], layer)
        out = self._calls.run(programs[0], bo_key=key, on_device=("attn_out",), **inputs)
        return out["attn_out"], programs[1:]


def state_calls(
    model: LoadedModel, width: int, states: Sequence[BF16Array], calls: Any
) -> StateCalls[Any] | None:
    """What calls the programs of the model's layers without attention; None if it has no such layers."""
    if model.config.delta:
        return DeltaCalls(model, model.config.delta, width, states, calls)
    return ConvCalls(model, width, states, calls) if model.config.states.layers else None
